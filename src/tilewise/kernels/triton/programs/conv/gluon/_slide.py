"""The programs of ``slide``, in Gluon: a tile of merged groups slides down the images, row by row of pixels.

One warp loads: a step is a row of pixels of the output, for which it loads the rows of the input that no step before
has loaded. The filter of the tile's groups, block-diagonal, stays in shared memory, and a program computes many rows.
While one is multiplied, the one before is stored. Of tiles of 32 channels, a program computes two at once. bwd_data
with a stride of one is forward with the taps turned around, and with input and output channels exchanged.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from math import gcd
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

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._boxes import ROW_CHANNELS, fewest_row_steps
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton._shapes import TAP_SIDE, merged_groups
from tilewise.kernels.triton.programs._epilogue import ended_pixels, epilogue_pointers
from tilewise.kernels.triton.programs._program import (
    TRITON_TYPES,
    VECTOR,
    Launch,
    Program,
    compute_units,
    described,
    swizzled_descriptor,
)
from tilewise.kernels.triton.programs.conv._merged import merged_alignment, place_of
from tilewise.kernels.triton.programs.conv._shared import (
    channel_divisors,
    launches_of,
    pixel_at,
    sizes_of,
    store_pixels,
)
from tilewise.kernels.triton.programs.conv.gluon._ring import new_ring
from tilewise.kernels.triton.programs.conv.gluon._slide_rows import (
    described_input,
    is_last,
    is_new,
    load_under,
    place_of_row,
    row_block,
    row_constants,
    slot_of,
)
from tilewise.kernels.triton.programs.conv.gluon._slide_weight import weight_launches, weight_programs
from tilewise.ops import GroupedConvProblem, input_elements, output_elements

if TYPE_CHECKING:
    from torch import Tensor

_WAVES = 4  # of programs, where the tiles of groups alone do not fill the units evenly


@gluon.jit
def _share(rows):
    """Return the first row of this program, and the one after its last."""
    program, programs = gl.program_id(0).to(gl.int64), gl.num_programs(0)
    return (rows * program // programs).to(gl.int32), (rows * (program + 1) // programs).to(gl.int32)


@gluon.jit
def _keep_filter(
    w, ring, first, held, Cg, Kg, SET: gl.constexpr, TAPS: gl.constexpr, TURNED: gl.constexpr, RUN: gl.constexpr,
):  # fmt: skip
    """Copy the filter of a set of groups to shared memory, with zeros where channels of two groups meet."""
    side: gl.constexpr = ring.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // side, side // 8], [gl.num_warps(), 1], [1, 0])
    row = gl.arange(0, side, gl.SliceLayout(1, layout))  # the channels that w has first
    col = gl.arange(0, side, gl.SliceLayout(0, layout))
    if TURNED:
        rows, cols = Cg, Kg
    else:
        rows, cols = Kg, Cg
    group, place = place_of(col, cols, RUN)
    mask = ((row // rows)[:, None] == group[None, :]) & (row < held * rows)[:, None] & (group < held)[None, :]
    stride = gl.multiple_of(TAPS * cols, RUN)
    w_row = w + (first * rows + row)[:, None] * stride + place[None, :]
    for tap in gl.static_range(TAPS):
        at = TAPS - 1 - tap if TURNED else tap
        ring.index(SET * TAPS + tap).store(gl.load(w_row + gl.multiple_of(at * cols, RUN), mask=mask, other=0.0))


@gluon.jit
def _load(
    x, ring, ready, empty, begin, end, first, groups, sizes, steps,
    IMAGES: gl.constexpr, COLUMNS: gl.constexpr, ADVANCE: gl.constexpr, ROWS: gl.constexpr,
    HIGH: gl.constexpr, WIDE: gl.constexpr, TURNED: gl.constexpr, SETS: gl.constexpr,
):  # fmt: skip
    """Fill the ring with the rows of this program, for each set of groups."""
    C, Cg, Do, Ho, Wo = sizes
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_h, dilation_w = steps
    if TURNED:
        pad_d = -pad_d
        pad_h = (HIGH - 1) * dilation_h - pad_h
        pad_w = (WIDE - 1) * dilation_w - pad_w
    loaded = 0
    for row in range(begin, end):
        n, d, h, w = place_of_row(row, Do, Ho, Wo, IMAGES, COLUMNS)
        fresh = gl.where(is_new(row, begin, Ho), 0, HIGH - ADVANCE)  # the rows under the other taps are there
        before = loaded
        for set in gl.static_range(SETS):
            loaded = load_under(
                x, ring, ready, empty, before, fresh, n, d * stride_d - pad_d, h * stride_h - pad_h,
                w * stride_w - pad_w, (first + set * groups) * Cg, C, stride_w, dilation_h, dilation_w,
                set, HIGH, WIDE, ROWS,
            )  # fmt: skip


@gluon.jit
def _store(
    acc, y, bias, residual, row, first, held, sizes,
    IMAGES: gl.constexpr, COLUMNS: gl.constexpr, OUTPUTS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Store a row of results."""
    K, Kg, N, Do, Ho, Wo = sizes
    side: gl.constexpr = acc.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // side, side // 8], [gl.num_warps(), 1], [1, 0])
    acc = gl.convert_layout(acc, layout)
    n, d, h, w = place_of_row(row, Do, Ho, Wo, IMAGES, COLUMNS)
    lane = gl.arange(0, IMAGES * COLUMNS, gl.SliceLayout(1, layout))
    col = gl.arange(0, side, gl.SliceLayout(0, layout))
    image, column = n + lane // COLUMNS, w + lane % COLUMNS
    inside = (image < N) & (column < Wo)
    pixel, at = pixel_at(image, d, h, column, Do, Ho, Wo), first * Kg
    channels, filters = gl.multiple_of(K, OUTPUTS), gl.multiple_of(held * Kg, OUTPUTS)
    if bias is not None:
        bias = gl.multiple_of(bias + at, 2 * OUTPUTS)
    if residual is not None:
        residual = gl.multiple_of(residual + at, 2 * OUTPUTS)
    acc = ended_pixels(acc, pixel, col, inside, channels, filters, 0, bias, residual, ACTIVATION)
    store_pixels(acc, gl.multiple_of(y + at, 2 * OUTPUTS), y, pixel, col, inside, 0, channels, filters, 0, 0, 1)


