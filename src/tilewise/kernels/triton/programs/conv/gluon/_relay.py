"""The programs of the pipeline ``relay``, in Gluon: warps with roles, a ring of steps in shared memory between them.

One warp loads: a step is a box of pixels and the filter's rows under one tap. It waits until a place of the ring is
empty. The warps that multiply wait until it is ready, multiply asynchronously, and give it back one step later. A
finished tile goes through shared memory, and is stored while the next one is computed.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from tilewise.kernels.triton._boxes import BOX_PIXELS, Box, box_of, grid_of, joined, padded_pixels
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton._shapes import HALF_TILE
from tilewise.kernels.triton.programs._program import (
    TRITON_TYPES,
    Launch,
    Program,
    compute_units,
    described,
    swizzled_descriptor,
)
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor

_WARPS = 8  # that multiply; the registers that each role asks for add up to those of a block


@gluon.jit
def _place(
    item, N, D, H, W, tiles_n,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr, GROUP_M: gl.constexpr,
):  # fmt: skip
    """Return the first pixel (n, d, h, w) of a tile and the number of its columns; GROUP_M boxes share a sweep."""
    deep, high, wide = gl.cdiv(D, BOX_D), gl.cdiv(H, BOX_H), gl.cdiv(W, BOX_W)
    first = item // (GROUP_M * tiles_n) * GROUP_M
    height = gl.minimum(N * deep * high * wide - first, GROUP_M)
    inner = item % (GROUP_M * tiles_n)
    box = first + inner % height
    rest = box // wide
    return rest // high // deep, rest // high % deep * BOX_D, rest % high * BOX_H, box % wide * BOX_W, inner // height


@gluon.jit
def _load(
    x, w, a_ring, b_ring, ready, empty, sizes, filters, tiles, tiles_n, steps_c, steps,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr, NUM_STAGES: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the steps of one tile after another."""
    N, D, H, W = sizes
    Cg, Y, X, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = filters
    count = 0
    for item in range(gl.program_id(0), tiles, gl.num_programs(0)):
        n, d, h, v, tile_n = _place(item, N, D, H, W, tiles_n, BOX_D, BOX_H, BOX_W, GROUP_M)
        for step in range(steps):
            at = count % NUM_STAGES
            mbarrier.wait(empty.index(at), (count // NUM_STAGES & 1) ^ 1)
            tap = step // steps_c
            c = step % steps_c * TILE_K
            rd = tap // (Y * X) * dilation_d - pad_d
            rh = tap // X % Y * dilation_h - pad_h
            rw = tap % X * dilation_w - pad_w
            loaded = ready.index(at)
            mbarrier.expect(loaded, x.block_type.nbytes + w.block_type.nbytes)
            box = a_ring.index(at)._reinterpret(x.dtype, [1, BOX_D, BOX_H, BOX_W, TILE_K], x.layout)
            tma.async_copy_global_to_shared(x, [n, d + rd, h + rh, v + rw, c], loaded, box)
            tma.async_copy_global_to_shared(w, [tile_n * TILE_N, tap * Cg + c], loaded, b_ring.index(at))
            count += 1


@gluon.jit
def _multiply(
    y, a_ring, b_ring, ready, empty, turn, result, sizes, tiles, tiles_n, steps,
    TURN: gl.constexpr, TURNS: gl.constexpr, WARPS: gl.constexpr,
    TILE_N: gl.constexpr, GROUP_M: gl.constexpr, NUM_STAGES: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Compute each tile of this program whose turn it is, and store it."""
    N, D, H, W = sizes
    TILE_M: gl.constexpr = BOX_D * BOX_H * BOX_W
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TILE_N, 16])
    programs = gl.num_programs(0)
    count = TURN * steps
    own = 0
    for item in range(gl.program_id(0) + TURN * programs, tiles, TURNS * programs):
        acc = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
        if TURNS > 1:  # barriers tell odd rounds of the ring from even ones only, so the tile before has to be done
            mbarrier.wait(turn.index(TURN), (own + TURN + 1) & 1)
            own += 1
        for step in range(steps):
            at = count % NUM_STAGES
            mbarrier.wait(ready.index(at), count // NUM_STAGES & 1)
            b = b_ring.index(at).permute((1, 0))
            product = warpgroup_mma(a_ring.index(at), b, acc, use_acc=step > 0, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(product,))  # the step before is done
            mbarrier.arrive(empty.index((count + NUM_STAGES - 1) % NUM_STAGES), pred=step > 0)
            count += 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index((count + NUM_STAGES - 1) % NUM_STAGES))
        if TURNS > 1:
            mbarrier.arrive(turn.index(1 - TURN))
            count += steps
        n, d, h, v, tile_n = _place(item, N, D, H, W, tiles_n, BOX_D, BOX_H, BOX_W, GROUP_M)
        tma.store_wait(0)
        result.store(acc.to(y.dtype))
        fence_async_shared()
        box = result._reinterpret(y.dtype, [1, BOX_D, BOX_H, BOX_W, TILE_N], y.layout)
        tma.async_copy_shared_to_global(y, [n, d, h, v, tile_n * TILE_N], box)
    tma.store_wait(0)


@gluon.jit
def forward_relay(
    x, w, y,
    N, Do, Ho, Wo, Cg, Kg, Z, Y, X, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr, NUM_STAGES: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr, TURNS: gl.constexpr, WARPS: gl.constexpr,
):  # fmt: skip
    """Compute forward; one step is one filter tap x TILE_K channels."""
    TILE_M: gl.constexpr = BOX_D * BOX_H * BOX_W
    a_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES, TILE_M, TILE_K], w.layout)
    b_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES, TILE_N, TILE_K], w.layout)
    results = gl.allocate_shared_memory(y.dtype, [TURNS, TILE_M, TILE_N], w.layout)
    ready = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [NUM_STAGES, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(turn.index(0), count=1)
    mbarrier.init(turn.index(1), count=1)
    for i in gl.static_range(NUM_STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    fence_async_shared()
    tiles_n, steps_c = gl.cdiv(Kg, TILE_N), gl.cdiv(Cg, TILE_K)
    steps = Z * Y * X * steps_c  # of a tile
    tiles = N * gl.cdiv(Do, BOX_D) * gl.cdiv(Ho, BOX_H) * gl.cdiv(Wo, BOX_W) * tiles_n
    sizes, filters = (N, Do, Ho, Wo), (Cg, Y, X, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w)
    if TURNS == 1:  # below, a tuple with a name would turn its constants into values
        gl.warp_specialize([
            (_multiply, (
                y, a_ring, b_ring, ready, empty, turn, results.index(0), sizes, tiles, tiles_n, steps, 0, 1, WARPS,
                TILE_N, GROUP_M, NUM_STAGES, BOX_D, BOX_H, BOX_W,
            )),
            (_load, (
                x, w, a_ring, b_ring, ready, empty, sizes, filters, tiles, tiles_n, steps_c, steps,
                TILE_N, TILE_K, GROUP_M, NUM_STAGES, BOX_D, BOX_H, BOX_W,
            )),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (
                y, a_ring, b_ring, ready, empty, turn, results.index(0), sizes, tiles, tiles_n, steps, 0, 2, WARPS,
                TILE_N, GROUP_M, NUM_STAGES, BOX_D, BOX_H, BOX_W,
            )),
            (_multiply, (
                y, a_ring, b_ring, ready, empty, turn, results.index(1), sizes, tiles, tiles_n, steps, 1, 2, WARPS,
                TILE_N, GROUP_M, NUM_STAGES, BOX_D, BOX_H, BOX_W,
            )),
            (_load, (
                x, w, a_ring, b_ring, ready, empty, sizes, filters, tiles, tiles_n, steps_c, steps,
                TILE_N, TILE_K, GROUP_M, NUM_STAGES, BOX_D, BOX_H, BOX_W,
            )),
        ], [WARPS, 1], [232, 40])  # fmt: skip


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    grid = grid_of(problem, variant)
    return tuple(box_of(grid, n) for n in BOX_PIXELS)


def _blocks(box: Box, kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """Return the blocks that the descriptors of x, w and y move."""
    return (1, *box, kernel.tile_k), (kernel.tile_n, kernel.tile_k), (1, *box, kernel.tile_n)


def _programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    box, k = box_of(grid_of(problem, variant), kernel.tile_m), kernel
    turns = 2 if k.tile_m * k.tile_n <= HALF_TILE else 1
    constants = {"TILE_N": k.tile_n, "TILE_K": k.tile_k, "GROUP_M": k.group_m, "NUM_STAGES": k.num_stages}
    constants |= {"BOX_D": box.d, "BOX_H": box.h, "BOX_W": box.w, "TURNS": turns, "WARPS": _WARPS // turns}
    blocks = zip("xwy", _blocks(box, kernel), strict=True)
    pointers = tuple((n, swizzled_descriptor(TRITON_TYPES[dtype], block)) for n, block in blocks)
    sizes = tuple(n for n in forward_relay.arg_names if n not in constants and n not in ("x", "w", "y"))
    warps = _WARPS // turns
    return (Program(forward_relay, pointers, sizes, tuple(constants.items()), frozenset(), warps, k.num_stages),)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    x, w, y, _ = tensors
    p, grid = problem, grid_of(problem, variant)
    box = box_of(grid, kernel.tile_m)
    sizes = p.to_dict() | dict(zip(("N", "Do", "Ho", "Wo"), map(int, grid), strict=True)) | {"Cg": p.C, "Kg": p.K}
    image, taps = joined(p, p.Di, p.Hi, p.Wi), p.Z * p.Y * p.X
    shapes = ((*map(int, image), p.C), (p.K, taps * p.C), (*map(int, grid), p.K))
    passed = [described(t, s, b) for t, s, b in zip((x, w, y), shapes, _blocks(box, kernel), strict=True)]
    tiles = triton.cdiv(p.K, kernel.tile_n) * (int(padded_pixels(grid, box)) // kernel.tile_m)
    (program,) = _programs(kernel, p, variant, dtype)
    return (Launch(program, (min(tiles, compute_units()), 1, 1), passed, [sizes[n] for n in program.sizes]),)


IMPLEMENTATIONS = {("grouped_conv", "forward"): Implementation(_programs, _launches, _alignment)}
