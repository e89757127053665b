"""The Triton programs of the toy pipeline: src/tilewise/kernels/triton/programs/_pairs.py."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.triton import Implementation, Kernel
from tilewise.kernels.triton.programs import RESULT_TYPES, TRITON_TYPES, Launch, Program
from tilewise.ops import GemmProblem


@triton.jit  # type: ignore[untyped-decorator]
def pairs(  # type: ignore[no-untyped-def]
    a, b, c, M, N, K, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)[:, None]
    col = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)[None, :]
    lane = tl.arange(0, TILE_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for k in range(0, K, 2 * TILE_K):
        for half in tl.static_range(2):
            at = k + half * TILE_K + lane
            acc = tl.dot(tl.load(a + row * K + at[None, :]), tl.load(b + col * K + at[:, None]), acc)
    tl.store(c + row * N + col, acc.to(c.dtype.element_ty))


def programs(kernel: Kernel, problem: GemmProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    pointers = (("a", TRITON_TYPES[dtype]), ("b", TRITON_TYPES[dtype]), ("c", RESULT_TYPES[dtype]))
    constants = (("TILE_M", kernel.tile_m), ("TILE_N", kernel.tile_n), ("TILE_K", kernel.tile_k))
    sizes = ("M", "N", "K")
    return (Program(pairs, pointers, sizes, constants, frozenset(), kernel.num_warps, kernel.num_stages),)


def launches(kernel: Kernel, problem: GemmProblem, variant: str, dtype: str, *tensors: Any) -> tuple[Launch, ...]:
    *matrices, _ = tensors  # the last is the workspace
    grid = (problem.M // kernel.tile_m, problem.N // kernel.tile_n, 1)
    sizes = (problem.M, problem.N, problem.K)
    return (Launch(programs(kernel, problem, variant, dtype)[0], grid, matrices, sizes),)


def alignment(problem: GemmProblem, variant: str, dtype: str) -> None:
    """Return one key for all problems: they share one program."""


IMPLEMENTATIONS = {("gemm", "universal"): Implementation(programs, launches, alignment)}
