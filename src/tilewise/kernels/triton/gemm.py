"""Dense matrix product ``C[M, N] = A[M, K] @ B[K, N]`` for the layouts rcr, rrr, crr and ccr.

Operands keep their type, sums are fp32; fp8 sums are what Hopper's matrix units make of them, see :func:`imprecision`,
as in the vendor's library with fast accumulation. The walks differ in their loads and in who computes which tile (see
:mod:`tilewise.kernels.rules`). With ``split_k`` above 1 each program sums a share of K into a workspace, and a second
launch adds the shares in a fixed order, so that results do not depend on timing.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from math import sqrt
from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.operands import TENSORS
from tilewise.kernels.triton.program import (
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
from tilewise.kernels.triton.tiles import divisible, share_of, sum_launch, sum_program, swizzled, tile_of
from tilewise.ops import GemmProblem
from tilewise.ops.dtypes import operand_bytes

_REDUCE_BLOCK = 512
_MAX_TILE_K = 256  # the largest that pools use; K's divisibility beyond it decides nothing


@triton.jit
def _dot(a, b, acc, WIDEN: tl.constexpr):
    """``acc + a @ b``; the interpreter has to widen narrow types first."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc)


@triton.jit
def _store(acc, c, partial, m, n, M, N, split, SPLIT_K: tl.constexpr):
    """Write the tile that begins at (m, n), or this program's share of it into the workspace."""
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
    a, b, c, partial,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, EVEN_K: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Loads through pointers. Where storage runs along K, rows beyond the last read the last: cheaper than a mask."""
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
    _store(acc, c, partial, tile_m * TILE_M, tile_n * TILE_N, M, N, split, SPLIT_K)


@triton.jit
def _load_a(a, m, k, A_COLUMN: tl.constexpr):
    """The tile of A that begins at (m, k); what lies outside is zero."""
    return a.load([k, m]).T if A_COLUMN else a.load([m, k])


@triton.jit
def _load_b(b, k, n, B_COLUMN: tl.constexpr):
    """The tile of B that begins at (k, n); what lies outside is zero."""
    return b.load([n, k]).T if B_COLUMN else b.load([k, n])


@triton.jit
def gemm_tma(
    a, b, b_rest, c, partial,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, WIDEN: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Loads through tensor descriptors: no addresses, no masks."""
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
    _store(acc, c, partial, m, n, M, N, split, SPLIT_K)
    if WIDE < TILE_N:
        _store(rest, c, partial, m, n + WIDE, M, N, split, SPLIT_K)


