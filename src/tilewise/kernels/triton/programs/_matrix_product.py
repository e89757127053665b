"""The programs of the dense matrix product ``C[M, N] = A[M, K] @ B[K, N]`` for the layouts rcr, rrr, crr and ccr.

Operands keep their type, sums are fp32. Hopper's matrix units round fp8 sums to fewer bits, see :func:`imprecision`, as
the vendor's library does with fast accumulation. The pipelines ``plain``, ``tma`` and ``persistent`` differ in their
loads and in the tiles of a program. With ``split_k`` above 1 each program sums a share of K into a workspace, and a
second launch adds the shares in a fixed order, so that results do not depend on timing.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels._operands import TENSORS
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton.programs._epilogue import ended, epilogue_pointers, epilogue_tensors
from tilewise.kernels.triton.programs._program import (
    RESULT_TYPES,
    TRITON_TYPES,
    VECTOR,
    Launch,
    Program,
    compute_units,
    described,
    descriptor,
    interpreted,
)
from tilewise.kernels.triton.programs._tiles import divisible, share_of, sum_launch, sum_program, swizzled, tile_of
from tilewise.ops import GemmProblem, operand_bytes

if TYPE_CHECKING:
    from torch import Tensor

_REDUCE_BLOCK = 512
_MAX_TILE_K = 256  # the largest that pools use; K's divisibility beyond it decides nothing


@triton.jit
def _dot(a, b, acc, WIDEN: tl.constexpr):
    """Return ``acc + a @ b``; the interpreter has to widen narrow types first."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _ended(acc, m, n, M, N, bias, residual, ACTIVATION: tl.constexpr):
    """Return the tile that begins at (m, n) with its epilogue."""
    row = (m + tl.arange(0, acc.shape[0]))[:, None]
    col = (n + tl.arange(0, acc.shape[1]))[None, :]
    return ended(acc, row * N + col, (row < M) & (col < N), col, col < N, bias, residual, ACTIVATION)


