"""The walks that variants share, each in a module of its own, by pipeline."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import NamedTuple

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import PRODUCT_PIPELINES
from tilewise.kernels.triton import conv, conv_box, conv_product, conv_strip
from tilewise.kernels.triton.program import Launch, Program
from tilewise.ops import GroupedConvProblem


class Walk(NamedTuple):
    """What a walk runs, in order, and what computes a variant's result."""

    programs: Callable[[Kernel, GroupedConvProblem, str, str], tuple[Program, ...]]  # ... variant, dtype
    launches: Callable[..., tuple[Launch, ...]]  # as for programs, then operands, result and workspace


WALKS = {
    "box": Walk(conv_box.programs, conv_box.launches),
    "strip": Walk(conv_strip.programs, conv_strip.launches),
    **dict.fromkeys(PRODUCT_PIPELINES, Walk(conv_product.programs, conv_product.launches)),
}


def alignment(variant: str) -> Callable[[GroupedConvProblem, str], Hashable]:
    """What says of a problem and dtype which programs it has: problems of equal alignment share them."""

    def of(problem: GroupedConvProblem, dtype: str) -> Hashable:
        return conv.alignment(problem, dtype), conv_box.alignment(problem, variant), conv_strip.alignment(problem)

    return of
