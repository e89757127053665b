"""Problems of each op: dimensions, validation, output sizes, FLOPs, bytes, group keys, and targets; one file per op.

Takes dimensions, as ints of one problem or as int64 arrays of a table's rows, and gives exact figures of the same form.
Imports the standard library, NumPy and :mod:`tilewise.errors` only. Every other package builds on it.
"""

from __future__ import annotations

from tilewise.ops._dtypes import operand_bytes, result_bytes
from tilewise.ops._gemm import (
    GEMM_LAYOUTS,
    GemmProblem,
    gemm_dims,
    gemm_flops,
    gemm_min_bytes,
    stored_by_column,
    stored_rows,
)
from tilewise.ops._grouped_conv import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    CONV_LAYOUTS,
    CONV_VARIANTS,
    GroupedConvProblem,
    OutputSizes,
    conv_flops,
    conv_min_bytes,
    implicit_gemm,
    input_elements,
    output_elements,
    output_sizes,
    spatial_dims,
    weight_elements,
)
from tilewise.ops._problem import GemmDims, Problem, require_int, require_int64
from tilewise.ops._registry import OPS
from tilewise.ops._target import Target

__all__ = [
    "CHANNELS_FIRST",
    "CHANNELS_LAST",
    "CONV_LAYOUTS",
    "CONV_VARIANTS",
    "GEMM_LAYOUTS",
    "OPS",
    "GemmDims",
    "GemmProblem",
    "GroupedConvProblem",
    "OutputSizes",
    "Problem",
    "Target",
    "conv_flops",
    "conv_min_bytes",
    "gemm_dims",
    "gemm_flops",
    "gemm_min_bytes",
    "implicit_gemm",
    "input_elements",
    "operand_bytes",
    "output_elements",
    "output_sizes",
    "require_int",
    "require_int64",
    "result_bytes",
    "spatial_dims",
    "stored_by_column",
    "stored_rows",
    "weight_elements",
]
