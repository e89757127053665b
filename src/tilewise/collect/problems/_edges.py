"""Edge problems: sizes of 1, primes, sizes that 8 does not divide, sizes one past a tile.

They serve problem sets and tests. The order is fixed, each problem occurs once, and all of them are cheap to run.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewise.ops import GemmProblem, GroupedConvProblem

# 1 and small primes, one short of and one past the usual tiles, and primes and odd multiples of 2 and 4 in between.
EDGE_SIZES = (1, 2, 3, 5, 7, 12, 13, 17, 31, 33, 65, 97, 100, 127, 129, 193, 250, 257, 509, 513, 1021, 1025, 2049, 4097)
_EVEN_SIZES = (64, 1024, 256, 4096, 512, 2048, 128)


def edge_gemms() -> Iterator[GemmProblem]:
    """Yield every edge size as M, as N and as K between even sizes, then edge sizes in all three places; all rcr."""
    for i, size in enumerate(EDGE_SIZES):
        even, other = (_EVEN_SIZES[(i + shift) % len(_EVEN_SIZES)] for shift in (0, 3))
        yield GemmProblem(size, even, other)
        yield GemmProblem(other, size, even)
        yield GemmProblem(even, other, size)
    count = len(EDGE_SIZES)
    for i, size in enumerate(EDGE_SIZES):
        yield GemmProblem(size, EDGE_SIZES[(i * 7 + 5) % count], EDGE_SIZES[(i * 11 + 7) % count])


def edge_convs() -> Iterator[GroupedConvProblem]:
    """Yield edge sizes as channels, groups, images and batch, then filters, strides and paddings with small outputs."""
    conv = GroupedConvProblem
    yield conv(1, 1, 1, 1, 1, 1, 1, 1)
    yield conv(128, 1, 1, 1, 1, 1, 1, 1)
    for size, other in zip(EDGE_SIZES[:-3:2], EDGE_SIZES[1:-3:2], strict=False):  # channels of 3x3s and 1x1s
        yield conv(2, 64, size, 1, 14, 14, 3, 3, pad_h=1, pad_w=1)
        yield conv(4, size, 128, 1, 13, 17, 1, 1)
        yield conv(2, other, size, 1, 12, 15, 3, 3, pad_h=1, pad_w=1)
    for group in (2, 3, 5, 7, 13, 31):  # groups of odd width
        yield conv(2, group * 3, group * 5, group, 15, 15, 3, 3, pad_h=1, pad_w=1)
        yield conv(2, group * 33, group * 17, group, 9, 11, 1, 1)
        yield conv(1, group, group, group, 17, 19, 3, 3, pad_h=1, pad_w=1)
    for height, width in ((1, 129), (257, 1), (3, 43), (127, 127)):  # one past a tile of pixels, or just short of it
        yield conv(1, 64, 64, 1, height, width, 1, 1)
        yield conv(1, 32, 48, 1, height, width, 3, 3, pad_h=1, pad_w=1)
    yield conv(5, 24, 40, 1, 7, 7, 7, 7)  # a filter as large as its image: one pixel is left
    yield conv(3, 16, 32, 1, 11, 13, 2, 2, 3, 3)  # strides beyond the filter skip pixels
    yield conv(2, 20, 20, 20, 11, 13, 1, 1, 2, 2)
    yield conv(1, 17, 19, 1, 5, 5, 3, 3, pad_h=4, pad_w=4)  # mostly padding
    yield conv(2, 48, 48, 1, 31, 31, 3, 3, 1, 1, 5, 5, 5, 5)  # a wide dilation
    yield conv(2, 40, 24, 1, 16, 30, 1, 9, pad_w=4)
    yield conv(2, 24, 40, 1, 30, 16, 9, 1, pad_h=4)
    yield conv(1, 6, 10, 2, 9, 8, 3, 2, 2, 1, 1, 0, 2)  # every axis its own
    yield conv(1, 1, 1, 1, 1, 1, 1, 1, Di=3, Z=3)
    yield conv(1, 13, 29, 1, 7, 9, 3, 3, pad_h=1, pad_w=1, Di=5, Z=3, pad_d=1)
    yield conv(2, 9, 15, 3, 7, 7, 3, 3, 2, 2, 1, 1, Di=5, Z=2, stride_d=2)
