"""The kernels of each (op, variant) behind one contract, for measuring, tests and launches.

The pipelines of :data:`tilewise.kernels.triton.PIPELINES` state the programs and launches; a family adds the tensors
and a reference. An op with Triton kernels adds a line to :data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from tilewise.errors import KernelError
from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels._formulas import ProblemLike
from tilewise.kernels._operands import TENSORS, Shape
from tilewise.kernels.triton._copies import share_elements
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import PARTIAL_BYTES, RESULT_BYTES
from tilewise.kernels.triton._pipeline import Implementation, implementation_of
from tilewise.kernels.triton.pipelines import PIPELINES, pipelines_of
from tilewise.kernels.triton.programs._matrix_product import imprecision
from tilewise.kernels.triton.programs._program import Launch, Program

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Family:
    """Kernels that compute one variant of an op.

    Tensors are contiguous. Operands have the target's dtype, the result has
    :data:`~tilewise.kernels.triton.programs.RESULT_TYPES` of it, sums are fp32.

    Attributes:
        tensors: names of the operands and of the result.
        operands: problem -> shapes of the operands.
        result: problem -> shape of the result.
        workspace_elements: (kernel, problem) -> fp32 elements that a launch needs besides the tensors.
        programs: (kernel, problem, dtype, kind of epilogue) -> the programs that the kernel runs, in order.
        launches: (kernel, problem, dtype, *operands, result, workspace, epilogue=) -> the launches of a supported
            problem. Kernels that leave an epilogue, see :class:`~tilewise.kernels.Backend`, take none.
        reference: (problem, *operands) -> the right result in fp32; needs torch.
        alignment: (problem, dtype) -> key; every kernel runs the same programs for problems of equal key.
        imprecision: (problem, dtype) -> tolerance for the rounding of the hardware's own sums.
    """

    tensors: tuple[str, ...]
    operands: Callable[[ProblemLike], tuple[Shape, ...]]
    result: Callable[[ProblemLike], Shape]
    workspace_elements: Callable[[Kernel, ProblemLike], int]
    programs: Callable[..., tuple[Program, ...]]
    launches: Callable[..., tuple[Launch, ...]]
    reference: Callable[..., Tensor]
    alignment: Callable[[ProblemLike, str], Hashable]
    imprecision: Callable[[ProblemLike, str], float] = lambda problem, dtype: 0.0


def _family(op: str, variant: str, reference: str) -> Family:
    """Return the family whose programs and launches are those of the registered pipelines."""
    tensors = TENSORS[op, variant]

    def workspace_elements(kernel: Kernel, problem: ProblemLike) -> int:
        copied = PIPELINES[kernel.pipeline].copied(problem, variant) * RESULT_BYTES
        return share_elements(kernel, prod(tensors.result(problem))) + int(copied) // PARTIAL_BYTES

    def programs(
        kernel: Kernel, problem: ProblemLike, dtype: str, kind: EpilogueKind = EMPTY_KIND
    ) -> tuple[Program, ...]:
        compute = _implementation(kernel.pipeline, op, variant).programs
        return compute(kernel, problem, variant, dtype, *(() if kind.is_empty else (kind,)))

    def launches(
        kernel: Kernel, problem: ProblemLike, dtype: str, *passed: Tensor, epilogue: Epilogue = NO_EPILOGUE
    ) -> tuple[Launch, ...]:
        compute = _implementation(kernel.pipeline, op, variant).launches
        ends: dict[str, Epilogue] = {} if epilogue.kind.is_empty else {"epilogue": epilogue}
        return compute(kernel, problem, variant, dtype, *passed, **ends)

    def alignment(problem: ProblemLike, dtype: str) -> Hashable:
        keys = dict.fromkeys(_implementation(name, op, variant).alignment for name in pipelines_of(op, variant))
        return tuple(key(problem, variant, dtype) for key in keys)

    return Family(*tensors, workspace_elements, programs, launches, _reference(reference), alignment)


def _implementation(pipeline: str, op: str, variant: str) -> Implementation:
    if pipeline not in PIPELINES:
        raise KernelError(f"pipeline must be one of {', '.join(pipelines_of(op, variant))}, got {pipeline}")
    return implementation_of(PIPELINES[pipeline], op, variant)


def _reference(name: str) -> Callable[..., Tensor]:
    def compute(*args: Tensor) -> Tensor:
        from tilewise.kernels.triton.programs import _reference as reference  # torch: compiling ahead does without

        return getattr(reference, name)(*args)

    return compute


FAMILIES: dict[tuple[str, str], Family] = {
    ("grouped_conv", "forward"): _family("grouped_conv", "forward", "conv_forward"),
    ("grouped_conv", "bwd_data"): _family("grouped_conv", "bwd_data", "conv_bwd_data"),
    ("grouped_conv", "bwd_weight"): _family("grouped_conv", "bwd_weight", "conv_bwd_weight"),
    ("gemm", "universal"): replace(_family("gemm", "universal", "gemm"), imprecision=imprecision),
}


def family_of(op: str, variant: str) -> Family:
    """Return the kernels of a variant.

    Raises:
        KernelError: Triton has no kernels for it.
    """
    if (op, variant) not in FAMILIES:
        known = ", ".join(" ".join(key) for key in FAMILIES)
        raise KernelError(f"no Triton kernels for {op} {variant}; there are {known}")
    return FAMILIES[op, variant]
