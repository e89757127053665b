"""Problems of each op: dimensions, validation, output sizes, FLOPs, bytes, group keys, and targets; one file per op.

Takes dimensions, as ints of one problem or as int64 arrays of a table's rows, and gives exact figures of the same form.
Ops of the user's own are stated as an :class:`OpDefinition`; :func:`register` makes one known.
Imports the standard library and NumPy only, YAML where it reads a definition. Every other package builds on it.
"""

from __future__ import annotations

from tilewise.ops._defined_problem import NOMINAL_BYTES, NOMINAL_FLOPS, DefinedProblem
from tilewise.ops._definition import RESERVED_COLUMNS, VARIANT, ConfigKind, OpDefinition, ProblemKind
from tilewise.ops._dtypes import operand_bytes, result_bytes, short_dtype
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
from tilewise.ops._registry import (
    ENTRY_POINTS,
    OPS,
    adopt,
    definition_of,
    find_definition,
    is_known,
    known_ops,
    read_definition,
    register,
)
from tilewise.ops._target import Target

__all__ = [
    "CHANNELS_FIRST",
    "CHANNELS_LAST",
    "CONV_LAYOUTS",
    "CONV_VARIANTS",
    "ENTRY_POINTS",
    "GEMM_LAYOUTS",
    "NOMINAL_BYTES",
    "NOMINAL_FLOPS",
    "OPS",
    "RESERVED_COLUMNS",
    "VARIANT",
    "ConfigKind",
    "DefinedProblem",
    "GemmDims",
    "GemmProblem",
    "GroupedConvProblem",
    "OpDefinition",
    "OutputSizes",
    "Problem",
    "ProblemKind",
    "Target",
    "adopt",
    "conv_flops",
    "conv_min_bytes",
    "definition_of",
    "find_definition",
    "gemm_dims",
    "gemm_flops",
    "gemm_min_bytes",
    "implicit_gemm",
    "input_elements",
    "is_known",
    "known_ops",
    "operand_bytes",
    "output_elements",
    "output_sizes",
    "read_definition",
    "register",
    "require_int",
    "require_int64",
    "result_bytes",
    "short_dtype",
    "spatial_dims",
    "stored_by_column",
    "stored_rows",
    "weight_elements",
]
