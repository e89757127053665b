"""The contract of executors, and the executor of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

Shared = TypeVar("Shared")
Task = TypeVar("Task")
Result = TypeVar("Result")

Peers = tuple[str, ...]  # HOST:PORT of each process of a group, with ports that were free
GPU = "GPU"  # Dask's name for the resource of workers that own a GPU


class Executor(Protocol):
    """Object that runs independent tasks, here or elsewhere."""

    @property
    def slots(self) -> int:
        """Number of tasks that run side by side."""

    @property
    def is_local(self) -> bool:
        """True if tasks run in this process, one after another."""

    def map(
        self,
        function: Callable[[Shared, Task], Result],
        shared: Shared,
        tasks: Sequence[Task],
        on_result: Callable[[Result], None] | None = None,
        *,
        gpu: bool = False,
    ) -> list[Result]:
        """Call ``function(shared, task)`` for each task.

        The first failure, or an interruption of this call, cancels all tasks that have not begun.

        Args:
            function: a function of a module; elsewhere it is found by its name.
            shared: an argument of all calls, sent to each worker process once. Calls must not rely on changes to it.
            tasks: the other argument of each call.
            on_result: called here with each result as it arrives, in any order.
            gpu: each call needs a GPU of a worker that owns one. Such calls may run side by side in one process, so
                `function` must be thread-safe.

        Returns:
            The results in the order of `tasks`.

        Raises:
            TilewiseError: the workers of a task were lost again and again.
        """

    @property
    def machines(self) -> int:
        """Number of worker processes that learn one model together; 1: each model is learnt in one process."""

    def together(
        self, function: Callable[[Shared, Task, Peers, int], Result], shared: Shared, tasks: Sequence[Task]
    ) -> list[Result]:
        """Call ``function(shared, task, peers, number)`` for all tasks at once, each in a worker process of its own.

        A process may listen at ``peers[number]``, and connect to the others. If a worker is lost, all calls are
        repeated.

        Args:
            function: a function of a module. It must fail soon where a peer is lost.
            shared: an argument of all calls.
            tasks: at most :attr:`machines` of them.

        Returns:
            The results in the order of `tasks`.

        Raises:
            ConfigError: there are fewer worker processes than tasks.
            TilewiseError: workers were lost again and again.
        """


class LocalExecutor:
    """Executor that calls the function in this process, one task after another."""

    slots = 1
    is_local = True
    machines = 1

    def map(
        self,
        function: Callable[[Shared, Task], Result],
        shared: Shared,
        tasks: Sequence[Task],
        on_result: Callable[[Result], None] | None = None,
        *,
        gpu: bool = False,
    ) -> list[Result]:
        """Call the function for each task in order; see :meth:`Executor.map`."""
        results: list[Result] = []
        for task in tasks:
            results.append(function(shared, task))
            if on_result:
                on_result(results[-1])
        return results

    def together(
        self, function: Callable[[Shared, Task, Peers, int], Result], shared: Shared, tasks: Sequence[Task]
    ) -> list[Result]:
        """Call the function for the only task; see :meth:`Executor.together`."""
        [task] = tasks
        return [function(shared, task, (), 0)]


LOCAL: Executor = LocalExecutor()
