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
from tilewise.ops import Problem, Target

_Job = tuple[Kernel, Problem, Target]


def jobs(plan: Plan) -> list[_Job]:
    """One (kernel, problem, target) for each distinct set of programs: problems of equal alignment share theirs."""
    from tilewise.kernels.triton.family import family_of

    family, target = family_of(plan.target.op, plan.target.variant), plan.target
    kinds: dict[object, list[Problem]] = {}
    for item in plan.items:
        kinds.setdefault(family.alignment(item.problem, target.dtype), []).append(item.problem)

    def distinct(kernel: Kernel) -> Iterator[Problem]:
        seen = set()
        for problems in kinds.values():
            p = next((p for p in problems if not unsupported(kernel, p, target.variant)), None)
            if p is not None and (programs := family.programs(kernel, p, target.dtype)) not in seen:
                seen.add(programs)
                yield p

    return [(kernel, p, target) for kernel in plan.pool.kernels for p in distinct(kernel)]


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
    from tilewise.kernels.triton.family import family_of
    from tilewise.kernels.triton.program import compile_program, cuda_target

    kernel, problem, target = job
    try:
        for program in family_of(target.op, target.variant).programs(kernel, problem, target.dtype):
            compile_program(program, cuda_target(capability))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None
