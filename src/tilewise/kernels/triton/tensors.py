"""Operands and results of a problem as torch tensors."""

from __future__ import annotations

import hashlib

import torch

from tilewise.kernels.triton.family import Family
from tilewise.kernels.triton.program import RESULT_TYPES
from tilewise.ops import Problem

TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def seed_of(problem: Problem) -> int:
    """A seed of a problem's own, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(problem.group_key).encode()).digest()[:7])


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


def integer_operands(
    family: Family, problem: Problem, dtype: str, device: str | torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    """Operands of integers from -2 to 2, the same for equal arguments.

    Every partial sum of theirs is exact, in fp32 and in the 14 bits that fp8 products are summed in (below 2^13, so
    for any K that fits a device), whatever the order: a right kernel gives the rounded right result bit for bit.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(
        torch.randint(-2, 3, shape, generator=generator, device=device, dtype=torch.int8)
        .to(torch.float32)
        .to(TORCH_TYPES[dtype])
        for shape in family.operands(problem)
    )


def empty_result(family: Family, problem: Problem, dtype: str, device: str | torch.device) -> torch.Tensor:
    """A tensor that the family's launches can write."""
    return torch.empty(family.result(problem), device=device, dtype=TORCH_TYPES[RESULT_TYPES[dtype]])
