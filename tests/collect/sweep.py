"""A run of the fake engine in a process of its own, to be killed: ``python -m collect.sweep PLAN OUTPUT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from collect.fake import HANG, LOG, FakeEngine
from tilewise.collect.plan import load_plan
from tilewise.collect.results import Outcome
from tilewise.collect.run import collect


class HurriedEngine(FakeEngine):
    """Its bad kernels kill their worker, break the device and lie, but nobody has to wait for one that hangs."""

    def _prepare(
        self, number: int, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool
    ) -> None:
        with open(os.environ[LOG], "a") as f:
            f.write("begun\n")

    def _misbehave(self, i: int) -> Outcome:
        return Outcome("runtime_error", "would hang") if i == HANG else super()._misbehave(i)


if __name__ == "__main__":
    collect(load_plan(Path(sys.argv[1])), Path(sys.argv[2]), HurriedEngine, [0, 1], lambda what, done, of: None)
