"""The contract between a worker process and what actually runs kernels.

A worker owns one engine; the GPU one is :mod:`tilewise.collect.gpu`. Tests hand in others that hang, crash or lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tilewise.collect.plan import Item, Plan
from tilewise.collect.results import Outcome

REGIME = "cold_l2+graph"  # how the GPU engine times: see tilewise.collect.stopwatch


@dataclass(frozen=True)
class Device:
    """Where measurements come from; columns of the measurement table."""

    hw_device: str
    hw_uuid: str | None
    driver: str | None
    libraries: str
    regime: str


class EngineLostError(Exception):
    """The device context is beyond repair (a faulting kernel): the worker must be replaced."""


class Engine(Protocol):
    """Measures one problem at a time."""

    def device(self) -> Device:
        """Describe the device."""

    def measure(
        self,
        item: Item,
        known: Mapping[int, Outcome],
        begin: Callable[[int | None], None],
        careful: bool = False,
    ) -> list[Outcome]:
        """Measure every kernel of the plan's pool on one problem.

        At first optimistically: kernels may run together, with nobody announced. Where that broke the worker, the
        problem comes again, to a fresh worker, with `careful`, so that the culprit is found and costs one row.

        Args:
            item: the problem.
            known: outcomes that stand already, by kernel index; those kernels are not run again.
            begin: restarts the time limit. Called with None before kernels run together, which gives them that of a
                batch (:func:`tilewise.collect.coordinator.batch_limit_s`); with a kernel's index before it is compiled,
                and where `careful` before anything of it runs, so that a hang or crash has a culprit.
            careful: every kernel must be announced by its index, and must have run to its end before the next one is.

        Returns:
            One outcome a kernel, in the pool's order.

        Raises:
            EngineLostError: the device context broke; blamed is, where `careful`, the kernel begun last; nobody after
                ``begin(None)``.
        """


EngineFactory = Callable[[Plan, int], Engine]  # called in the worker process with the plan and a device index
