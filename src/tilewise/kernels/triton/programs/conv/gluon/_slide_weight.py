"""The programs of ``slide`` in bwd_weight: nine filter taps of merged groups, summed over the rows of the images.

A step is a row of the output's gradient, times the rows of the input under three rows and three columns of taps. Three
sets of four warps multiply, each the three taps of its column.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._shapes import TAP_SIDE, merged_groups, tap_tiles
from tilewise.kernels.triton.programs._program import TRITON_TYPES, Launch, Program, described, swizzled_descriptor
from tilewise.kernels.triton.programs._tiles import divisible, share_of, sum_program
from tilewise.kernels.triton.programs.conv._shared import FILTER_BLOCK, launches_of, sizes_of
from tilewise.kernels.triton.programs.conv.gluon._ring import new_ring
from tilewise.kernels.triton.programs.conv.gluon._slide_rows import (
    described_input,
    is_last,
    is_new,
    load_row,
    load_under,
    place_of_row,
    row_block,
    row_constants,
    slot_of,
)
from tilewise.ops import GroupedConvProblem, weight_elements

if TYPE_CHECKING:
    from torch import Tensor


@gluon.jit
def _corner(Y, X):
    """Return the first tap (z, y, x) of this program's three rows and three columns."""
    high, wide = gl.cdiv(Y, 3), gl.cdiv(X, 3)
    tile = gl.program_id(0)
    return tile // (high * wide), tile // wide % high * 3, tile % wide * 3


