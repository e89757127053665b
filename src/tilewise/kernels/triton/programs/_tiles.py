"""Code that the kernels of all ops share: the order of tiles, the split of K, and the sum of its shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton.programs._epilogue import ended, epilogue_pointers, epilogue_tensors
from tilewise.kernels.triton.programs._program import RESULT_TYPES, VECTOR, Launch, Program

if TYPE_CHECKING:
    from torch import Tensor

_MAX_UNROLLED_SHARES = 32


@triton.jit
def tile_of(pid, rows, cols, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return a program's tile: GROUP_M row tiles share one sweep over the columns, which keeps L2 warm."""
    return swizzled(pid, tl.cdiv(rows, TILE_M), tl.cdiv(cols, TILE_N), GROUP_M)


@triton.jit
def swizzled(pid, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return a program's tile, given the counts of tiles; see :func:`tile_of`."""
    first = (pid // (GROUP_M * tiles_n)) * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = pid % (GROUP_M * tiles_n)
    return first + within % height, within // height


@triton.jit
def indices_of(pid, rows, cols, TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Return the row and column indices of a program's tile; see :func:`tile_of`."""
    tile_m, tile_n = tile_of(pid, rows, cols, TILE_M, TILE_N, GROUP_M)
    return tile_m * TILE_M + tl.arange(0, TILE_M), tile_n * TILE_N + tl.arange(0, TILE_N)


@triton.jit
def share_of(split, steps, SPLIT_K: tl.constexpr):
    """Return the first step of a program's share of K, and the step after its last."""
    return steps * split // SPLIT_K, steps * (split + 1) // SPLIT_K


@triton.jit
def _sum_of_shares(partial, at, mask, count, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Return the sums of the split-K shares of results `at`, added in order; `partial` is (SPLIT_K, count) fp32."""
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    share = partial + at
    for _ in range(SPLIT_K // UNROLL):
        for _ in tl.static_range(UNROLL):
            acc += tl.load(share, mask=mask, other=0.0)
            share += count
    for _ in tl.static_range(SPLIT_K % UNROLL):
        acc += tl.load(share, mask=mask, other=0.0)
        share += count
    return acc


@triton.jit
def sum_shares(partial, y, count, SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr):
    """Add the split-K shares in order: `partial` is (SPLIT_K, count) fp32, `y` (count)."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    acc = _sum_of_shares(partial, at, mask, count, SPLIT_K, BLOCK, UNROLL)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def sum_shares_ended(
    partial, y, bias, residual,
    count, channels,
    SPLIT_K: tl.constexpr, BLOCK: tl.constexpr, UNROLL: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Add the split-K shares as :func:`sum_shares`, with an epilogue; the last axis of `y` are the channels."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    acc = _sum_of_shares(partial, at, mask, count, SPLIT_K, BLOCK, UNROLL)
    acc = ended(acc, at, mask, at % channels, mask, bias, residual, ACTIVATION)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


def sum_program(kernel: Kernel, dtype: str, aligned: bool, block: int, kind: EpilogueKind = EMPTY_KIND) -> Program:
    """Return the program that sums the shares; `aligned`: channels and results divide by :data:`VECTOR`."""
    pointers: tuple[tuple[str, str], ...] = (("partial", "fp32"), ("y", RESULT_TYPES[dtype]))
    sizes: tuple[str, ...] = ("count",)
    constants: tuple[tuple[str, int | str], ...] = (
        ("SPLIT_K", kernel.split_k),
        ("BLOCK", block),
        ("UNROLL", min(kernel.split_k, _MAX_UNROLLED_SHARES)),
    )
    if not kind.is_empty:
        pointers += epilogue_pointers(kind, dtype)
        sizes += ("channels",)
        constants += (("ACTIVATION", kind.activation),)
    function = sum_shares if kind.is_empty else sum_shares_ended
    return Program(function, pointers, sizes, constants, frozenset((n, VECTOR) for n in sizes if aligned), 4, 1)


def sum_launch(
    program: Program, count: int, channels: int, tensors: tuple[Tensor, Tensor], epilogue: Epilogue
) -> Launch:
    """Return the launch of :func:`sum_program` over `count` results; `tensors`: workspace and result."""
    block = dict(program.constants)["BLOCK"]
    passed = (*tensors, *epilogue_tensors(program, epilogue))
    sizes = (count, channels)[: len(program.sizes)]
    return Launch(program, (triton.cdiv(count, block), 1, 1), passed, sizes)


def divisible(*sizes: int) -> bool:
    """Return whether all sizes allow the widest loads of 16-bit elements."""
    return all(size % VECTOR == 0 for size in sizes)