@gluon.jit
def _multiply(
    y, bias, residual, filters, ring, ready, empty, begin, end, first, groups, G, sizes,
    SET: gl.constexpr, IMAGES: gl.constexpr, COLUMNS: gl.constexpr, ADVANCE: gl.constexpr, ROWS: gl.constexpr,
    HIGH: gl.constexpr, WIDE: gl.constexpr, TURNED: gl.constexpr, OUTPUTS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Compute the rows of a set of groups, and store each while the next one is multiplied."""
    Ho = sizes[4]
    first += SET * groups
    held = gl.minimum(groups, G - first)  # the last set may have fewer, or none
    TILE_M: gl.constexpr = IMAGES * COLUMNS
    TILE_N: gl.constexpr = filters.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TILE_N, 16])
    done = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
    top = 0  # of the rows of the input
    for row in range(begin, end):
        acc = gl.zeros((TILE_M, TILE_N), gl.float32, layout)
        for high in gl.static_range(HIGH):
            for side in gl.static_range(WIDE):
                slot = slot_of(SET, side, top + high, WIDE, ROWS)
                mbarrier.wait(ready.index(slot), (top + high) // ROWS & 1)
                b = filters.index((SET * HIGH + high) * WIDE + side)
                b = b if TURNED else b.permute((1, 0))
                acc = warpgroup_mma(ring.index(slot), b, acc, use_acc=high + side > 0, is_async=True)
        if row > begin:
            _store(done, y, bias, residual, row - 1, first, held, sizes, IMAGES, COLUMNS, OUTPUTS, ACTIVATION)
        done = warpgroup_mma_wait(0, deps=(acc,))
        last = is_last(row, end, Ho)
        for high in gl.static_range(HIGH):
            for side in gl.static_range(WIDE):
                mbarrier.arrive(empty.index(slot_of(SET, side, top + high, WIDE, ROWS)), pred=last | (high < ADVANCE))
        top += gl.where(last, HIGH, ADVANCE)
    if end > begin:
        _store(done, y, bias, residual, end - 1, first, held, sizes, IMAGES, COLUMNS, OUTPUTS, ACTIVATION)


@gluon.jit
def conv_slide(
    x, w, y, bias, residual,
    C, K, Cg, Kg, G, groups, N, Do, Ho, Wo,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_h, dilation_w,
    TILE_N: gl.constexpr, TILE_K: gl.constexpr, NUM_STAGES: gl.constexpr,
    IMAGES: gl.constexpr, COLUMNS: gl.constexpr, ADVANCE: gl.constexpr, HIGH: gl.constexpr, WIDE: gl.constexpr,
    TURNED: gl.constexpr, RUN: gl.constexpr, OUTPUTS: gl.constexpr, ACTIVATION: gl.constexpr,
):  # fmt: skip
    """Compute forward, or bwd_data if TURNED; one step is a row of output pixels."""
    ROWS: gl.constexpr = NUM_STAGES + HIGH - 1
    SETS: gl.constexpr = 64 // TILE_K
    tile: gl.constexpr = gl.NVMMASharedLayout(2 * TILE_K, 16, rank=2)
    first = gl.program_id(1) * (SETS * groups)
    ring = gl.allocate_shared_memory(x.dtype, [SETS * WIDE * ROWS, IMAGES * COLUMNS, TILE_K], tile)
    filters = gl.allocate_shared_memory(x.dtype, [SETS * HIGH * WIDE, TILE_N, TILE_K], tile)
    for set in gl.static_range(SETS):
        held = gl.minimum(groups, G - first - set * groups)
        _keep_filter(w, filters, first + set * groups, held, Cg, Kg, set, HIGH * WIDE, TURNED, RUN)
    ready, empty = new_ring(SETS * WIDE * ROWS, 1)
    fence_async_shared()
    begin, end = _share(gl.cdiv(N, IMAGES) * Do * gl.cdiv(Wo, COLUMNS) * Ho)
    inputs, outputs = (C, Cg, Do, Ho, Wo), (K, Kg, N, Do, Ho, Wo)
    steps = (stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_h, dilation_w)
    if SETS == 1:  # below, a tuple with a name would turn its constants into values
        gl.warp_specialize([
            (_multiply, (
                y, bias, residual, filters, ring, ready, empty, begin, end, first, groups, G, outputs,
                0, IMAGES, COLUMNS, ADVANCE, ROWS, HIGH, WIDE, TURNED, OUTPUTS, ACTIVATION,
            )),
            (_load, (
                x, ring, ready, empty, begin, end, first, groups, inputs, steps,
                IMAGES, COLUMNS, ADVANCE, ROWS, HIGH, WIDE, TURNED, SETS,
            )),
        ], [1], [40])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (
                y, bias, residual, filters, ring, ready, empty, begin, end, first, groups, G, outputs,
                0, IMAGES, COLUMNS, ADVANCE, ROWS, HIGH, WIDE, TURNED, OUTPUTS, ACTIVATION,
            )),
            (_multiply, (
                y, bias, residual, filters, ring, ready, empty, begin, end, first, groups, G, outputs,
                1, IMAGES, COLUMNS, ADVANCE, ROWS, HIGH, WIDE, TURNED, OUTPUTS, ACTIVATION,
            )),
            (_load, (
                x, ring, ready, empty, begin, end, first, groups, inputs, steps,
                IMAGES, COLUMNS, ADVANCE, ROWS, HIGH, WIDE, TURNED, SETS,
            )),
        ], [4, 1], [152, 40])  # fmt: skip


def _exchanged(p: GroupedConvProblem, variant: str) -> GroupedConvProblem:
    """Return the problem with input and output channels exchanged in bwd_data."""
    return replace(p, C=p.K, K=p.C) if variant == "bwd_data" else p


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    p = problem
    if p.G == 1:
        return None
    taps = (TAP_SIDE, TAP_SIDE) if variant == "bwd_weight" else (p.Y, p.X)
    return merged_alignment(p, variant, dtype), row_constants(p, variant, taps[0]), taps


def _programs(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    p, k, turned = _exchanged(problem, variant), kernel, variant == "bwd_data"
    neighbours = (p.K if turned else p.C) // p.G  # in the filter
    results = int(merged_groups(kernel, problem, variant)) * (p.K // p.G)
    rows, stored, names = row_constants(problem, variant, p.Y), TRITON_TYPES[dtype], conv_slide.arg_names
    constants: dict[str, int | str] = {"TILE_N": k.tile_n, "TILE_K": k.tile_k, "NUM_STAGES": k.num_stages}
    constants |= {**dict(rows), "HIGH": p.Y, "WIDE": p.X, "TURNED": int(turned)}
    constants |= {"RUN": gcd(neighbours, VECTOR), "OUTPUTS": gcd(results, p.K, VECTOR), "ACTIVATION": kind.activation}
    image = ("x", swizzled_descriptor(stored, row_block(rows, k.tile_k)))
    pointers = (image, ("w", stored), ("y", stored), *epilogue_pointers(kind, dtype))
    ordered = tuple((name, constants[name]) for name in names if name in constants)
    sizes = tuple(name for name in names if name not in {*constants, *dict(pointers)})
    divisors = frozenset((name, divisor) for name, divisor in channel_divisors(p) if name in sizes)
    return (Program(conv_slide, pointers, sizes, ordered, divisors, k.num_warps, k.num_stages),)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:  # fmt: skip
    image, *rest = tensors
    p, groups, turned = problem, int(merged_groups(kernel, problem, variant)), variant == "bwd_data"
    block = row_block(row_constants(p, variant, p.Y), kernel.tile_k)
    read = described(image, (p.N, *p.output_sizes, p.K), block) if turned else described_input(image, p, block)
    sizes = sizes_of(_exchanged(p, variant)) | {"groups": groups}
    if turned:
        sizes |= {"Do": p.Di, "Ho": p.Hi, "Wo": p.Wi}
    tiles = triton.cdiv(p.G, groups * (ROW_CHANNELS // kernel.tile_k))
    shares = compute_units() // tiles or triton.cdiv(_WAVES * compute_units(), tiles)
    grid = (min(shares, int(fewest_row_steps(p, variant))), tiles, 1)
    programs = _programs(kernel, p, variant, dtype, epilogue.kind)
    results = input_elements(p) if turned else output_elements(p)
    return launches_of(programs, grid, (read, *rest), sizes, results, epilogue)


_IMAGES = Implementation(_programs, _launches, _alignment)

IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): _IMAGES,
    ("grouped_conv", "bwd_data"): _IMAGES,
    ("grouped_conv", "bwd_weight"): Implementation(weight_programs, weight_launches, _alignment),
}
