"""The pipeline ``relay``: one warp loads boxes of pixels for eight others that multiply; programs are persistent.

Boxes have `tile_m` pixels, in bwd_weight `tile_k`. The loading warp runs ahead by `num_stages` steps. Tiles of at most
``HALF_TILE`` results are computed by two sets of four warps in turn, so that one multiplies while the other stores;
larger ones by all eight together. Operands whose channels 8 does not divide are copied first, with padded channels;
results with such channels are stored without a descriptor. Triton's interpreter has no Gluon, in which the programs are
written: tests compile them, and run them on a GPU.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import BOX_PIXELS, piece_columns
from tilewise.kernels.triton._copies import copied_elements
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import BARRIER_BYTES, MAX_WORKSPACE_BYTES, RESULT_BYTES
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, Pipeline
from tilewise.kernels.triton._shapes import turns_of
from tilewise.kernels.triton.pipelines._box import Boxing
from tilewise.ops import Target, operand_bytes

_BOXING = Boxing("relay")
_MULTIPLYING_WARPS = 8
_MAX_STRIDE = 2  # the program has a descriptor for odd and even rows and columns each
_ROW_BYTES = 128  # of a step's channels: the widest rows that matrix units read without bank conflicts


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    k, weight = kernel, target.variant == "bwd_weight"
    if k.num_warps != _MULTIPLYING_WARPS or (k.split_k != 1 and not weight):
        return f"relay takes {_MULTIPLYING_WARPS} warps" + ("" if weight else " and split_k 1")
    if k.tile_k * operand_bytes(target.dtype) != _ROW_BYTES:
        return f"relay takes a tile_k of {_ROW_BYTES} bytes"
    if k.tile_m not in BOX_PIXELS or not 64 <= k.tile_n <= 256:
        return f"relay takes a tile_m of {', '.join(map(str, BOX_PIXELS))} and a tile_n of 64 to 256"
    kept = 0 if weight else turns_of(k) * k.tile_m * k.tile_n * RESULT_BYTES
    needed = k.num_stages * (k.tile_m + k.tile_n) * _ROW_BYTES + kept + BARRIER_BYTES
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def _limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, relay = problem, kernel.pipeline == "relay"
    if not np.any(relay):  # most pools would compute these rules for nothing
        return
    others = (p.stride_d > 1) | (p.stride_h > _MAX_STRIDE) | (p.stride_w > _MAX_STRIDE)
    yield relay & ((p.G > 1) | others), f"relay takes no groups, and strides of rows and columns up to {_MAX_STRIDE}"
    # each row and column of a stride is an image, which must not be empty
    yield relay & ((p.Hi < p.stride_h) | (p.Wi < p.stride_w)), "relay takes no image that is smaller than a stride"
    yield (
        relay & (_copied(p, variant) * RESULT_BYTES > MAX_WORKSPACE_BYTES),
        "copies of operands need more than 2 GiB of workspace",
    )


def _copied(problem: ProblemLike, variant: str) -> Array:
    first, second = copied_elements(problem, variant)
    return first + second


def _workspace(i: FeatureInputs, size: Array) -> Array:
    """Add the bytes of the copies."""
    here = i.k.pipeline == "relay"
    return size + here * (_copied(i.p, i.variant) * RESULT_BYTES) if here.any() else size


RELAY = Pipeline(
    name="relay",
    number=22,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv.gluon._relay",
    described=True,
    persistent=True,
    k_order="tapwise",
    illegal=_illegal,
    limits={"grouped_conv": _limits},
    columns=piece_columns,
    padded_rows=_BOXING.padded_rows,
    padded_k=_BOXING.padded_k,
    copied=_copied,
    formulas=Formulas("relay", steps=_BOXING.steps, tiles_m=_BOXING.tiles_m, workspace=_workspace),
)
