"""Who launches the kernels of a pool: one launcher a backend, each imported only where something is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tilewise.dispatch.selection import Selection
from tilewise.errors import KernelError
from tilewise.kernels.backends import Backend
from tilewise.ops import Problem, Target

Select = Callable[[Problem], Selection]
Rank = Callable[[Problem], Sequence[Selection]]


class Launches(Protocol):
    """Runs problems of one target with the kernels that a dispatcher selects."""

    def run(self, problem: Problem, tensors: Sequence[Any], out: Any) -> Any:
        """See :meth:`tilewise.dispatch.Dispatcher.run`."""

    @property
    def bound(self) -> Mapping[Any, Any]:
        """What the launcher of the next generation takes over."""


def _triton(target: Target, select: Select, rank: Rank, spare: Mapping[Any, Any] | None) -> Launches:
    from tilewise.dispatch.launch import Launcher  # imports torch and triton

    return Launcher(target, select, rank, spare)


def _ck_tile(target: Target, select: Select, rank: Rank, spare: Mapping[Any, Any] | None) -> Launches:
    from tilewise.dispatch.ck_launch import CkLauncher

    return CkLauncher(target, select, rank)


LAUNCHERS = {"triton": _triton, "ck_tile": _ck_tile}


def launcher_of(
    backend: Backend, target: Target, select: Select, rank: Rank, before: Launches | None
) -> Launches:  # fmt: skip
    """The launcher for a backend's kernels.

    Args:
        backend: who makes the kernels.
        target: what is run.
        select: problem -> the kernel to launch.
        rank: problem -> all kernels, best first.
        before: the launcher of the generation that served before.

    Raises:
        KernelError: nothing here launches such kernels, or what does is not set up.
    """
    if backend.name not in LAUNCHERS:
        raise KernelError(
            f"kernels of {backend.name} cannot be launched from here; those of {', '.join(LAUNCHERS)} can"
        )
    return LAUNCHERS[backend.name](target, select, rank, None if before is None else before.bound)
