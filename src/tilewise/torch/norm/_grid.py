"""The programs that normalise a tensor: blocks of channels by shares of the pixels."""

from __future__ import annotations

from functools import lru_cache
from math import gcd, sqrt
from typing import NamedTuple

import triton
from torch import Tensor

_PROGRAMS = 528  # four for each compute unit of an H100 or H200
_MOST_SHARES = 128
_SHARES_OF_ROOT = 0.6  # of the pixels' square root; see grid_of
_WIDEST, _NARROWEST = 128, 16  # channels of a block
_VECTOR = 8  # channels that a load takes at once, where they divide all
_TILE, _SMALL_TILE = 4096, 1024  # values that a program loads at once; the second with narrower loads
WARPS = 4
_INT32_VALUES = 2**31
_MAX_GRIDS = 4096


class Grid(NamedTuple):
    """The programs of a pass, and the arguments that all kernels take.

    Attributes:
        shares: of the pixels.
        programs: shares and blocks of channels.
        sizes: pixels, channels, and pixels of a share.
        constants: of a kernel; they follow from the pixels and channels.
    """

    shares: int
    programs: tuple[int, int]
    sizes: tuple[int, int, int]
    constants: dict[str, int]


def grid_of(x: Tensor) -> Grid:
    """Return the programs for a tensor (N, C, ...)."""
    channels = x.shape[1]
    return _grid(x.numel() // channels, channels)


@lru_cache(_MAX_GRIDS)
def _grid(pixels: int, channels: int) -> Grid:
    """Return the programs for so many pixels and channels; few channels are split further, for enough programs.

    Each program of a second pass reads the sums of all shares. So shares grow with the square root of the pixels, and
    have more pixels than there are shares.
    """
    vector = gcd(channels, _VECTOR)
    block_c = max(_NARROWEST, min(_WIDEST, triton.next_power_of_2(channels) // 4))
    blocks = triton.cdiv(channels, block_c)
    share = triton.cdiv(
        pixels, min(_MOST_SHARES, triton.cdiv(_PROGRAMS, blocks), int(_SHARES_OF_ROOT * sqrt(pixels)) + 1)
    )
    tile = _TILE if vector == _VECTOR else _SMALL_TILE
    block_p = min(tile // block_c, triton.next_power_of_2(share))
    shares = triton.cdiv(pixels, share)
    wide = pixels * channels >= _INT32_VALUES
    constants = {"BLOCK_P": block_p, "BLOCK_C": block_c, "VECTOR": vector, "WIDE": wide}
    return Grid(shares, (shares, blocks), (pixels, channels, share), constants)
