"""Compiling and launching Triton programs without the JIT's per-call specialisation.

A :class:`Program` is everything that decides a binary, so one can be compiled on any machine, ahead of its use, and a
launch can never trigger a compilation that nobody planned. Sizes are never specialised (a size of 1, or one that
divides by 16, would make another binary); only what a program declares as divisible is.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

POINTER_ALIGNMENT = 16  # bytes; what torch's allocator guarantees and more
VECTOR = 8  # elements of 16 bits in the widest load; channel counts that divide by it allow such loads

TRITON_TYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8e4nv"}


@dataclass(frozen=True)
class Program:
    """One Triton function with all that decides its binary.

    `pointers` are (argument, element type) in order, then come `sizes` (32-bit integers), then the constants.
    `aligned` names the sizes that divide by :data:`VECTOR`.
    """

    fn: Any  # a triton JITFunction; hashable by identity
    pointers: tuple[tuple[str, str], ...]
    sizes: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]
    aligned: frozenset[str]
    num_warps: int
    num_stages: int

    def source(self) -> ASTSource:
        """What triton compiles."""
        names = [n for n, _ in self.pointers] + list(self.sizes) + [n for n, _ in self.constants]
        if names != self.fn.arg_names:
            raise TypeError(f"{self.fn.__name__} takes {self.fn.arg_names}, the program declares {names}")
        signature = {n: f"*{t}" for n, t in self.pointers}
        signature |= dict.fromkeys(self.sizes, "i32") | {n: "constexpr" for n, _ in self.constants}
        divisors = {n: POINTER_ALIGNMENT for n, _ in self.pointers} | dict.fromkeys(self.aligned, VECTOR)
        # in the order of the arguments: the text of attrs is part of Triton's cache key
        attrs = {(i,): [["tt.divisibility", divisors[n]]] for i, n in enumerate(names) if n in divisors}
        return ASTSource(self.fn, signature, dict(self.constants), attrs)


@dataclass(frozen=True)
class Launch:
    """One launch of a program: the grid, then the tensors and sizes in the program's order."""

    program: Program
    grid: tuple[int, int, int]
    tensors: Sequence[Any]
    sizes: Sequence[int]


def cuda_target(capability: tuple[int, int]) -> GPUTarget:
    """The compile target of a CUDA device, e.g. ``(9, 0)``; needs no device."""
    return GPUTarget("cuda", capability[0] * 10 + capability[1], 32)


@cache
def compile_program(program: Program, target: GPUTarget | None = None) -> Any:
    """Compile for `target` (None: the current device), or load from Triton's on-disk cache."""
    options = {"num_warps": program.num_warps, "num_stages": program.num_stages}
    return triton.compile(program.source(), target=target, options=options)


def interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU (``TRITON_INTERPRET=1``)."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def launch(item: Launch) -> None:
    """Run one launch on the current device and stream."""
    program = item.program
    if interpreted():
        program.fn[item.grid](*item.tensors, *item.sizes, **dict(program.constants))
    else:
        constants = (value for _, value in program.constants)
        compile_program(program)[item.grid](*item.tensors, *item.sizes, *constants)
