"""The kernels of each (op, variant) behind one contract: what collecting, tests and launching need to know of them.

Adding a family is one module with the functions below and one line in :data:`FAMILIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from tilewise.errors import KernelError
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.operands import TENSORS, Shape
from tilewise.kernels.triton import conv_bwd_data, conv_bwd_weight, conv_forward, conv_walks, gemm
from tilewise.kernels.triton.program import Launch, Program


@dataclass(frozen=True)
class Family:
    """Kernels that compute one variant of an op.

    Tensors are contiguous. Operands have the target's dtype, the result has
    :data:`~tilewise.kernels.triton.program.RESULT_TYPES` of it, sums are fp32.
    """

    tensors: tuple[str, ...]  # these three as in tilewise.kernels.operands
    operands: Callable[[Any], tuple[Shape, ...]]
    result: Callable[[Any], Shape]
    workspace_elements: Callable[[Kernel, Any], int]  # fp32 elements that a launch needs beside the tensors
    programs: Callable[[Kernel, Any, str], tuple[Program, ...]]  # what a kernel runs for a problem and dtype, in order
    launches: Callable[..., tuple[Launch, ...]]  # (kernel, problem, dtype, *operands, result, workspace)
    reference: Callable[..., Any]  # (problem, *operands) -> the right result in fp32; needs torch
    alignment: Callable[[Any, str], Hashable]  # (problem, dtype): where equal, every kernel runs the same programs
    imprecision: Callable[[Any, str], float] = lambda problem, dtype: 0.0  # what the hardware's sums add to rtol


def _reference(name: str) -> Callable[..., Any]:
    def compute(*args: Any) -> Any:
        from tilewise.kernels.triton import reference  # torch: compiling ahead does without

        return getattr(reference, name)(*args)

    return compute


FAMILIES: dict[tuple[str, str], Family] = {
    ("grouped_conv", "forward"): Family(
        *TENSORS["grouped_conv", "forward"],
        workspace_elements=conv_forward.workspace_elements,
        programs=conv_forward.programs,
        launches=conv_forward.launches,
        reference=_reference("conv_forward"),
        alignment=conv_walks.alignment("forward"),
    ),
    ("grouped_conv", "bwd_data"): Family(
        *TENSORS["grouped_conv", "bwd_data"],
        workspace_elements=conv_bwd_data.workspace_elements,
        programs=conv_bwd_data.programs,
        launches=conv_bwd_data.launches,
        reference=_reference("conv_bwd_data"),
        alignment=conv_walks.alignment("bwd_data"),
    ),
    ("grouped_conv", "bwd_weight"): Family(
        *TENSORS["grouped_conv", "bwd_weight"],
        workspace_elements=conv_bwd_weight.workspace_elements,
        programs=conv_bwd_weight.programs,
        launches=conv_bwd_weight.launches,
        reference=_reference("conv_bwd_weight"),
        alignment=conv_walks.alignment("bwd_weight"),
    ),
    ("gemm", "universal"): Family(
        *TENSORS["gemm", "universal"],
        workspace_elements=gemm.workspace_elements,
        programs=gemm.programs,
        launches=gemm.launches,
        reference=_reference("gemm"),
        alignment=gemm.alignment,
        imprecision=gemm.imprecision,
    ),
}


def family_of(op: str, variant: str) -> Family:
    """The kernels of a variant.

    Raises:
        KernelError: there are none.
    """
    if (op, variant) not in FAMILIES:
        known = ", ".join(" ".join(key) for key in FAMILIES)
        raise KernelError(f"no Triton kernels for {op} {variant}; there are {known}")
    return FAMILIES[op, variant]
