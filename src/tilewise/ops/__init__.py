"""What a problem is: dimensions, output sizes, FLOPs, bytes, group key, validation. One file an op; numpy-free."""

from tilewise.ops._base import GemmDims, Problem
from tilewise.ops._registry import OPS
from tilewise.ops.gemm import GemmProblem
from tilewise.ops.grouped_conv import GroupedConvProblem
from tilewise.ops.target import Target

__all__ = ["OPS", "GemmDims", "GemmProblem", "GroupedConvProblem", "Problem", "Target"]
