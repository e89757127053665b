"""The programs of ``relay`` in bwd_weight: a step is a box of output pixels, and the input under it.

Columns are pieces of the channels under a tap; a tile takes them from any taps, so that few channels fill it. An item
of work is a tile's share of the boxes. The shares of a split are equally long: boxes beyond the last image are zeros.
Where a box overhangs the output, zeros meet the pixels of the image there: an input that is not finite may reach taps
that do not meet it.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from tilewise.kernels.triton._boxes import PIECE_CHANNELS, Box, box_of, grid_of, joined, piece_columns
from tilewise.kernels.triton._copies import padded_channels, share_elements
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._shapes import turns_of
from tilewise.kernels.triton.programs._program import (
    TRITON_TYPES,
    VECTOR,
    Launch,
    Program,
    compute_units,
    described,
    swizzled_descriptor,
)
from tilewise.kernels.triton.programs._tiles import sum_program, swizzled
from tilewise.kernels.triton.programs.conv._box_loads import boxes_over, is_strided, named, next_start, sides, start_of
from tilewise.kernels.triton.programs.conv._copies import copies_of, copy_programs, stored_divisor
from tilewise.kernels.triton.programs.conv._shared import FILTER_BLOCK, launches_of, reach_of, sizes_of, store_filter
from tilewise.kernels.triton.programs.conv.gluon._images import copy_input, described_images, image_types
from tilewise.kernels.triton.programs.conv.gluon._ring import (
    new_ring,
    new_turns,
    pass_turn,
    product_of,
    wait_turn,
)
from tilewise.ops import GroupedConvProblem, weight_elements

if TYPE_CHECKING:
    from torch import Tensor


@gluon.jit
def _load(
    dy, x, x01, x10, x11, dy_ring, x_ring, ready, empty, items, tiles, sizes, filters, steps,
    TILE_M: gl.constexpr, GROUP_M: gl.constexpr, BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
    STRIDED: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the steps of one item after another."""
    STAGES: gl.constexpr = dy_ring.shape[0]
    PIECES: gl.constexpr = x_ring.shape[0] // STAGES
    PIECE: gl.constexpr = x_ring.shape[2]
    tiles_m, tiles_n = tiles
    D, H, W = sizes
    pieces, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = filters
    count = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        tile_m, tile_n = swizzled(item % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        corners = ((0, 0, 0, 0),) * PIECES  # of each piece, beside that of the box
        for i in gl.static_range(PIECES):
            piece = tile_n * PIECES + i
            rd, rh, rw = reach_of(piece // pieces, Y, X, dilation_d, dilation_h, dilation_w)
            corner = (rd - pad_d, rh - pad_h, rw - pad_w, piece % pieces * PIECE)
            corners = corners[:i] + (corner,) + corners[i + 1 :]  # noqa: RUF005 (not in Triton)
        n, d, h, v = start_of(item // (tiles_m * tiles_n) * steps, D, H, W, BOX_D, BOX_H, BOX_W)
        for _ in range(steps):
            at = count % STAGES
            mbarrier.wait(empty.index(at), (count // STAGES & 1) ^ 1)
            loaded = ready.index(at)
            mbarrier.expect(loaded, dy.block_type.nbytes + PIECES * x.block_type.nbytes)
            box = dy_ring.index(at)._reinterpret(dy.dtype, [1, BOX_D, BOX_H, BOX_W, TILE_M], dy.layout)
            tma.async_copy_global_to_shared(dy, [n, d, h, v, tile_m * TILE_M], loaded, box)
            for i in gl.static_range(PIECES):
                rd, rh, rw, c = corners[i]
                box = x_ring.index(at * PIECES + i)._reinterpret(x.dtype, [1, BOX_D, BOX_H, BOX_W, PIECE], x.layout)
                copy_input(x, x01, x10, x11, n, d, h, v, c, rd, rh, rw, stride_h, stride_w, loaded, box, STRIDED)
            n, d, h, v = next_start(n, d, h, v, D, H, W, BOX_D, BOX_H, BOX_W)
            count += 1


@gluon.jit
def _multiply(
    dw, partial, dy_ring, x_ring, ready, empty, turn, items, tiles, filter, steps,
    TURN: gl.constexpr, TURNS: gl.constexpr, WARPS: gl.constexpr,
    TILE_N: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
):  # fmt: skip
    """Compute each item of this program whose turn it is, and store it."""
    STAGES: gl.constexpr = dy_ring.shape[0]
    TILE_K: gl.constexpr = dy_ring.shape[1]
    TILE_M: gl.constexpr = dy_ring.shape[2]
    PIECE: gl.constexpr = x_ring.shape[2]
    whole_ring = x_ring._reinterpret(x_ring.dtype, [STAGES, TILE_K, TILE_N], x_ring.layout)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TILE_N, 16])
    tiles_m, tiles_n = tiles
    K, C, taps, pieces = filter
    programs = gl.num_programs(0)
    count = TURN * steps
    for item in range(gl.program_id(0) + TURN * programs, items, TURNS * programs):
        acc = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
        wait_turn(turn, item // (TURNS * programs), TURN, TURNS)
        acc = product_of(dy_ring, whole_ring, ready, empty, acc, count, steps, True, False)
        pass_turn(turn, TURN, TURNS)
        count += TURNS * steps
        tile_m, tile_n = swizzled(item % (tiles_m * tiles_n), tiles_m, tiles_n, GROUP_M)
        k = tile_m * TILE_M + gl.arange(0, TILE_M, gl.SliceLayout(1, layout))
        col = tile_n * TILE_N + gl.arange(0, TILE_N, gl.SliceLayout(0, layout))
        tap, c = col // PIECE // pieces, col // PIECE % pieces * PIECE + col % PIECE
        share = item // (tiles_m * tiles_n)
        store_filter(acc, dw, partial, k, tap * C + c, (tap < taps) & (c < C), K, taps * C, K, 0, share, SPLIT_K)


@gluon.jit
def bwd_weight_relay(
    dy, x, x01, x10, x11, dw, partial,
    C, K, N, Do, Ho, Wo, Z, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: gl.constexpr, TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr, SPLIT_K: gl.constexpr,
    NUM_STAGES: gl.constexpr, BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
    TURNS: gl.constexpr, WARPS: gl.constexpr, STRIDED: gl.constexpr,
):  # fmt: skip
    """Compute bwd_weight; one step is a box of TILE_K output pixels."""
    PIECE: gl.constexpr = x.block_type.shape[4]
    tile: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    dy_ring = gl.allocate_shared_memory(dy.dtype, [NUM_STAGES, TILE_K, TILE_M], tile)
    x_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES * (TILE_N // PIECE), TILE_K, PIECE], tile)
    ready, empty = new_ring(NUM_STAGES, 1)
    turn = new_turns()
    fence_async_shared()
    pieces = gl.cdiv(C, PIECE)  # of a tap
    tiles_m, tiles_n = gl.cdiv(K, TILE_M), gl.cdiv(Z * Y * X * pieces, TILE_N // PIECE)
    items = tiles_m * tiles_n * SPLIT_K
    steps = gl.cdiv(boxes_over(N, Do, Ho, Wo, BOX_D, BOX_H, BOX_W), SPLIT_K)  # of an item
    tiles, sizes, filter = (tiles_m, tiles_n), (Do, Ho, Wo), (K, C, Z * Y * X, pieces)
    reach = (pieces, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w)
    if TURNS == 1:  # below, a tuple with a name would turn its constants into values
        gl.warp_specialize([
            (_multiply, (
                dw, partial, dy_ring, x_ring, ready, empty, turn, items, tiles, filter, steps,
                0, 1, WARPS, TILE_N, GROUP_M, SPLIT_K,
            )),
            (_load, (
                dy, x, x01, x10, x11, dy_ring, x_ring, ready, empty, items, tiles, sizes, reach, steps,
                TILE_M, GROUP_M, BOX_D, BOX_H, BOX_W, STRIDED,
            )),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (
                dw, partial, dy_ring, x_ring, ready, empty, turn, items, tiles, filter, steps,
                0, 2, WARPS, TILE_N, GROUP_M, SPLIT_K,
            )),
            (_multiply, (
                dw, partial, dy_ring, x_ring, ready, empty, turn, items, tiles, filter, steps,
                1, 2, WARPS, TILE_N, GROUP_M, SPLIT_K,
            )),
            (_load, (
                dy, x, x01, x10, x11, dy_ring, x_ring, ready, empty, items, tiles, sizes, reach, steps,
                TILE_M, GROUP_M, BOX_D, BOX_H, BOX_W, STRIDED,
            )),
        ], [WARPS, 1], [232, 40])  # fmt: skip


def _blocks(box: Box, kernel: Kernel) -> tuple[tuple[int, ...], ...]:
    """Return the blocks that the descriptors of dy and x load."""
    return (1, *box, kernel.tile_m), (1, *box, PIECE_CHANNELS)


def weight_programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """Return the programs; see :class:`tilewise.kernels.triton.Implementation`."""
    k, box, stored = kernel, box_of(grid_of(problem, variant), kernel.tile_k), TRITON_TYPES[dtype]
    turns = turns_of(k)
    warps = k.num_warps // turns  # the registers that each role asks for add up to those of a block
    constants = {"TILE_M": k.tile_m, "TILE_N": k.tile_n, "TILE_K": k.tile_k, "GROUP_M": k.group_m}
    constants |= {"SPLIT_K": k.split_k, "NUM_STAGES": k.num_stages, **sides(box), "TURNS": turns, "WARPS": warps}
    strided = is_strided(problem)
    constants["STRIDED"] = int(strided)
    dy, x = (swizzled_descriptor(stored, block) for block in _blocks(box, k))
    pointers = {"dy": dy, **image_types("x", x, strided), "dw": stored, "partial": "fp32"}
    sizes = tuple(n for n in bwd_weight_relay.arg_names if n not in pointers and n not in constants)
    divisor = stored_divisor(problem.C)
    divisors = frozenset({("C", divisor)} if divisor > 1 else ())
    given = tuple(pointers.items()), sizes, tuple(constants.items())
    main = Program(bwd_weight_relay, *given, divisors, warps, k.num_stages)
    copying = copy_programs(problem, variant, dtype)
    if k.split_k == 1:
        return (*copying, main)
    return (*copying, main, sum_program(k, dtype, divisor == VECTOR, FILTER_BLOCK))


def weight_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    """Return the launches; see :class:`tilewise.kernels.triton.Implementation`."""
    *operands, dw, workspace = tensors
    p, grid = problem, grid_of(problem, variant)
    programs, results = weight_programs(kernel, p, variant, dtype), weight_elements(p)
    (dy, x), copies = copies_of(p, variant, dtype, operands, workspace, share_elements(kernel, results))
    dy_block, x_block = _blocks(box_of(grid, kernel.tile_k), kernel)
    image = joined(p, p.Di, p.Hi, p.Wi)
    inputs = described_images(x, image, padded_channels(p.C), p, x_block, strided=is_strided(p))
    passed = (described(dy, (*map(int, grid), padded_channels(p.K)), dy_block), *inputs, dw, workspace)
    tiles = triton.cdiv(p.K, kernel.tile_m) * (int(piece_columns(kernel, p)) // kernel.tile_n)
    sizes = sizes_of(p) | named(grid, "N", "Do", "Ho", "Wo")
    units = (min(tiles * kernel.split_k, compute_units()), 1, 1)
    return (*copies, *launches_of(programs[len(copies) :], units, passed, sizes, results))