@gluon.jit
def _load(
    dy, x, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, sizes, steps,
    IMAGES: gl.constexpr, COLUMNS: gl.constexpr, ADVANCE: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Fill the rings with the rows of this program's share."""
    C, Cg, Kg, Do, Ho, Wo, Y, X = sizes
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = steps
    z, y, left = _corner(Y, X)
    loaded = 0
    for row in range(begin, end):
        n, d, h, w = place_of_row(row, Do, Ho, Wo, IMAGES, COLUMNS)
        fresh = gl.where(is_new(row, begin, Ho), 0, 3 - ADVANCE)  # the rows under the other taps are there
        loaded = load_under(
            x, x_ring, x_ready, x_empty, loaded, fresh, n, d * stride_d + z * dilation_d - pad_d,
            h * stride_h + y * dilation_h - pad_h, w * stride_w + left * dilation_w - pad_w, first * Cg,
            C, stride_w, dilation_h, dilation_w, 0, 3, 3, ROWS,
        )  # fmt: skip
        step = row - begin
        load_row(dy, dy_ring, dy_ready, dy_empty, step % STAGES, (step // STAGES & 1) ^ 1, n, d, h, w, first * Kg)


@gluon.jit
def _multiply(
    dw, partial, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, held, sizes,
    SIDE: gl.constexpr, ADVANCE: gl.constexpr, ROWS: gl.constexpr, STAGES: gl.constexpr, SPLIT_K: gl.constexpr,
):  # fmt: skip
    """Compute the taps of one column for the rows of this program's share, and store them."""
    K, Cg, Kg, Ho, Z, Y, X = sizes
    TILE_M: gl.constexpr = dy_ring.shape[2]
    TILE_N: gl.constexpr = x_ring.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_N, 16])
    high = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
    middle = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
    low = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
    top = 0  # of the three rows of the input
    for row in range(begin, end):
        step = row - begin
        mbarrier.wait(dy_ready.index(step % STAGES), step // STAGES & 1)
        for tap in gl.static_range(3):
            mbarrier.wait(x_ready.index(slot_of(0, SIDE, top + tap, 3, ROWS)), (top + tap) // ROWS & 1)
        a = dy_ring.index(step % STAGES).permute((1, 0))
        high = warpgroup_mma(a, x_ring.index(slot_of(0, SIDE, top, 3, ROWS)), high, is_async=True)
        middle = warpgroup_mma(a, x_ring.index(slot_of(0, SIDE, top + 1, 3, ROWS)), middle, is_async=True)
        low = warpgroup_mma(a, x_ring.index(slot_of(0, SIDE, top + 2, 3, ROWS)), low, is_async=True)
        high, middle, low = warpgroup_mma_wait(0, deps=(high, middle, low))
        mbarrier.arrive(dy_empty.index(step % STAGES))
        last = is_last(row, end, Ho)
        for tap in gl.static_range(3):
            mbarrier.arrive(x_empty.index(slot_of(0, SIDE, top + tap, 3, ROWS)), pred=last | (tap < ADVANCE))
        top += gl.where(last, 3, ADVANCE)

    z, y, left = _corner(Y, X)
    k = gl.arange(0, TILE_M, gl.SliceLayout(1, layout))
    c = gl.arange(0, TILE_N, gl.SliceLayout(0, layout))
    own = (k // Kg)[:, None] == (c // Cg)[None, :]
    mask = own & (k < held * Kg)[:, None] & (c < held * Cg)[None, :] & (left + SIDE < X)
    filters = (first * Kg + k)[:, None] * (Z * Y * X * Cg) + (c % Cg)[None, :]
    share = gl.program_id(2).to(gl.int64) * K * (Z * Y * X * Cg)
    for tap in gl.static_range(3):
        acc = (high, middle, low)[tap]
        offset = filters + ((z * Y + y + tap) * X + left + SIDE) * Cg
        inside = mask & (y + tap < Y)
        if SPLIT_K == 1:
            gl.store(dw + offset, acc.to(dw.dtype.element_ty), mask=inside)
        else:
            gl.store(partial + share + offset, acc, mask=inside)


@gluon.jit
def bwd_weight_slide(
    dy, x, dw, partial,
    C, K, Cg, Kg, groups, N, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, NUM_STAGES: gl.constexpr, SPLIT_K: gl.constexpr,
    IMAGES: gl.constexpr, COLUMNS: gl.constexpr, ADVANCE: gl.constexpr,
):  # fmt: skip
    """Compute bwd_weight for nine taps of several groups; one step is a row of pixels."""
    ROWS: gl.constexpr = NUM_STAGES + 2
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    dy_ring = gl.allocate_shared_memory(dy.dtype, [NUM_STAGES, TILE_K, TILE_M], tile)
    x_ring = gl.allocate_shared_memory(x.dtype, [3 * ROWS, TILE_K, TILE_N], tile)
    dy_ready, dy_empty = new_ring(NUM_STAGES, 3)
    x_ready, x_empty = new_ring(3 * ROWS, 1)
    fence_async_shared()
    begin, end = share_of(gl.program_id(2), gl.cdiv(N, IMAGES) * Do * gl.cdiv(Wo, COLUMNS) * Ho, SPLIT_K)
    first = gl.program_id(1) * groups
    held = gl.minimum(groups, C // Cg - first)  # the last tile may have fewer
    images, filter = (C, Cg, Kg, Do, Ho, Wo, Y, X), (K, Cg, Kg, Ho, Z, Y, X)
    steps = (stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w)
    gl.warp_specialize([  # a tuple with a name would turn its constants into values
        (_multiply, (
            dw, partial, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, held, filter,
            0, ADVANCE, ROWS, NUM_STAGES, SPLIT_K,
        )),
        (_multiply, (
            dw, partial, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, held, filter,
            1, ADVANCE, ROWS, NUM_STAGES, SPLIT_K,
        )),
        (_multiply, (
            dw, partial, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, held, filter,
            2, ADVANCE, ROWS, NUM_STAGES, SPLIT_K,
        )),
        (_load, (
            dy, x, dy_ring, x_ring, dy_ready, dy_empty, x_ready, x_empty, begin, end, first, images, steps,
            IMAGES, COLUMNS, ADVANCE, ROWS, NUM_STAGES,
        )),
    ], [4, 4, 1], [152, 152, 40])  # fmt: skip


def weight_programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """Return the programs; see :class:`tilewise.kernels.triton.Implementation`."""
    p, k, stored, function = problem, kernel, TRITON_TYPES[dtype], bwd_weight_slide
    constants = {"TILE_M": k.tile_m, "TILE_N": k.tile_n, "TILE_K": k.tile_k, "NUM_STAGES": k.num_stages}
    rows = row_constants(p, variant, TAP_SIDE)
    constants |= {"SPLIT_K": k.split_k, **dict(rows)}
    blocks = {"dy": row_block(rows, k.tile_m), "x": row_block(rows, k.tile_n)}
    pointers = {name: swizzled_descriptor(stored, block) for name, block in blocks.items()}
    pointers |= {"dw": stored, "partial": "fp32"}
    sizes = tuple(n for n in function.arg_names if n not in pointers and n not in constants)
    given = tuple(pointers.items()), sizes, tuple(constants.items())
    main = Program(function, *given, frozenset(), k.num_warps, k.num_stages)
    if k.split_k == 1:
        return (main,)
    return (main, sum_program(k, dtype, divisible(p.C // p.G), FILTER_BLOCK))


def weight_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    """Return the launches; see :class:`tilewise.kernels.triton.Implementation`."""
    dy, x, dw, workspace = tensors
    p, groups = problem, int(merged_groups(kernel, problem, variant))
    rows = row_constants(p, variant, TAP_SIDE)
    output = described(dy, (p.N, *p.output_sizes, p.K), row_block(rows, kernel.tile_m))
    passed = (output, described_input(x, p, row_block(rows, kernel.tile_n)), dw, workspace)
    grid = (tap_tiles(p), triton.cdiv(p.G, groups), kernel.split_k)
    programs = weight_programs(kernel, p, variant, dtype)
    return launches_of(programs, grid, passed, sizes_of(p) | {"groups": groups}, weight_elements(p))
