"""The ops that tilewise knows: the problem type of each, by name."""

from __future__ import annotations

from tilewise.ops._gemm import GemmProblem
from tilewise.ops._grouped_conv import GroupedConvProblem
from tilewise.ops._problem import Problem

OPS: dict[str, type[Problem]] = {p.op: p for p in (GemmProblem, GroupedConvProblem)}
