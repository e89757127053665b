"""Compiling every program of a plan before anything is measured, on all cores and without touching a GPU.

The results lie in Triton's on-disk cache, from which the workers load them.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tilewise.collect.plan import Plan
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import unsupported
from tilewise.ops import GroupedConvProblem, Problem

_Job = tuple[Kernel, Problem, str]


def jobs(plan: Plan) -> list[_Job]:
    """One (kernel, problem, dtype) for each distinct set of programs: problems of equal alignment share theirs."""
    kinds: dict[object, list[Problem]] = {}
    for item in plan.items:
        p = item.problem
        assert isinstance(p, GroupedConvProblem)
        alignment = tuple(v % 8 == 0 for v in (p.C, p.K, p.C // p.G, p.K // p.G))
        kinds.setdefault(alignment, []).append(p)

    def supported(kernel: Kernel) -> Iterator[Problem]:
        for problems in kinds.values():
            yield from [p for p in problems if not unsupported(kernel, p, plan.target.variant)][:1]

    return [(kernel, p, plan.target.dtype) for kernel in plan.pool.kernels for p in supported(kernel)]


def compile_ahead(plan: Plan, workers: int | None, progress: Callable[[int, int], None]) -> dict[str, str]:
    """Compile all programs; a kernel that does not compile is left for measuring to record.

    Returns:
        The first error of each kernel that failed, by configuration.
    """
    todo = jobs(plan)
    failed: dict[str, str] = {}
    capability = (int(plan.arch.name.removeprefix("sm")[:-1]), int(plan.arch.name[-1]))
    spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
    with ProcessPoolExecutor(workers or os.cpu_count(), mp_context=spawn) as pool:
        futures = [(job, pool.submit(_compile, job, capability)) for job in todo]
        for done, (job, future) in enumerate(futures, 1):
            if error := future.result():
                failed.setdefault(job[0].config, error)
            progress(done, len(todo))
    return failed


def _compile(job: _Job, capability: tuple[int, int]) -> str | None:
    from tilewise.kernels.triton.conv_forward import programs
    from tilewise.kernels.triton.program import compile_program, cuda_target

    kernel, problem, dtype = job
    assert isinstance(problem, GroupedConvProblem)
    try:
        for program in programs(kernel, problem, dtype):
            compile_program(program, cuda_target(capability))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None
