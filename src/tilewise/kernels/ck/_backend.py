"""The backend contract of CK Tile's kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.kernels._contract import Backend, ParsedName
from tilewise.kernels._formulas import Traits
from tilewise.kernels.ck._ck_kernel import CkKernel, parse_name
from tilewise.kernels.ck._ck_rules import (
    CK_DTYPES,
    CONV_PIPELINES,
    GEMM_PIPELINES,
    illegal_reason,
    name_fault,
    support_checks,
)

if TYPE_CHECKING:
    from tilewise.kernels.ck._instance import Instance

WARPS = 4  # of a kernel whose name omits them

# Cost models are calibrated by these numbers: never change one. Triton's pipelines have others.
_NUMBERS = {
    "basic_async_v1": 0,
    "basic_v1": 1,
    "compv1": 2,
    "compv2": 3,
    "compv3": 4,
    "compv4": 5,
    "compv5": 6,
    "compv6": 7,
    "mem": 10,
    "preshufflev1": 14,
    "preshufflev2": 15,
    "depthwise": 21,
}


def _numbers(op: str) -> dict[str, int]:
    return {name: _NUMBERS[name] for name in (CONV_PIPELINES if op == "grouped_conv" else GEMM_PIPELINES)}


def _common_columns(columns: SimpleNamespace) -> SimpleNamespace:
    """Set Triton's columns: the warps of a block, the buffers in shared memory as stages, and 1 for an unsplit K."""
    warps, one = columns.warp_m * columns.warp_n * columns.warp_k, np.ones_like(columns.tile_m)
    warps = np.where(warps > 0, warps, WARPS)
    stages = one + columns.double_smem_buffer
    split = np.maximum(columns.split_k, 1)
    return SimpleNamespace(**{**vars(columns), "split_k": split}, num_warps=warps, num_stages=stages, group_m=one)


def _traits(columns: SimpleNamespace) -> Traits:
    yes = np.ones(np.shape(columns.tile_m), dtype=bool)
    persistent = yes & ((columns.persistent > 0) | (columns.streamk_enabled > 0))
    matrix_units = yes & (columns.pipeline != "depthwise")
    return Traits.plain(columns, staged=yes, all_stages_shared=yes, persistent=persistent, matrix_units=matrix_units)


def _parsed(name: str) -> ParsedName:
    parsed = parse_name(name)
    return ParsedName(parsed.op, parsed.variant, parsed.dtype, parsed.kernel)


def _instance_of(variant: str, dtype: str, kernel: Any) -> Instance:
    from tilewise.kernels.ck._instance import Instance  # only conversions need it

    return Instance(variant, dtype, kernel)


CK_TILE = Backend(
    name="ck_tile",
    label="CK Tile",
    kernel=CkKernel,
    illegal=illegal_reason,
    checks=support_checks,
    dtypes=CK_DTYPES,
    pipelines=_numbers,
    parse_name=_parsed,
    name_fault=name_fault,
    common_columns=_common_columns,
    traits=_traits,
    instance_of=_instance_of,
)
