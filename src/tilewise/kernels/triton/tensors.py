"""Operands and results of a problem as torch tensors."""

from __future__ import annotations

import torch

from tilewise.kernels.triton.family import Family
from tilewise.kernels.triton.program import RESULT_TYPES
from tilewise.ops import Problem

TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def random_operands(
    family: Family, problem: Problem, dtype: str, device: str | torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    """Operands of standard normal values, the same for equal arguments."""
    generator = torch.Generator(device).manual_seed(seed)
    made = torch.float16 if dtype == "fp8" else TORCH_TYPES[dtype]  # torch makes no random fp8
    return tuple(
        torch.randn(shape, generator=generator, device=device, dtype=made).to(TORCH_TYPES[dtype])
        for shape in family.operands(problem)
    )


def empty_result(family: Family, problem: Problem, dtype: str, device: str | torch.device) -> torch.Tensor:
    """A tensor that the family's launches can write."""
    return torch.empty(family.result(problem), device=device, dtype=TORCH_TYPES[RESULT_TYPES[dtype]])
