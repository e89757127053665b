"""The one list of ops: name -> problem type."""

from __future__ import annotations

from tilewise.ops._base import Problem
from tilewise.ops.gemm import GemmProblem
from tilewise.ops.grouped_conv import GroupedConvProblem

OPS: dict[str, type[Problem]] = {p.op: p for p in (GemmProblem, GroupedConvProblem)}
