"""A simulated GPU that sleeps, for :mod:`benchmarks.scale.collect_hosts`; worker processes find it by name."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tilewise.collect import Item, Outcome, Plan, Samples
from tilewise.collect.engines import Device, EngineFactory


class SleepingEngine:
    """A simulated GPU: sleeps, then gives invented times for all kernels; logs the begin and end of each problem."""

    def __init__(self, source: SleepingSource, plan: Plan, index: int) -> None:
        self._source, self._pool = source, len(plan.pool)
        started = Path(source.folder) / "started"
        started.mkdir(exist_ok=True)
        (started / uuid.uuid4().hex).touch()
        while len(list(started.iterdir())) < source.workers:
            time.sleep(0.2)

    def device(self) -> Device:
        """Return a description of the simulated device."""
        return Device("simulated", None, None, "none", "made_up")

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engines.Engine`."""
        start = time.monotonic()  # one clock for all processes of a machine
        begin(None)
        time.sleep(self._source.seconds)
        with (Path(self._source.folder) / "log").open("a") as file:  # appending such a short line is atomic
            file.write(f"{start} {time.monotonic()}\n")
        samples = Samples((1.0, 1.0625, 1.125), (1980,), 1)
        return [known.get(i, Outcome("ok", None, samples)) for i in range(self._pool)]


@dataclass(frozen=True)
class SleepingSource:
    """Source of `workers` simulated GPUs, which take `seconds` for a problem and log to `folder`."""

    folder: str
    workers: int
    seconds: float

    def factory(self, plan: Plan) -> EngineFactory:
        """Return the factory of simulated GPUs."""
        return partial(SleepingEngine, self)