@triton.jit
def _store(acc, c, partial, m, n, M, N, split, SPLIT_K: tl.constexpr):
    """Write the tile that begins at (m, n), or write this program's share into the workspace."""
    row = m + tl.arange(0, acc.shape[0])
    col = n + tl.arange(0, acc.shape[1])
    mask = (row < M)[:, None] & (col < N)[None, :]
    offset = row[:, None] * N + col[None, :]
    if SPLIT_K == 1:
        tl.store(c + offset, acc.to(c.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * M * N + offset, acc, mask=mask)


@triton.jit
def gemm_plain(
    a, b, c, partial, bias, residual,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, EVEN_K: tl.constexpr, WIDEN: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Load through pointers. Where storage runs along K, rows beyond the last read the last: cheaper than a mask."""
    split = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, TILE_M, TILE_N, GROUP_M)
    row = tile_m * TILE_M + tl.arange(0, TILE_M)
    col = tile_n * TILE_N + tl.arange(0, TILE_N)
    begin, end = share_of(split, tl.cdiv(K, TILE_K), SPLIT_K)
    k = begin * TILE_K + tl.arange(0, TILE_K)
    if A_COLUMN:
        a_at = a + k[None, :] * M + row[:, None]
        a_step = TILE_K * M
        a_mask = (row < M)[:, None]
    else:
        a_at = a + tl.minimum(row, M - 1)[:, None] * K + k[None, :]
        a_step = TILE_K
    if B_COLUMN:
        b_at = b + tl.minimum(col, N - 1)[None, :] * K + k[:, None]
        b_step = TILE_K
    else:
        b_at = b + k[:, None] * N + col[None, :]
        b_step = TILE_K * N
        b_mask = (col < N)[None, :]

    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        if EVEN_K:
            x = tl.load(a_at, mask=a_mask, other=0.0) if A_COLUMN else tl.load(a_at)
            y = tl.load(b_at) if B_COLUMN else tl.load(b_at, mask=b_mask, other=0.0)
        else:
            inside = tl.arange(0, TILE_K) < K - step * TILE_K
            x = tl.load(a_at, mask=a_mask & inside[None, :] if A_COLUMN else inside[None, :], other=0.0)
            y = tl.load(b_at, mask=inside[:, None] if B_COLUMN else b_mask & inside[:, None], other=0.0)
        acc = _dot(x, y, acc, WIDEN)
        a_at += a_step
        b_at += b_step
    m, n = tile_m * TILE_M, tile_n * TILE_N
    acc = _ended(acc, m, n, M, N, bias, residual, ACTIVATION)
    _store(acc, c, partial, m, n, M, N, split, SPLIT_K)


@triton.jit
def _load_a(a, m, k, A_COLUMN: tl.constexpr):
    """Return the tile of A that begins at (m, k), with zeros beyond the matrix."""
    return a.load([k, m]).T if A_COLUMN else a.load([m, k])


@triton.jit
def _load_b(b, k, n, B_COLUMN: tl.constexpr):
    """Return the tile of B that begins at (k, n), with zeros beyond the matrix."""
    return b.load([n, k]).T if B_COLUMN else b.load([k, n])


@triton.jit
def gemm_tma(
    a, b, b_rest, c, partial, bias, residual,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, WIDEN: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Load through tensor descriptors: no addresses, no masks."""
    split = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, TILE_M, TILE_N, GROUP_M)
    begin, end = share_of(split, tl.cdiv(K, TILE_K), SPLIT_K)
    m, n = tile_m * TILE_M, tile_n * TILE_N
    acc = tl.zeros((TILE_M, WIDE), dtype=tl.float32)
    if WIDE < TILE_N:
        rest = tl.zeros((TILE_M, TILE_N - WIDE), dtype=tl.float32)
    for step in range(begin, end):
        x = _load_a(a, m, step * TILE_K, A_COLUMN)
        acc = _dot(x, _load_b(b, step * TILE_K, n, B_COLUMN), acc, WIDEN)
        if WIDE < TILE_N:
            rest = _dot(x, _load_b(b_rest, step * TILE_K, n + WIDE, B_COLUMN), rest, WIDEN)
    acc = _ended(acc, m, n, M, N, bias, residual, ACTIVATION)
    _store(acc, c, partial, m, n, M, N, split, SPLIT_K)
    if WIDE < TILE_N:
        rest = _ended(rest, m, n + WIDE, M, N, bias, residual, ACTIVATION)
        _store(rest, c, partial, m, n + WIDE, M, N, split, SPLIT_K)


@triton.jit
def gemm_persistent(
    a, b, c, partial, bias, residual,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, WIDEN: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute every n-th tile (or share of one) of n programs; the loads of the next tile begin while one is stored."""
    tiles_m = tl.cdiv(M, TILE_M)
    tiles_n = tl.cdiv(N, TILE_N)
    steps = tl.cdiv(K, TILE_K)
    tiles = tiles_m * tiles_n
    for item in tl.range(tl.program_id(0), tiles * SPLIT_K, tl.num_programs(0), flatten=True):
        split = item // tiles
        tile_m, tile_n = swizzled(item % tiles, tiles_m, tiles_n, GROUP_M)
        m, n = tile_m * TILE_M, tile_n * TILE_N
        acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
        if SPLIT_K == 1:
            begin, end = 0, steps
        else:
            begin, end = share_of(split, steps, SPLIT_K)
        for step in range(begin, end):
            x = _load_a(a, m, step * TILE_K, A_COLUMN)
            y = _load_b(b, step * TILE_K, n, B_COLUMN)
            acc = _dot(x, y, acc, WIDEN)
        acc = _ended(acc, m, n, M, N, bias, residual, ACTIVATION)
        if SPLIT_K == 1:
            c.store([m, n], acc.to(c.dtype))
        else:
            _store(acc, c, partial, m, n, M, N, split, SPLIT_K)


_FUNCTIONS: dict[str, Any] = {"plain": gemm_plain, "tma": gemm_tma, "persistent": gemm_persistent}


def _vector(dtype: str) -> int:
    """Return the elements in the widest load of an operand."""
    return VECTOR * 2 // operand_bytes(dtype)


def alignment(problem: GemmProblem, variant: str, dtype: str) -> Hashable:
    """Return the key of the problem's programs: problems of equal key share them, whatever the kernel."""
    p, vector = problem, _vector(dtype)
    return p.layout, p.M % vector == 0, p.N % vector == 0, min(p.K & -p.K, _MAX_TILE_K)


def imprecision(problem: GemmProblem, dtype: str) -> float:
    """Return the error that the hardware's own sums add to random products, relative to the results' spread.

    For fp8, Hopper aligns 32 products and the running sum to the largest of them and cuts each to 13 fractional bits.
    Those errors have random signs and up to one last bit (variance 1/3), the sum is at its half on average: a standard
    deviation of ``sqrt(K / 3) * 2^-14``. On an H200 the error is 0.5 to 0.8 of that for K from 1,024 to 65,536, bit for
    bit that of the vendor's library with fast accumulation. Four of them bound every element of a large result.
    """
    return 4 * sqrt(problem.K / 3) * 2.0**-14 if dtype == "fp8" else 0.0


def programs(
    kernel: Kernel, problem: GemmProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    """Return the programs that `kernel` runs for `problem`, in order; problems of equal alignment share them."""
    types = {"a": TRITON_TYPES[dtype], "b": TRITON_TYPES[dtype], "c": RESULT_TYPES[dtype]}
    fused = kind if kernel.split_k == 1 else EMPTY_KIND
    matrices = ((n, descriptor(types[n[0]], box) if box else types[n[0]]) for n, box in _boxes(kernel, problem).items())
    main = Program(
        _FUNCTIONS[kernel.pipeline],
        (*matrices, ("partial", "fp32"), *epilogue_pointers(fused, dtype)),
        ("M", "N", "K"),
        (*_constants(kernel, problem), ("ACTIVATION", fused.activation)),
        _divisors(kernel, problem, dtype),
        kernel.num_warps,
        kernel.num_stages,
    )
    if kernel.split_k == 1:
        return (main,)
    return (main, sum_program(kernel, dtype, divisible(problem.N), _REDUCE_BLOCK, kind))


def _constants(kernel: Kernel, problem: GemmProblem) -> tuple[tuple[str, int], ...]:
    constants: tuple[tuple[str, int], ...] = (
        ("TILE_M", kernel.tile_m),
        ("TILE_N", kernel.tile_n),
        ("TILE_K", kernel.tile_k),
        ("GROUP_M", kernel.group_m),
        ("SPLIT_K", kernel.split_k),
        ("A_COLUMN", problem.layout[0] == "c"),
        ("B_COLUMN", problem.layout[1] == "c"),
    )
    if kernel.pipeline == "plain":
        constants += (("EVEN_K", problem.K % kernel.tile_k == 0),)
    constants += (("WIDEN", interpreted()),)
    return (*constants, ("WIDE", _wide(kernel))) if kernel.pipeline == "tma" else constants


def _divisors(kernel: Kernel, problem: GemmProblem, dtype: str) -> frozenset[tuple[str, int]]:
    """Return the sizes that the widest load divides, with it, of those that are strides in a pointer of the kernel."""
    strides, layout, vector = {"N": problem.N}, problem.layout, _vector(dtype)
    if kernel.pipeline == "plain":
        strides |= {"M": problem.M} if layout[0] == "c" else {"K": problem.K}
        strides |= {"K": problem.K} if layout[1] == "c" else {}
    return frozenset((name, vector) for name, size in strides.items() if size % vector == 0)


def launches(
    kernel: Kernel, problem: GemmProblem, variant: str, dtype: str, *tensors: Tensor, epilogue: Epilogue = NO_EPILOGUE
) -> tuple[Launch, ...]:
    """Return the launches that compute ``c = a @ b`` with an epilogue.

    Args:
        kernel: a legal kernel that supports `problem`.
        problem: the problem.
        variant: ``universal``.
        dtype: element type of `a` and `b`.
        *tensors: `a`: (M, K), or (K, M) where the layout begins with ``c``. `b`: (K, N), or (N, K) where the layout's
            second letter is ``c``. `c`: (M, N); written. All three are contiguous, and may have any shape of as many
            elements. The workspace: fp32, at least ``split_k * M * N`` elements; any tensor without split-K.
        epilogue: of `c`; its bias has N elements.
    """
    *matrices, workspace = tensors
    main, *rest = programs(kernel, problem, variant, dtype, epilogue.kind)
    tiles = triton.cdiv(problem.M, kernel.tile_m) * triton.cdiv(problem.N, kernel.tile_n)
    if kernel.pipeline == "persistent":
        grid = (min(tiles * kernel.split_k, compute_units()), 1, 1)
    else:
        grid = (tiles, kernel.split_k, 1)
    _, operands, result = TENSORS["gemm", "universal"]
    shapes = (*operands(problem), result(problem))
    stored = dict(zip("abc", zip(matrices, shapes, strict=True), strict=True))
    boxes = _boxes(kernel, problem)
    passed = [described(*stored[n[0]], box) if box else stored[n[0]][0] for n, box in boxes.items()]
    passed += [workspace, *epilogue_tensors(main, epilogue)]
    first = Launch(main, grid, passed, (problem.M, problem.N, problem.K))
    if not rest:
        return (first,)
    return (first, sum_launch(rest[0], problem.M * problem.N, problem.N, (workspace, matrices[2]), epilogue))


def _wide(kernel: Kernel) -> int:
    """Return the columns of a tile's first part: sizes are powers of two, so 192 columns are 128 and a rest of 64."""
    return kernel.tile_n // 3 * 2 if kernel.tile_n % 3 == 0 else kernel.tile_n


def _boxes(kernel: Kernel, problem: GemmProblem) -> dict[str, tuple[int, int] | None]:
    """Return the block that the descriptor of each matrix argument moves, as stored; None for a plain pointer."""
    k, wide = kernel, _wide(kernel)
    if k.pipeline == "plain":
        return dict.fromkeys(("a", "b", "c"))

    def columns(count: int) -> tuple[int, int]:
        return (count, k.tile_k) if problem.layout[1] == "c" else (k.tile_k, count)

    a = (k.tile_k, k.tile_m) if problem.layout[0] == "c" else (k.tile_m, k.tile_k)
    if k.pipeline == "tma":
        return {"a": a, "b": columns(wide), "b_rest": columns(k.tile_n - wide) if wide < k.tile_n else None, "c": None}
    return {"a": a, "b": columns(k.tile_n), "c": (k.tile_m, k.tile_n) if k.split_k == 1 else None}


IMPLEMENTATIONS = {("gemm", "universal"): Implementation(programs, launches, alignment)}
