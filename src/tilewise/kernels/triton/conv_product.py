"""Convolutions that are matrix products as they are stored, by the walks of :mod:`tilewise.kernels.triton.gemm`.

A filter of one tap, without padding, stride or groups, multiplies a matrix of pixels by itself.
"""

from __future__ import annotations

from typing import Any

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton import gemm
from tilewise.kernels.triton.program import Launch, Program
from tilewise.ops import GemmProblem, GroupedConvProblem

_LAYOUTS = {"forward": "rcr", "bwd_data": "rrr", "bwd_weight": "crr"}


def product_of(problem: GroupedConvProblem, variant: str) -> GemmProblem:
    """The matrix product; columns of the result are its channels."""
    p, pixels = problem, problem.N * problem.Di * problem.Hi * problem.Wi
    sizes = {"forward": (pixels, p.K, p.C), "bwd_data": (pixels, p.C, p.K), "bwd_weight": (p.K, p.C, pixels)}
    return GemmProblem(*sizes[variant], _LAYOUTS[variant])


def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    return gemm.programs(kernel, product_of(problem, variant), dtype)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Any
) -> tuple[Launch, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    return gemm.launches(kernel, product_of(problem, variant), dtype, *tensors)
