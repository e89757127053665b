"""What the kernels of every op share: the order of tiles, the split of K, and adding its shares."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton.program import RESULT_TYPES, VECTOR, Launch, Program

_MAX_UNROLLED_SHARES = 32


@triton.jit
def tile_of(pid, rows, cols, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Tile coordinates of a program: GROUP_M row tiles share one sweep over the columns, which keeps L2 warm."""
    return swizzled(pid, tl.cdiv(rows, TILE_M), tl.cdiv(cols, TILE_N), GROUP_M)


@triton.jit
def swizzled(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """The same for counts of tiles."""
    first = (pid // (GROUP_M * tiles_n)) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = pid % (GROUP_M * tiles_n)
    return first + within % height, within // height


@triton.jit
def indices_of(pid, rows, cols, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column indices of the tile that :func:`tile_of` gives a program."""
    tile_m, tile_n = tile_of(pid, rows, cols, TILE_M, TILE_N, GROUP_M)
    return tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * TILE_N + tl.arange(0, TILE_N)


@triton.jit
def share_of(split, steps, SPLIT_K: tl.constexpr):
    """First step of a program's share of K, and the step after its last; empty only with fewer steps than shares."""
    return steps * split // SPLIT_K, steps * (split + 1) // SPLIT_K


@triton.jit
def sum_shares(partial, y, count, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Add the split-K shares in order: `partial` is (SPLIT_K, count) fp32, `y` (count)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    share = partial + at
    for _ in range(SPLIT_K // UNROLL):
        for _ in tl.static_range(UNROLL):
            acc += tl.load(share, mask=mask, other=0.0)
            share += count
    for _ in tl.static_range(SPLIT_K % UNROLL):
        acc += tl.load(share, mask=mask, other=0.0)
        share += count
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


def sum_program(kernel: Kernel, dtype: str, aligned: bool, block: int) -> Program:
    """The program of :func:`sum_shares`; `aligned` says whether the count divides by :data:`VECTOR`."""
    return Program(
        sum_shares,
        (("partial", "fp32"), ("y", RESULT_TYPES[dtype])),
        ("count",),
        (("SPLIT_K", kernel.split_k), ("BLOCK", block), ("UNROLL", min(kernel.split_k, _MAX_UNROLLED_SHARES))),
        frozenset({"count"} if aligned else ()),
        4,
        1,
    )


def sum_launch(program: Program, count: int, workspace: Any, y: Any) -> Launch:
    """The launch of :func:`sum_program` over `count` results."""
    block = dict(program.constants)["BLOCK"]
    return Launch(program, (triton.cdiv(count, block), 1, 1), (workspace, y), (count,))


def divisible(*sizes: int) -> bool:
    """Whether all sizes allow the widest loads of 16-bit elements."""
    return all(size % VECTOR == 0 for size in sizes)
