"""The launches of the pipelines ``tma`` and ``persistent``: the matrix product, and convolutions stored as one.

A convolution with one tap, and without padding, stride or groups, multiplies a matrix of pixels by its filter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, Implementation
from tilewise.kernels.triton.programs import _matrix_product as matrix_product
from tilewise.kernels.triton.programs._program import Launch, Program
from tilewise.kernels.triton.programs.conv._shared import channel_divisors
from tilewise.ops import GemmProblem, GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor

_LAYOUTS = {"forward": "rcr", "bwd_data": "rrr", "bwd_weight": "crr"}


def product_of(problem: GroupedConvProblem, variant: str) -> GemmProblem:
    """Return the matrix product of a convolution; the columns of its result are channels."""
    p, pixels = problem, problem.N * problem.Di * problem.Hi * problem.Wi
    sizes = {"forward": (pixels, p.K, p.C), "bwd_data": (pixels, p.C, p.K), "bwd_weight": (p.K, p.C, pixels)}
    return GemmProblem(*sizes[variant], _LAYOUTS[variant])


def _programs(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    return matrix_product.programs(kernel, product_of(problem, variant), "universal", dtype, kind)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:  # fmt: skip
    product = product_of(problem, variant)
    return matrix_product.launches(kernel, product, "universal", dtype, *tensors, epilogue=epilogue)


IMPLEMENTATIONS = matrix_product.IMPLEMENTATIONS | dict.fromkeys(
    CONV_VARIANTS, Implementation(_programs, _launches, channel_divisors)
)
