"""Kernels that misbehave on a real GPU, among good kernels, for the engine that measures them all.

Every bad kernel is a good one with a second launch, so it is legal, compiled, launched and checked like any other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import triton
import triton.language as tl

from tilewise.collect import Plan
from tilewise.collect.engines import Engine
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import RESULT_TYPES, Family, Launch, Program
from tilewise.kernels.triton.programs._family import FAMILIES
from tilewise.ops import GemmProblem

GOOD = tuple(
    Kernel.from_config(config)
    for config in (
        "64x64x32_plain_w4_s3_g8_k1",
        "64x64x64_plain_w4_s3_g8_k1",
        "128x64x32_plain_w4_s3_g8_k1",
        "64x32x32_plain_w4_s3_g8_k1",
    )
)
HANGS, FAULTS, LIES, UNCOMPILED = (
    Kernel.from_config(config)
    for config in (
        "64x64x32_plain_w4_s2_g8_k1",
        "64x64x64_plain_w4_s2_g8_k1",
        "128x64x32_plain_w4_s2_g8_k1",
        "64x32x32_plain_w4_s2_g8_k1",
    )
)
POOL = (GOOD[0], HANGS, GOOD[1], FAULTS, LIES, GOOD[2], UNCOMPILED, GOOD[3])
HURT = GemmProblem(192, 256, 128)  # kernels hang and fault here only, as each costs a worker
PROBLEMS = (GemmProblem(128, 128, 128), HURT, GemmProblem(256, 128, 64), GemmProblem(512, 512, 512))


@triton.jit
def hang(c):  # type: ignore[no-untyped-def]
    """Wait for a value that is never written."""
    x = tl.load(c, volatile=True).to(tl.float32)
    while x != 1e30:  # more than 16 bits can hold
        x = tl.load(c, volatile=True).to(tl.float32)


@triton.jit
def fault(c):  # type: ignore[no-untyped-def]
    """Write terabytes beyond the tensor."""
    tl.store(c + 4398046511104, 1.0)


@triton.jit
def lie(c):  # type: ignore[no-untyped-def]
    """Spoil one element."""
    tl.store(c, tl.load(c).to(tl.float32) + 1000.0)


@triton.jit
def no_program(c):  # type: ignore[no-untyped-def]
    """Fail to compile."""
    tl.static_assert(False, "made not to compile")


_SPOILERS = {HANGS: hang, FAULTS: fault, LIES: lie, UNCOMPILED: no_program}


def spoiler(kernel: Kernel, problem: GemmProblem, dtype: str) -> Program | None:
    """Return the second binary of a bad kernel, or None for a good kernel."""
    if kernel not in _SPOILERS or (kernel in (HANGS, FAULTS) and problem != HURT):
        return None
    return Program(_SPOILERS[kernel], (("c", RESULT_TYPES[dtype]),), (), (), frozenset(), 1, 1)


def bad_family(good: Family) -> Family:
    """Return a family of matrix products with the bad kernels in it."""

    def launches(kernel: Kernel, problem: GemmProblem, dtype: str, a: Any, b: Any, c: Any, rest: Any) -> Any:
        first = good.launches(kernel, problem, dtype, a, b, c, rest)
        program = spoiler(kernel, problem, dtype)
        return first if program is None else (*first, Launch(program, (1, 1, 1), (c,), ()))

    return replace(good, launches=launches)


def bad_engine(plan: Plan, index: int) -> Engine:
    """Return a GPU engine whose family has the bad kernels; they are bad in this worker process only."""
    from tilewise.collect.engines import GpuEngine

    key = (plan.target.op, plan.target.variant)
    FAMILIES[key] = bad_family(FAMILIES[key])
    return GpuEngine(plan, index)
