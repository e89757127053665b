"""Fake engine without a GPU: invented times, and kernels that hang, kill their worker, break the device or lie."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from tilewise.collect import Item, Outcome, Plan, Samples
from tilewise.collect.engines import Device, EngineLostError

HANG, DIE, BREAK, WRONG = 1, 2, 3, 4  # kernel indices
HURT = 2  # the problem on which they misbehave
LOG = "TILEWISE_TEST_LOG"  # names a file that lists each measured (problem, kernel)
SLOW = "TILEWISE_TEST_SLOW_S"  # how long each kernel takes


class FakeEngine:
    """Engine whose kernel i takes i + 1 ms; the constants above name the bad kernels."""

    def __init__(self, plan: Plan, index: int) -> None:
        self._plan = plan
        self._index = index

    def device(self) -> Device:
        return Device("fake", f"fake-{self._index}", None, "none", "made_up")

    def measure(
        self,
        item: Item,
        known: Mapping[int, Outcome],
        begin: Callable[[int | None], None],
        careful: bool = False,
    ) -> list[Outcome]:
        number = self._plan.items.index(item)
        self._prepare(number, known, begin, careful)
        outcomes = dict(known)
        if not careful:
            begin(None)
        for i in range(len(self._plan.pool)):
            if i in outcomes:
                continue
            if careful:
                begin(i)
            if number == HURT:
                outcomes[i] = self._misbehave(i)
            else:
                outcomes[i] = _ok(i)
            time.sleep(float(os.environ.get(SLOW, "0")))
            with open(os.environ[LOG], "a") as f:
                f.write(f"{number} {i}\n")
        begin(None)
        return [outcomes[i] for i in range(len(self._plan.pool))]

    def _prepare(
        self, number: int, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool
    ) -> None:
        """Run before the kernels of a problem; subclasses misbehave here."""

    def _misbehave(self, i: int) -> Outcome:
        if i == HANG:
            time.sleep(60)
        if i == DIE:
            os._exit(3)
        if i == BREAK:
            raise EngineLostError("an illegal memory access was encountered")
        return Outcome("wrong_result", "7 elements") if i == WRONG else _ok(i)


def broken_engine(plan: Plan, index: int) -> FakeEngine:
    """Fail to start."""
    raise RuntimeError("no CUDA-capable device is detected")


def half_broken_engine(plan: Plan, index: int) -> FakeEngine:
    """Fail to start on device 0 only."""
    return broken_engine(plan, index) if index == 0 else FakeEngine(plan, index)


class UnpreparedEngine(FakeEngine):
    """Engine that breaks on one problem before any kernel runs, as when memory does not suffice."""

    def _prepare(
        self, number: int, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool
    ) -> None:
        if number == HURT and len(known) < len(self._plan.pool):
            raise MemoryError("out of memory")


class HastyEngine(FakeEngine):
    """Engine that takes too long on one problem when all kernels run together; each kernel alone is fine."""

    def _prepare(
        self, number: int, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool
    ) -> None:
        if number == HURT and not careful:
            begin(0)  # announced, but others may still run, so kernel 0 is not the culprit
            time.sleep(60)

    def _misbehave(self, i: int) -> Outcome:
        return _ok(i)


def _ok(i: int) -> Outcome:
    ms = float(i + 1)
    return Outcome("ok", None, Samples((ms, ms, 2 * ms), (1980,), 1))
