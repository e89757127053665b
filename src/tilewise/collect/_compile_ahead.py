"""Compilation of all binaries of a plan before measuring, on all cores and without a GPU.

The results go to Triton's cache on disk, from which the workers load them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.collect._plan import Plan
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.kernels.triton import Kernel

_Job = tuple["Kernel", Problem, Target]  # compiles the binaries that one kernel needs for one problem


def compile_jobs(plan: Plan, which: Iterable[int] | None = None) -> list[_Job]:
    """Return one (kernel, problem, target) per distinct set of binaries; problems of equal alignment share theirs.

    Args:
        plan: the plan to measure.
        which: indices of problems, in order; None for all.
    """
    from tilewise.kernels.triton import Kernel
    from tilewise.kernels.triton.programs import family_of

    family, target = family_of(plan.target.op, plan.target.variant), plan.target
    by_alignment: dict[object, list[int]] = {}
    for i in range(len(plan.items)) if which is None else which:
        by_alignment.setdefault(family.alignment(plan.items[i].problem, target.dtype), []).append(i)
    problems: list[dict[object, Problem]] = [{} for _ in plan.pool.kernels]  # per kernel: binaries -> first problem
    compiled = np.array([isinstance(kernel, Kernel) for kernel in plan.pool.kernels])
    for indices in by_alignment.values():
        wanted = np.stack([plan.kernel_mask(i) for i in indices])
        runs = compiled & wanted & plan.pool.supported_of([plan.items[i].problem for i in indices])
        for k in np.flatnonzero(runs.any(axis=0)):  # runs: bool, (problems, kernels)
            problem = plan.items[indices[int(runs[:, k].argmax())]].problem
            problems[k].setdefault(family.programs(plan.pool.kernels[k], problem, target.dtype), problem)
    return [(k, p, target) for k, first in zip(plan.pool.kernels, problems, strict=True) for p in first.values()]


def compile_ahead(
    plan: Plan,
    workers: int | None,
    progress: Callable[[int, int], None],
    which: Iterable[int] | None = None,
    listing: Path | None = None,
) -> dict[str, str]:
    """Compile all binaries of a plan; measuring later records the kernels that do not compile.

    Args:
        plan: the plan to measure.
        workers: number of processes; None for one per core.
        progress: called with the numbers of finished jobs and of all jobs.
        which: indices of problems; None for all.
        listing: folder that gets an empty file for each program, named by :func:`listed_programs`; None for no list.

    Returns:
        The first error of each kernel that failed, by configuration.
    """
    jobs = compile_jobs(plan, which)
    arguments, names = [(job, plan.arch.name, listing) for job in jobs], [job[0].config for job in jobs]
    return run_in_processes(_compile, arguments, names, workers, progress)


def listed_programs(listing: Path) -> list[tuple[str, str]]:
    """Return Triton's key and the function's name of each program in a folder that :func:`compile_ahead` filled."""
    return sorted((key, name) for key, _, name in (file.name.partition("-") for file in listing.iterdir()))


def run_in_processes(
    function: Callable[..., str | None],
    arguments: Sequence[tuple[Any, ...]],
    names: Sequence[str],
    workers: int | None,
    progress: Callable[[int, int], None],
) -> dict[str, str]:
    """Call a function with each of `arguments` in other processes; a call that crashes its process fails alone.

    Args:
        function: returns an error, or None.
        arguments: of each call.
        names: of each call.
        workers: number of processes; None for one per core.
        progress: called with the numbers of finished calls and of all calls.

    Returns:
        The first error of each name that failed.
    """
    processes = workers or os.cpu_count() or 1
    pool = _CrashingPool(function, arguments, progress)
    left = pool.run(range(len(names)), processes)
    while left:
        suspects = left[:processes]  # calls begin in order, so those that crashed are among the first ones left
        while suspects := pool.run(suspects, 1):
            pool.finish(suspects.pop(0), "the compiler crashed")
        left = pool.run([i for i in left if i not in pool.errors], processes)
    first: dict[str, str] = {}
    for i in sorted(pool.errors):
        if error := pool.errors[i]:
            first.setdefault(names[i], error)
    return first


class _CrashingPool:
    """Process pool whose calls may crash their process.

    Attributes:
        errors: the result of each finished call, by index.
    """

    def __init__(
        self,
        function: Callable[..., str | None],
        arguments: Sequence[tuple[Any, ...]],
        progress: Callable[[int, int], None],
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._progress = progress
        self.errors: dict[int, str | None] = {}

    def run(self, which: Sequence[int], processes: int) -> list[int]:
        """Run the calls `which`; return those that are left because a process crashed."""
        spawn = multiprocessing.get_context("spawn")  # a fork would copy locks held by other threads
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            futures = {}
            with contextlib.suppress(BrokenProcessPool):  # a process may crash while calls are still submitted
                for i in which:
                    futures[pool.submit(self._function, *self._arguments[i])] = i
            for future in as_completed(futures):
                if not isinstance(future.exception(), BrokenProcessPool):
                    self.finish(futures[future], future.result())
        return [i for i in which if i not in self.errors]

    def finish(self, i: int, error: str | None) -> None:
        """Note the result of call `i`."""
        self.errors[i] = error
        self._progress(len(self.errors), len(self._arguments))


def _compile(job: _Job, arch: str, listing: Path | None) -> str | None:
    from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of

    kernel, problem, target = job
    try:
        for program in family_of(target.op, target.variant).programs(kernel, problem, target.dtype):
            compiled = compile_program(program, cuda_target(arch))
            if listing is not None:
                (listing / f"{compiled.hash}-{program.fn.__name__}").touch()
    except Exception as e:
        return f"{type(e).__name__}: {e}"
    return None
