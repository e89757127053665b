"""Operands and results of a problem as torch tensors."""

from __future__ import annotations

import hashlib

import torch

from tilewise.kernels.triton.programs._family import Family
from tilewise.kernels.triton.programs._program import RESULT_TYPES
from tilewise.ops import Problem

TORCH_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.float8_e4m3fn}


def seed_of(problem: Problem) -> int:
    """Return a seed for a problem, the same in every process."""
    return int.from_bytes(hashlib.sha256(repr(problem.group_key).encode()).digest()[:7])


def random_operands(
    family: Family, problem: Problem, dtype: str, device: str | torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    """Return operands of standard normal values, the same for equal arguments."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = torch.float16 if dtype == "fp8" else TORCH_TYPES[dtype]  # torch cannot draw fp8
    return tuple(
        torch.randn(shape, generator=generator, device=device, dtype=drawn).to(TORCH_TYPES[dtype])
        for shape in family.operands(problem)
    )


def integer_operands(
    family: Family, problem: Problem, dtype: str, device: str | torch.device, seed: int
) -> tuple[torch.Tensor, ...]:
    """Return operands of integers from -2 to 2, the same for equal arguments.

    Every partial sum is exact in any order, in fp32 and in the 14 bits of fp8 sums (it stays below 2^13 for any K that
    fits a device): a correct kernel gives the rounded exact result bit for bit.
    """
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(
        torch.randint(-2, 3, shape, generator=generator, device=device, dtype=torch.int8)
        .to(torch.float32)
        .to(TORCH_TYPES[dtype])
        for shape in family.operands(problem)
    )


def empty_result(family: Family, problem: Problem, dtype: str, device: str | torch.device) -> torch.Tensor:
    """Return a tensor that the family's launches can write."""
    return torch.empty(family.result(problem), device=device, dtype=TORCH_TYPES[RESULT_TYPES[dtype]])
