"""Run of the fake engine in a separate process that tests kill: ``python -m collect.sweep PLAN OUTPUT``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from collect.fake import HANG, LOG, FakeEngine
from tilewise.collect import Outcome, collect_with_engine, load_plan


class HurriedEngine(FakeEngine):
    """Fake engine whose hanging kernel fails at once, so that tests need not wait for a timeout."""

    def _prepare(
        self, number: int, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool
    ) -> None:
        with open(os.environ[LOG], "a") as f:
            f.write("begun\n")

    def _misbehave(self, i: int) -> Outcome:
        return Outcome("runtime_error", "would hang") if i == HANG else super()._misbehave(i)


if __name__ == "__main__":
    collect_with_engine(
        load_plan(Path(sys.argv[1])), Path(sys.argv[2]), HurriedEngine, [0, 1], lambda what, done, of: None
    )
