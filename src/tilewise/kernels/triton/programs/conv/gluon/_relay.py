"""The programs of the pipeline ``relay``, in Gluon: warps with roles, a ring of steps in shared memory between them.

A step is a box of pixels and the filter's channels under one tap (see ``_ring``). A finished tile
goes through shared memory, and is stored while the next one is computed. bwd_data is forward with the taps turned
around, and with input and output channels exchanged: `x` is the output's gradient. With a stride, each residue class of
input pixels has tiles of its own; see ``_classes``.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from math import gcd
from typing import TYPE_CHECKING

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
)

from tilewise.kernels.triton._boxes import BOX_PIXELS, Box, box_of, grid_of, joined, padded_pixels
from tilewise.kernels.triton._copies import padded_channels
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
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
from tilewise.kernels.triton.programs.conv._box_loads import is_strided
from tilewise.kernels.triton.programs.conv._copies import copies_of, copy_programs, stored_divisor
from tilewise.kernels.triton.programs.conv._shared import pixel_at, reach_of
from tilewise.kernels.triton.programs.conv.gluon._classes import class_of, class_steps, class_tap
from tilewise.kernels.triton.programs.conv.gluon._images import copy_input, described_images, image_types, store_box
from tilewise.kernels.triton.programs.conv.gluon._relay_weight import weight_launches, weight_programs
from tilewise.kernels.triton.programs.conv.gluon._ring import (
    new_ring,
    new_turns,
    pass_turn,
    product_of,
    wait_turn,
)
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor
    from triton.tools.tensor_descriptor import TensorDescriptor


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
    x, x01, x10, x11, w, a_ring, b_ring, ready, empty, sizes, filters, counts,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
    TURNED: gl.constexpr, STRIDED: gl.constexpr, CLASSES: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the steps of one tile after another."""
    STAGES: gl.constexpr = a_ring.shape[0]
    N, D, H, W, Z = sizes
    items, tiles, tiles_n, steps_c, steps = counts
    Cg, Kg, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = filters
    count = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        own, tile, residue_h, residue_w = steps, item, 0, 0
        if CLASSES:
            own = class_steps(item, tiles, Z, steps_c, filters)
            tile, residue_h, residue_w = class_of(item, tiles, filters)
        n, d, h, v, tile_n = _place(tile, N, D, H, W, tiles_n, BOX_D, BOX_H, BOX_W, GROUP_M)
        for step in range(own):
            at = count % STAGES
            mbarrier.wait(empty.index(at), (count // STAGES & 1) ^ 1)
            tap = step // steps_c
            c = step % steps_c * TILE_K
            if CLASSES:
                tap, rd, rh, rw = class_tap(tap, residue_h, residue_w, filters)
            else:
                rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
                rd, rh, rw = rd - pad_d, rh - pad_h, rw - pad_w
                if TURNED:
                    rd, rh, rw = -rd, -rh, -rw
            filter = [c, tap * Kg + tile_n * TILE_N] if TURNED else [tile_n * TILE_N, tap * Cg + c]
            loaded = ready.index(at)
            mbarrier.expect(loaded, x.block_type.nbytes + w.block_type.nbytes)
            box = a_ring.index(at)._reinterpret(x.dtype, [1, BOX_D, BOX_H, BOX_W, TILE_K], x.layout)
            copy_input(x, x01, x10, x11, n, d, h, v, c, rd, rh, rw, stride_h, stride_w, loaded, box, STRIDED)
            tma.async_copy_global_to_shared(w, filter, loaded, b_ring.index(at))
            count += 1


@gluon.jit
def _store_rows(
    y, result, n, d, h, w, first, stored, residue_h, residue_w, stride_h, stride_w,
    WARPS: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
):  # fmt: skip
    """Store a tile whose rows no descriptor can store: a warp takes neighbouring channels of a pixel."""
    D, H, W, C = stored
    layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [WARPS, 1], [1, 0])
    lane = gl.arange(0, result.shape[0], gl.SliceLayout(1, layout))
    c = first + gl.arange(0, result.shape[1], gl.SliceLayout(0, layout))
    d = d + lane // (BOX_H * BOX_W)
    h = (h + lane // BOX_W % BOX_H) * stride_h + residue_h
    w = (w + lane % BOX_W) * stride_w + residue_w
    mask = ((d < D) & (h < H) & (w < W))[:, None] & (c < C)[None, :]
    pixel = pixel_at(n, d, h, w, D, H, W)
    gl.store(y + pixel[:, None] * C + c[None, :], result.load(layout), mask=mask)


@gluon.jit
def _multiply(
    y, y01, y10, y11, a_ring, b_ring, ready, empty, turn, result, sizes, filters, stored, counts,
    TURN: gl.constexpr, TURNS: gl.constexpr, WARPS: gl.constexpr,
    TILE_N: gl.constexpr, GROUP_M: gl.constexpr, BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr,
    TURNED: gl.constexpr, CLASSES: gl.constexpr, DESCRIBED: gl.constexpr,
):  # fmt: skip
    """Compute each tile of this program whose turn it is, and store it."""
    N, D, H, W, Z = sizes
    items, tiles, tiles_n, steps_c, steps = counts
    TILE_M: gl.constexpr = BOX_D * BOX_H * BOX_W
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, TILE_N, 16])
    programs = gl.num_programs(0)
    count = TURN * steps
    if CLASSES and TURN > 0:
        count = class_steps(gl.program_id(0), tiles, Z, steps_c, filters)
    for item in range(gl.program_id(0) + TURN * programs, items, TURNS * programs):
        own, both, tile, residue_h, residue_w, stride_h, stride_w = steps, TURNS * steps, item, 0, 0, 1, 1
        if CLASSES:
            own = class_steps(item, tiles, Z, steps_c, filters)
            both = own + class_steps(item + programs, tiles, Z, steps_c, filters) if TURNS > 1 else own
            tile, residue_h, residue_w = class_of(item, tiles, filters)
            _, _, _, _, stride_h, stride_w, _, _, _, _, _, _ = filters
        acc = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
        wait_turn(turn, item // (TURNS * programs), TURN, TURNS)
        acc = product_of(a_ring, b_ring, ready, empty, acc, count, own, False, not TURNED)
        pass_turn(turn, TURN, TURNS)
        count += both
        n, d, h, v, tile_n = _place(tile, N, D, H, W, tiles_n, BOX_D, BOX_H, BOX_W, GROUP_M)
        if DESCRIBED:
            tma.store_wait(0)
            result.store(acc.to(y.dtype))
            fence_async_shared()
            box = result._reinterpret(y.dtype, [1, BOX_D, BOX_H, BOX_W, TILE_N], y.layout)
            store_box(y, y01, y10, y11, n, d, h, v, tile_n * TILE_N, residue_h, residue_w, box, CLASSES)
        else:
            result.store(acc.to(result.dtype))
            _store_rows(
                y, result, n, d, h, v, tile_n * TILE_N, stored, residue_h, residue_w, stride_h, stride_w,
                WARPS, BOX_H, BOX_W,
            )  # fmt: skip
    if DESCRIBED:
        tma.store_wait(0)


@gluon.jit
def conv_relay(
    x, x01, x10, x11, w, y, y01, y10, y11, N, Do, Ho, Wo, high, wide, stored, Cg, Kg, Z, Y, X,
    stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, GROUP_M: gl.constexpr, NUM_STAGES: gl.constexpr,
    BOX_D: gl.constexpr, BOX_H: gl.constexpr, BOX_W: gl.constexpr, TURNS: gl.constexpr, WARPS: gl.constexpr,
    TURNED: gl.constexpr, STRIDED: gl.constexpr, CLASSES: gl.constexpr, DESCRIBED: gl.constexpr,
):  # fmt: skip
    """Compute forward, or bwd_data if TURNED; one step is one filter tap x TILE_K channels.

    The tiled pixels are N x Do x Ho x Wo, those of a residue class with CLASSES. `Cg` and `Kg` are channels as they
    are read, perhaps from copies. The result has `stored` channels, and images of `high` x `wide`.
    """
    TILE_M: gl.constexpr = BOX_D * BOX_H * BOX_W
    a_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES, TILE_M, TILE_K], w.layout)
    b_ring = gl.allocate_shared_memory(x.dtype, [NUM_STAGES, w.block_type.shape[0], w.block_type.shape[1]], w.layout)
    results = gl.allocate_shared_memory(x.dtype, [TURNS, TILE_M, TILE_N], w.layout)
    ready, empty = new_ring(NUM_STAGES, 1)
    turn = new_turns()
    fence_async_shared()
    tiles_n, steps_c = gl.cdiv(Kg, TILE_N), gl.cdiv(Cg, TILE_K)
    tiles = N * gl.cdiv(Do, BOX_D) * gl.cdiv(Ho, BOX_H) * gl.cdiv(Wo, BOX_W) * tiles_n
    items, steps = tiles * stride_h * stride_w if CLASSES else tiles, Z * Y * X * steps_c  # of a tile without classes
    sizes, result, counts = (N, Do, Ho, Wo, Z), (Do, high, wide, stored), (items, tiles, tiles_n, steps_c, steps)
    filters = (Cg, Kg, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w)
    if TURNS == 1:  # below, a tuple with a name would turn its constants into values
        gl.warp_specialize([
            (_multiply, (
                y, y01, y10, y11, a_ring, b_ring, ready, empty, turn, results.index(0), sizes, filters, result,
                counts, 0, 1, WARPS, TILE_N, GROUP_M, BOX_D, BOX_H, BOX_W, TURNED, CLASSES, DESCRIBED,
            )),
            (_load, (
                x, x01, x10, x11, w, a_ring, b_ring, ready, empty, sizes, filters, counts,
                TILE_N, TILE_K, GROUP_M, BOX_D, BOX_H, BOX_W, TURNED, STRIDED, CLASSES,
            )),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (
                y, y01, y10, y11, a_ring, b_ring, ready, empty, turn, results.index(0), sizes, filters, result,
                counts, 0, 2, WARPS, TILE_N, GROUP_M, BOX_D, BOX_H, BOX_W, TURNED, CLASSES, DESCRIBED,
            )),
            (_multiply, (
                y, y01, y10, y11, a_ring, b_ring, ready, empty, turn, results.index(1), sizes, filters, result,
                counts, 1, 2, WARPS, TILE_N, GROUP_M, BOX_D, BOX_H, BOX_W, TURNED, CLASSES, DESCRIBED,
            )),
            (_load, (
                x, x01, x10, x11, w, a_ring, b_ring, ready, empty, sizes, filters, counts,
                TILE_N, TILE_K, GROUP_M, BOX_D, BOX_H, BOX_W, TURNED, STRIDED, CLASSES,
            )),
        ], [WARPS, 1], [232, 40])  # fmt: skip


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    grid = grid_of(problem, variant)
    boxes = tuple(box_of(grid, n) for n in BOX_PIXELS)
    return boxes, is_strided(problem), gcd(problem.C, VECTOR), gcd(problem.K, VECTOR)