@triton.jit
def gemm_persistent(
    a, b, c, partial,
    M, N, K,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    A_COLUMN: tl.constexpr, B_COLUMN: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Each program takes every so-many-th tile (or share of one); loads of the next begin while one is stored."""
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
        if SPLIT_K == 1:
            c.store([m, n], acc.to(c.dtype))
        else:
            _store(acc, c, partial, m, n, M, N, split, SPLIT_K)


_FUNCTIONS: dict[str, Any] = {"plain": gemm_plain, "tma": gemm_tma, "persistent": gemm_persistent}


def _vector(dtype: str) -> int:
    """Elements in the widest load of an operand."""
    return VECTOR * 2 // operand_bytes(dtype)


def alignment(problem: GemmProblem, dtype: str) -> Hashable:
    """Problems of equal alignment share their programs, whatever the kernel."""
    p, vector = problem, _vector(dtype)
    return p.layout, p.M % vector == 0, p.N % vector == 0, min(p.K & -p.K, _MAX_TILE_K)


def imprecision(problem: GemmProblem, dtype: str) -> float:
    """Error that the hardware's own sums add to a product of random operands, relative to the results' spread.

    For fp8, Hopper aligns 32 products and the running sum to the largest of them and cuts each to 13 fractional bits.
    Those errors have random signs and up to one last bit (variance 1/3), the sum is at its half on average: a standard
    deviation of ``sqrt(K / 3) * 2^-14``. On an H200 it is 0.5 to 0.8 of that for K from 1,024 to 65,536, bit for bit
    what the vendor's library has with fast accumulation. Four of them bound every element of a large result.
    """
    return 4 * sqrt(problem.K / 3) * 2.0**-14 if dtype == "fp8" else 0.0


def workspace_elements(kernel: Kernel, problem: GemmProblem) -> int:
    """fp32 elements of workspace that a launch needs (0 without split-K)."""
    return kernel.split_k * problem.M * problem.N if kernel.split_k > 1 else 0


def programs(kernel: Kernel, problem: GemmProblem, dtype: str) -> tuple[Program, ...]:
    """The programs that `kernel` runs for `problem`, in order; problems of equal alignment share them."""
    p, k, vector = problem, kernel, _vector(dtype)
    a_column, b_column = p.layout[0] == "c", p.layout[1] == "c"
    constants: tuple[tuple[str, Any], ...] = (
        ("TILE_M", k.tile_m),
        ("TILE_N", k.tile_n),
        ("TILE_K", k.tile_k),
        ("GROUP_M", k.group_m),
        ("SPLIT_K", k.split_k),
        ("A_COLUMN", a_column),
        ("B_COLUMN", b_column),
    )
    strides = {"N": p.N}
    if k.pipeline == "plain":
        constants += (("EVEN_K", p.K % k.tile_k == 0), ("WIDEN", interpreted()))
        strides |= {"M": p.M} if a_column else {"K": p.K}
        strides |= {"K": p.K} if b_column else {}
    else:
        constants += (("WIDEN", interpreted()),)
        constants += (("WIDE", _wide(k)),) if k.pipeline == "tma" else ()
    types = {"a": TRITON_TYPES[dtype], "b": TRITON_TYPES[dtype], "c": RESULT_TYPES[dtype]}
    boxes = _boxes(k, p)
    main = Program(
        _FUNCTIONS[k.pipeline],
        (
            *((n, descriptor(types[n[0]], box) if box else types[n[0]]) for n, box in boxes.items()),
            ("partial", "fp32"),
        ),
        ("M", "N", "K"),
        constants,
        frozenset(name for name, size in strides.items() if size % vector == 0),
        k.num_warps,
        k.num_stages,
        vector,
    )
    return (main,) if k.split_k == 1 else (main, sum_program(k, dtype, divisible(p.N), _REDUCE_BLOCK))


def launches(
    kernel: Kernel, problem: GemmProblem, dtype: str, a: Any, b: Any, c: Any, workspace: Any
) -> tuple[Launch, ...]:
    """The launches that compute ``c = a @ b``.

    Args:
        kernel: a legal kernel that supports `problem`.
        problem: the shape.
        dtype: element type of `a` and `b`.
        a: (M, K), or (K, M) where the layout begins with ``c``; contiguous, whatever its shape.
        b: (K, N), or (N, K) where the layout's second letter is ``c``; likewise.
        c: (M, N), likewise; written.
        workspace: fp32, at least :func:`workspace_elements` long; any tensor where that is 0.
    """
    main, *rest = programs(kernel, problem, dtype)
    tiles = triton.cdiv(problem.M, kernel.tile_m) * triton.cdiv(problem.N, kernel.tile_n)
    if kernel.pipeline == "persistent":
        grid = (min(tiles * kernel.split_k, compute_units()), 1, 1)
    else:
        grid = (tiles, kernel.split_k, 1)
    _, operands, result = TENSORS["gemm", "universal"]
    given = dict(zip("abc", zip((a, b, c), (*operands(problem), result(problem)), strict=True), strict=True))
    tensors = [described(*given[n[0]], box) if box else given[n[0]][0] for n, box in _boxes(kernel, problem).items()]
    first = Launch(main, grid, (*tensors, workspace), (problem.M, problem.N, problem.K))
    if not rest:
        return (first,)
    return (first, sum_launch(rest[0], problem.M * problem.N, workspace, c))


def _wide(kernel: Kernel) -> int:
    """Columns of a tile's first part: tensors have powers of two as sizes, so 192 columns are 128 and a rest of 64."""
    return kernel.tile_n // 3 * 2 if kernel.tile_n % 3 == 0 else kernel.tile_n


def _boxes(kernel: Kernel, problem: GemmProblem) -> dict[str, tuple[int, int] | None]:
    """What the descriptor of each matrix argument moves at once, as stored; None where it is a plain pointer."""
    k, wide = kernel, _wide(kernel)
    if k.pipeline == "plain":
        return dict.fromkeys(("a", "b", "c"))

    def columns(count: int) -> tuple[int, int]:
        return (count, k.tile_k) if problem.layout[1] == "c" else (k.tile_k, count)

    a = (k.tile_k, k.tile_m) if problem.layout[0] == "c" else (k.tile_m, k.tile_k)
    if k.pipeline == "tma":
        return {"a": a, "b": columns(wide), "b_rest": columns(k.tile_n - wide) if wide < k.tile_n else None, "c": None}
    return {"a": a, "b": columns(k.tile_n), "c": (k.tile_m, k.tile_n) if k.split_k == 1 else None}
