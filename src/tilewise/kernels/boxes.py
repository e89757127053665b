"""Which box of pixels a tile of the walk ``box`` takes, and which filter taps: a tensor descriptor loads boxes.

Sizes are ints, or int64 arrays: launches, rules and features ask the same functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilewise.ops.grouped_conv import output_sizes

BOX_PIXELS = (64, 128, 256)  # that a box may have
_SIDE = 16  # of a square that is a box of the most pixels


class Grid(NamedTuple):
    """What a walk tiles: images, and the pixels of an image."""

    n: Any
    d: Any
    h: Any
    w: Any


class Box(NamedTuple):
    """The pixels of one image that a tile takes; powers of two."""

    d: Any
    h: Any
    w: Any


def joined(p: Any, d: Any, h: Any, w: Any) -> Grid:
    """The pixels of problem `p`'s images of these sizes, with as few axes as the filter allows.

    Along the first axes that it does not reach along (one tap, no padding, a stride of one) pixels map to themselves:
    these are one with the axis before, the images included, for boxes cover fewer and longer rows with less waste.
    """
    free = (p.Z == 1) & (p.pad_d == 0) & (p.stride_d == 1)
    n, d = np.where(free, 1, p.N), np.where(free, p.N * d, d)
    free = free & (p.Y == 1) & (p.pad_h == 0) & (p.stride_h == 1)
    d, h = np.where(free, 1, d), np.where(free, d * h, h)
    free = free & (p.X == 1) & (p.pad_w == 0) & (p.stride_w == 1)
    h, w = np.where(free, 1, h), np.where(free, h * w, w)
    return Grid(n, d, h, w)


def grid_of(p: Any, variant: str) -> Grid:
    """What forward and bwd_weight walk (output pixels), or bwd_data (input pixels of one residue class)."""
    if variant == "bwd_data":
        return joined(p, -(-p.Di // p.stride_d), -(-p.Hi // p.stride_h), -(-p.Wi // p.stride_w))
    return joined(p, *output_sizes(p))


def boxes(pixels: Any) -> tuple[Box, ...]:
    """The boxes of so many pixels that tiles are taken from, the preferred first.

    On the committed problem sets they waste a percent or two more than the best of all boxes would.
    """
    side = np.minimum(pixels // 8, _SIDE)
    return (
        Box(1, 1, pixels),
        Box(pixels // 64, 8, 8),
        Box(1, side, pixels // side),
        Box(pixels // 16, 4, 4),
        Box(1, 4, pixels // 4),
        Box(pixels // 8, 1, 8),
        Box(pixels // 4, 2, 2),
    )


def padded_pixels(grid: Grid, box: Box) -> Any:
    """Pixels of the boxes that cover `grid`."""
    count = grid.n
    for size, side in ((grid.d, box.d), (grid.h, box.h), (grid.w, box.w)):
        count = count * (-(-size // side) * side)
    return count


def fewest_pixels(grid: Grid, pixels: Any) -> Any:
    """The same for the best box of so many pixels (a power of two, at least 64)."""
    least, *others = (padded_pixels(grid, box) for box in boxes(pixels))
    for other in others:
        least = np.minimum(least, other)
    return least


def covering_pixels(p: Any, variant: str, pixels: Any) -> Any:
    """Pixels of the best boxes of so many over what `variant` walks; some answer where no box has so few."""
    return fewest_pixels(grid_of(p, variant), np.maximum(pixels, BOX_PIXELS[0]))


def box_of(grid: Grid, pixels: int) -> Box:
    """The box that covers `grid` with the fewest pixels; of equal ones the preferred."""
    best = min(boxes(pixels), key=lambda box: int(padded_pixels(grid, box)))
    return Box(int(best.d), int(best.h), int(best.w))


def taps_of_tile(kernel: Any) -> Any:
    """Filter taps that a tile's columns are of in bwd_weight; `kernel` is one, or a namespace of columns as arrays."""
    return 1 + 2 * (kernel.tile_n % 3 == 0)


def tapwise_columns(kernel: Any, p: Any) -> Any:
    """Columns that the tiles of a walk by taps cover in bwd_weight."""
    taps = np.where(kernel.pipeline == "box", taps_of_tile(kernel), 1)
    tiles = -(-(p.Z * p.Y * p.X) // taps) * -(-(p.C // p.G) // (kernel.tile_n // taps))
    return tiles * kernel.tile_n
