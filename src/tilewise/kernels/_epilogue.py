"""Epilogues: the work on a result that its kernel does in its own store, in fp32 and before rounding.

The order is fixed: ``activation(result + bias + residual)``. A kernel that cannot do all of it leaves the rest to one
pass over the result. :func:`pass_ms` and :func:`store_ms` estimate what either costs, for choices that depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from tilewise.arch import HardwareProfile
from tilewise.errors import ProblemError
from tilewise.kernels._operands import TENSORS
from tilewise.ops import Problem

ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh", "hardswish")  # PyTorch's; `gelu` is the exact one (erf)
# The results that kernels may end with an epilogue. Gradients have none; the bias of a transposed convolution, which is
# computed as one, is a pass.
EPILOGUE_VARIANTS = (("grouped_conv", "forward"), ("gemm", "universal"))

# Clocks of a compute unit by which an activation prolongs the store of a result, and a residual that is read there: the
# medians of kernels that are not persistent in benchmarks/results/epilogue_cost.json.
_STORE_CLOCKS = {"": 0.0, "relu": 0.0, "silu": 0.09, "gelu": 0.20, "gelu_tanh": 0.11, "hardswish": 0.02}
_RESIDUAL_CLOCKS = 0.11
_RESULT_BYTES = 2  # of an element: bf16 or fp16
_LEAST_PASS_MS = 0.0017  # no kernel in the committed tables of sm90 takes less, however small its problem


class EpilogueKind(NamedTuple):
    """The part of an epilogue that decides which kernel and which program compute it.

    Attributes:
        has_bias: whether a bias is added.
        has_residual: whether a residual is added.
        activation: one of :data:`ACTIVATIONS`; "" for none.
        in_one_launch: whether kernels come first that compute everything in one light launch, as the host that launches
            them is short of time. Programs do not depend on it.
    """

    has_bias: bool = False
    has_residual: bool = False
    activation: str = ""
    in_one_launch: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether nothing is done."""
        return self == EMPTY_KIND

    @property
    def computed(self) -> EpilogueKind:
        """The part that programs depend on."""
        return self._replace(in_one_launch=False) if self.in_one_launch else self

    def without(self, part: EpilogueKind) -> EpilogueKind:
        """Return what is left of it when `part` is done elsewhere."""
        return EpilogueKind(
            self.has_bias and not part.has_bias,
            self.has_residual and not part.has_residual,
            "" if part.activation else self.activation,
        )


EMPTY_KIND = EpilogueKind()


def check_activation(activation: str | None) -> None:
    """Check that an activation is one of :data:`ACTIVATIONS`, or None.

    Raises:
        ProblemError: it is unknown; `.field` is ``activation``.
    """
    if activation is not None and activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ProblemError("activation", f"must be one of {known}, or None, got {activation!r}")


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Work on a result in the store of its kernel: ``activation(result + bias + residual)``, in fp32.

    Attributes:
        bias: one value per output channel of a convolution (K,), or column of a product (N,), of the result's dtype.
        residual: a tensor with the result's shape and dtype, contiguous.
        activation: one of :data:`ACTIVATIONS`; None for none.
        in_one_launch: see :class:`EpilogueKind`.

    Raises:
        ProblemError: the activation is unknown; `.field` is ``activation``.
    """

    bias: object = None  # a torch.Tensor, which this package does not import
    residual: object = None
    activation: str | None = None
    in_one_launch: bool = False

    def __post_init__(self) -> None:
        check_activation(self.activation)

    @cached_property
    def kind(self) -> EpilogueKind:
        """The part that decides the program."""
        added = self.bias is not None, self.residual is not None
        return EpilogueKind(*added, self.activation or "", self.in_one_launch)

    @cached_property
    def tensors(self) -> tuple[object, ...]:
        """The bias and the residual, as far as there are such: a launch takes them after its operands."""
        return tuple(t for t in (self.bias, self.residual) if t is not None)


NO_EPILOGUE = Epilogue()


def pass_ms(kind: EpilogueKind, problem: Problem, variant: str, arch: HardwareProfile) -> float:
    """Estimate the time of the pass that computes an epilogue after its kernel; 0 for an empty one.

    The pass reads and writes the result and reads the residual, at the bandwidth of DRAM. The bias is negligible.
    """
    if kind.is_empty:
        return 0.0
    moved = _elements(problem, variant) * _RESULT_BYTES * (3 if kind.has_residual else 2)
    return max(stream_ms(moved, arch), _LEAST_PASS_MS)


def stream_ms(moved: float, arch: HardwareProfile) -> float:
    """Return the time in which some bytes are read or written, at the bandwidth of DRAM."""
    return moved / (arch.dram_gb_s * 1e6)


def store_ms(kind: EpilogueKind, problem: Problem, variant: str, arch: HardwareProfile) -> float:
    """Estimate by how much a kernel's store takes longer that computes an epilogue; a bias is free.

    Kernels of which one program fills a compute unit take longer, see :attr:`tilewise.kernels.Backend.store_factor`.
    """
    clocks = _STORE_CLOCKS[kind.activation] + _RESIDUAL_CLOCKS * kind.has_residual
    return clocks * _elements(problem, variant) / (arch.compute_units * arch.clock_mhz * 1e3)


def _elements(problem: Problem, variant: str) -> int:
    return prod(TENSORS[problem.op, variant].result(problem))
