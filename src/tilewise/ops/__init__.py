"""What a problem is: dimensions, output sizes, FLOPs, bytes, group key, validation. One file an op; numpy-free."""

from tilewise.ops._base import GemmDims, Problem, require_int, require_int64
from tilewise.ops._registry import OPS
from tilewise.ops.gemm import GemmProblem
from tilewise.ops.grouped_conv import GroupedConvProblem
from tilewise.ops.target import Target

__all__ = [
    "OPS",
    "GemmDims",
    "GemmProblem",
    "GroupedConvProblem",
    "Problem",
    "Target",
    "require_int",
    "require_int64",
]
