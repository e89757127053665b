"""The pipeline ``relay``: one warp loads boxes of pixels for eight others that multiply; programs are persistent.

The loading warp runs ahead by `num_stages` steps. Tiles of at most ``HALF_TILE`` results are computed by two sets of
four warps in turn, so that one multiplies while the other stores; larger ones by all eight together. Triton's
interpreter has no Gluon, in which the programs are written: tests compile them, and run them on a GPU.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import BOX_PIXELS
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import BARRIER_BYTES, LOADED_ROWS, RESULT_BYTES, RESULT_ELEMENTS, STORED_ROWS
from tilewise.kernels.triton._pipeline import Pipeline
from tilewise.kernels.triton._shapes import HALF_TILE
from tilewise.kernels.triton.pipelines._box import Boxing
from tilewise.ops import Target, operand_bytes

_BOXING = Boxing("relay")
_MULTIPLYING_WARPS = 8
_ROW_BYTES = 128  # of a step's channels: the widest rows that matrix units read without bank conflicts


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    k = kernel
    if k.num_warps != _MULTIPLYING_WARPS or k.split_k != 1:
        return f"relay takes {_MULTIPLYING_WARPS} warps and split_k 1"
    if k.tile_k * operand_bytes(target.dtype) != _ROW_BYTES:
        return f"relay takes a tile_k of {_ROW_BYTES} bytes"
    if k.tile_m not in BOX_PIXELS or not 64 <= k.tile_n <= 256:
        return f"relay takes a tile_m of {', '.join(map(str, BOX_PIXELS))} and a tile_n of 64 to 256"
    results = k.tile_m * k.tile_n
    sets = 2 if results <= HALF_TILE else 1
    needed = k.num_stages * (k.tile_m + k.tile_n) * _ROW_BYTES + sets * results * RESULT_BYTES + BARRIER_BYTES
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def _limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, relay = problem, kernel.pipeline == "relay"
    if not np.any(relay):  # most pools would compute these rules for nothing
        return
    yield relay & ((p.G > 1) | (p.stride_d * p.stride_h * p.stride_w > 1)), "relay takes no groups and no stride"
    yield relay & (p.C % RESULT_ELEMENTS != 0), LOADED_ROWS
    yield relay & (p.K % RESULT_ELEMENTS != 0), STORED_ROWS


RELAY = Pipeline(
    name="relay",
    number=22,
    variants=(("grouped_conv", "forward"),),
    programs="tilewise.kernels.triton.programs.conv.gluon._relay",
    described=True,
    persistent=True,
    k_order="tapwise",
    illegal=_illegal,
    limits={"grouped_conv": _limits},
    padded_rows=_BOXING.padded_rows,
    formulas=Formulas("relay", tiles_m=_BOXING.tiles_m),
)