def _stored_channels(problem: GroupedConvProblem, variant: str) -> int:
    return problem.C if variant == "bwd_data" else problem.K


def _blocks(box: Box, kernel: Kernel, variant: str) -> tuple[tuple[int, ...], ...]:
    """Return the blocks that the descriptors of x, w and y move."""
    k = kernel
    filter = (k.tile_k, k.tile_n) if variant == "bwd_data" else (k.tile_n, k.tile_k)
    return (1, *box, k.tile_k), filter, (1, *box, k.tile_n)


def _programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    box, k = box_of(grid_of(problem, variant), kernel.tile_m), kernel
    turns = turns_of(k)
    warps = k.num_warps // turns  # the registers that each role asks for add up to those of a block
    constants = {"TILE_N": k.tile_n, "TILE_K": k.tile_k, "GROUP_M": k.group_m, "NUM_STAGES": k.num_stages}
    constants |= {"BOX_D": box.d, "BOX_H": box.h, "BOX_W": box.w, "TURNS": turns, "WARPS": warps}
    divisor, turned = stored_divisor(_stored_channels(problem, variant)), variant == "bwd_data"
    is_described, strided = divisor == VECTOR, is_strided(problem)
    constants |= {"TURNED": int(turned), "STRIDED": int(strided and not turned)}
    constants |= {"CLASSES": int(strided and turned), "DESCRIBED": int(is_described)}
    x, w, y = (swizzled_descriptor(TRITON_TYPES[dtype], block) for block in _blocks(box, kernel, variant))
    pointers = image_types("x", x, strided and not turned) | {"w": w}
    pointers |= (
        image_types("y", y, strided and turned) if is_described else image_types("y", TRITON_TYPES[dtype], False)
    )
    sizes = tuple(n for n in conv_relay.arg_names if n not in constants and n not in pointers)
    known = frozenset({("stored", divisor)} if 1 < divisor < VECTOR else ())
    main = Program(conv_relay, tuple(pointers.items()), sizes, tuple(constants.items()), known, warps, k.num_stages)
    return (*copy_programs(problem, variant, dtype), main)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    *operands, y, workspace = tensors
    p, grid = problem, grid_of(problem, variant)
    box, taps = box_of(grid, kernel.tile_m), p.Z * p.Y * p.X
    (x, w), copies = copies_of(p, variant, dtype, operands, workspace, 0)
    turned, strided, stored = variant == "bwd_data", is_strided(p), _stored_channels(p, variant)
    inputs, outputs = joined(p, p.Di, p.Hi, p.Wi), joined(p, *p.output_sizes)
    read, written = (outputs, inputs) if turned else (inputs, outputs)
    inner, columns = padded_channels(p.K if turned else p.C), padded_channels(p.C)
    sizes = p.to_dict() | dict(zip(("N", "Do", "Ho", "Wo"), map(int, grid), strict=True))
    sizes |= {"high": int(written.h), "wide": int(written.w), "stored": stored}
    sizes |= {"Cg": inner, "Kg": columns if turned else stored}
    x_block, w_block, y_block = _blocks(box, kernel, variant)
    results: tuple[Tensor | TensorDescriptor | None, ...] = (y, None, None, None)
    if stored % VECTOR == 0:
        results = described_images(y, written, stored, p, y_block, strided=strided and turned)
    passed = (
        *described_images(x, read, inner, p, x_block, strided=strided and not turned),
        described(w, (p.K, taps * columns), w_block),
        *results,
    )
    tiles = triton.cdiv(stored, kernel.tile_n) * (int(padded_pixels(grid, box)) // kernel.tile_m)
    items = tiles * (p.stride_h * p.stride_w if turned else 1)
    *_, program = _programs(kernel, p, variant, dtype)
    units = (min(items, compute_units()), 1, 1)
    return (*copies, Launch(program, units, passed, [sizes[n] for n in program.sizes]))


_IMAGES = Implementation(_programs, _launches, _alignment)

IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): _IMAGES,
    ("grouped_conv", "bwd_data"): _IMAGES,
    ("grouped_conv", "bwd_weight"): Implementation(weight_programs, weight_launches, _alignment),
}
