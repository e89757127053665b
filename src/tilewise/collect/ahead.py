"""Compiling every program of a plan before anything is measured, on all cores and without touching a GPU.

The results lie in Triton's on-disk cache, from which the workers load them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from tilewise.collect.plan import Plan
from tilewise.ops import Problem, Target

_Job = tuple[Any, Problem, Target]  # of one kernel


def jobs(plan: Plan, which: Iterable[int] | None = None) -> list[_Job]:
    """One (kernel, problem, target) for each distinct set of programs: problems of equal alignment share theirs.

    Args:
        plan: what to measure.
        which: indices of problems, in order; None: all.
    """
    from tilewise.kernels.triton.family import family_of

    family, target = family_of(plan.target.op, plan.target.variant), plan.target
    kinds: dict[object, list[int]] = {}
    for i in range(len(plan.items)) if which is None else which:
        kinds.setdefault(family.alignment(plan.items[i].problem, target.dtype), []).append(i)
    found: list[dict[object, Problem]] = [{} for _ in plan.pool.kernels]  # by kernel: programs -> first problem
    for alike in kinds.values():
        runs = np.stack([plan.chosen(i) & plan.pool.supported(plan.items[i].problem) for i in alike])
        for k in np.flatnonzero(runs.any(axis=0)):  # runs: (problems, kernels)
            problem = plan.items[alike[int(runs[:, k].argmax())]].problem
            found[k].setdefault(family.programs(plan.pool.kernels[k], problem, target.dtype), problem)
    return [(k, p, target) for k, chosen in zip(plan.pool.kernels, found, strict=True) for p in chosen.values()]


def compile_ahead(
    plan: Plan, workers: int | None, progress: Callable[[int, int], None], which: Iterable[int] | None = None
) -> dict[str, str]:
    """Compile all programs; a kernel that does not compile is left for measuring to record.

    Args:
        plan: what to measure.
        workers: processes; None: one a core.
        progress: called with how many jobs are done, of how many.
        which: indices of problems; None: all.

    Returns:
        The first error of each kernel that failed, by configuration.
    """
    todo = jobs(plan, which)
    arguments, names = [(job, plan.arch.name) for job in todo], [job[0].config for job in todo]
    return run_all(_compile, arguments, names, workers, progress)


def run_all(
    function: Callable[..., str | None],
    arguments: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> dict[str, str]:
    """Call `function` with each of `arguments` in other processes; one that crashes its process costs no other.

    Returns:
        The first error (what the function returned) of each name that failed.
    """
    at_once = workers or os.cpu_count() or 1
    done: dict[int, str | None] = {}

    def work(which: Sequence[int], processes: int) -> list[int]:
        """Those of `which` that are left because a process crashed."""
        spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            futures = {}
            with contextlib.suppress(BrokenProcessPool):  # while jobs are still handed in
                for i in which:
                    futures[pool.submit(function, *arguments[i])] = i
            for future in as_completed(futures):
                if not isinstance(future.exception(), BrokenProcessPool):
                    done[futures[future]] = future.result()
                    progress(len(done), len(names))
        return [i for i in which if i not in done]

    left = work(range(len(names)), at_once)
    while left:
        suspects = left[:at_once]  # jobs begin in order, so the culprits are among those that were running
        while suspects := work(suspects, 1):
            done[suspects.pop(0)] = "the compiler crashed"
            progress(len(done), len(names))
        left = work([i for i in left if i not in done], at_once)
    first: dict[str, str] = {}
    for i in sorted(done):
        if error := done[i]:
            first.setdefault(names[i], error)
    return first


def _compile(job: _Job, arch: str) -> str | None:
    from tilewise.kernels.triton.family import family_of
    from tilewise.kernels.triton.program import compile_program, cuda_target

    kernel, problem, target = job
    try:
        for program in family_of(target.op, target.variant).programs(kernel, problem, target.dtype):
            compile_program(program, cuda_target(arch))
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None
