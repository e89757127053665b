"""Contract between a worker process and the engine that runs its kernels.

A worker owns one engine: on a GPU, over CK Tile's libraries, or over a replay table. Tests supply engines that hang,
crash or give wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Item, Plan

REGIME = "cold_l2+graph"  # of the GPU engine's times: a cold L2 cache, launches in a CUDA graph

BeginCallback = Callable[[int | None], None]  # announces a kernel by its index, or None for many kernels together


@dataclass(frozen=True)
class Device:
    """Origin of measurements, as columns of the measurement table.

    `programs_version` is that of the project's own programs (:data:`tilewise.kernels.PROGRAM_VERSIONS`) and concerns
    their rows alone; None where the engine runs none of them, or the version is unknown.
    """

    hw_device: str
    hw_uuid: str | None
    driver: str | None
    libraries: str
    regime: str
    programs_version: int | None = None


class EngineLostError(Exception):
    """A kernel broke the device context beyond repair; the worker must be replaced."""


class Engine(Protocol):
    """Object that measures one problem at a time."""

    def device(self) -> Device:
        """Describe the device."""

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: BeginCallback, careful: bool = False
    ) -> list[Outcome]:
        """Measure every kernel of the plan's pool on one problem.

        A problem first comes with `careful` off: kernels may run together, unannounced. If that breaks the worker, the
        problem comes again, to a fresh worker, with `careful` on, which singles out the culprit at the cost of one row.

        Args:
            item: the problem.
            known: outcomes of kernels that must not run again, by kernel index.
            begin: restarts the time limit. Call it with None before kernels run together; they then have the limit of
                a batch (:func:`tilewise.collect._coordinator.batch_limit_s`). Call it with a kernel's index before
                compiling that kernel and, if `careful`, before running any part of it, so that a hang or crash has a
                culprit.
            careful: announce every kernel by its index, and let it run to its end before announcing the next.

        Returns:
            One outcome per kernel, in the pool's order.

        Raises:
            EngineLostError: the device context broke. If `careful`, the culprit is the kernel that `begin` announced
                last, and no kernel after ``begin(None)``.
        """


EngineFactory = Callable[[Plan, int], Engine]  # called in the worker process with the plan and a device index
