"""The boxes of pixels that the tiles of the pipeline ``box`` load through a tensor descriptor.

Sizes are ints, or int64 arrays: launches, rules and features call the same functions.
"""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import numpy as np

from tilewise.kernels._formulas import Array, KernelLike, ProblemLike
from tilewise.ops import output_sizes

BOX_PIXELS = (64, 128, 256)  # allowed pixels of a box
_SIDE = 16  # of a square box of the most pixels
PIECE_CHANNELS = 64  # of the columns of the pipeline ``relay`` in bwd_weight
ROW_PIXELS = 64  # of a step of the pipeline ``slide``
ROW_CHANNELS = 64  # ... and the channels that its program loads, perhaps for two sets of groups
_ROW_COLUMNS = (64, 32, 16, 8, 4)  # of such a step in one image, the preferred first


class Grid(NamedTuple):
    """The tiled pixels: the number of images, and the sizes of an image."""

    n: Array
    d: Array
    h: Array
    w: Array


class Box(NamedTuple):
    """The sizes of a box of pixels of one image; powers of two."""

    d: Array
    h: Array
    w: Array


def joined(p: ProblemLike, d: Array, h: Array, w: Array) -> Grid:
    """Return the pixels of problem `p`'s images of these sizes, with as few axes as the filter allows.

    Leading axes along which the filter does not reach (one tap, no padding, a stride of one) are joined with the next
    one, the images included: boxes cover fewer and longer rows with less waste.
    """
    free = (p.Z == 1) & (p.pad_d == 0) & (p.stride_d == 1)
    n, d = np.where(free, 1, p.N), np.where(free, p.N * d, d)
    free = free & (p.Y == 1) & (p.pad_h == 0) & (p.stride_h == 1)
    d, h = np.where(free, 1, d), np.where(free, d * h, h)
    free = free & (p.X == 1) & (p.pad_w == 0) & (p.stride_w == 1)
    h, w = np.where(free, 1, h), np.where(free, h * w, w)
    return Grid(n, d, h, w)


def grid_of(p: ProblemLike, variant: str) -> Grid:
    """Return the output pixels of forward and bwd_weight, or the input pixels of one residue class of bwd_data."""
    if variant == "bwd_data":
        return joined(p, -(-p.Di // p.stride_d), -(-p.Hi // p.stride_h), -(-p.Wi // p.stride_w))
    return joined(p, *output_sizes(p))


def boxes(pixels: Array) -> tuple[Box, ...]:
    """Return the boxes of so many pixels that tiles use, the preferred first.

    On the committed problem sets they waste a percent or two more than the best of all possible boxes.
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


def padded_pixels(grid: Grid, box: Box) -> Array:
    """Return the pixels of the boxes that cover `grid`."""
    count = grid.n
    for size, side in ((grid.d, box.d), (grid.h, box.h), (grid.w, box.w)):
        count = count * (-(-size // side) * side)
    return count


def fewest_pixels(grid: Grid, pixels: Array) -> Array:
    """Return :func:`padded_pixels` of the best box of so many pixels (a power of two, at least 64)."""
    return reduce(np.minimum, (padded_pixels(grid, box) for box in boxes(pixels)))


def covering_pixels(p: ProblemLike, variant: str, pixels: Array) -> Array:
    """Return the pixels of the best boxes of so many pixels that cover a variant's grid; fewer than 64 count as 64."""
    return fewest_pixels(grid_of(p, variant), np.maximum(pixels, BOX_PIXELS[0]))


def box_of(grid: Grid, pixels: int) -> Box:
    """Return the box that covers `grid` with the fewest pixels; of equal ones the preferred."""
    best = min(boxes(pixels), key=lambda box: int(padded_pixels(grid, box)))
    return Box(int(best.d), int(best.h), int(best.w))


def taps_of_tile(kernel: KernelLike) -> Array:
    """Return the filter taps of a tile's columns in bwd_weight; `kernel` is one, or a namespace of columns."""
    return 1 + 2 * (kernel.tile_n % 3 == 0)


def tap_columns(kernel: KernelLike, problem: ProblemLike, taps: Array) -> Array:
    """Return the columns that tiles cover in bwd_weight if each has the channels of so many taps."""
    tiles = -(-(problem.Z * problem.Y * problem.X) // taps) * -(-(problem.C // problem.G) // (kernel.tile_n // taps))
    return tiles * kernel.tile_n


def piece_columns(kernel: KernelLike, problem: ProblemLike) -> Array:
    """Return the columns that tiles cover in bwd_weight if each has pieces of the channels, of any taps."""
    pieces = problem.Z * problem.Y * problem.X * -(-(problem.C // problem.G) // PIECE_CHANNELS)
    return -(-pieces // np.maximum(kernel.tile_n // PIECE_CHANNELS, 1)) * kernel.tile_n


def row_steps(p: ProblemLike, variant: str, columns: Array) -> Array:
    """Return the rows of :data:`ROW_PIXELS` pixels, `columns` of each of several images, that cover a variant's grid.

    The grid has the output's pixels, in bwd_data (of a stride of one) the input's.
    """
    size = (p.Di, p.Hi, p.Wi) if variant == "bwd_data" else output_sizes(p)
    return -(-p.N // (ROW_PIXELS // columns)) * size[0] * size[1] * -(-size[2] // columns)


def fewest_row_steps(p: ProblemLike, variant: str) -> Array:
    """Return :func:`row_steps` of the best number of columns."""
    return reduce(np.minimum, (row_steps(p, variant, columns) for columns in _ROW_COLUMNS))


def row_box(p: ProblemLike, variant: str) -> tuple[int, int]:
    """Return the images and columns of the rows that cover a variant's grid with the fewest steps."""
    columns = min(_ROW_COLUMNS, key=lambda n: int(row_steps(p, variant, n)))
    return ROW_PIXELS // columns, columns
