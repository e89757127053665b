"""Measuring aside: no call waits, the program's tensors are left alone, and later calls use the result."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import tilewise
from autotuning.kernels import recorded
from tilewise.autotuning._aside import AsideQueue


@pytest.mark.long
def test_later_calls_use_the_result_of_a_measurement_aside() -> None:
    threads: dict[int, set[str]] = {}

    @tilewise.autotune(configs=[{"ms": 20}, {"ms": 0}], key=["n"], measure="aside", rep=5)
    def fill(x: np.ndarray, n: int, *, ms: int) -> int:
        threads.setdefault(id(x), set()).add(threading.current_thread().name)
        time.sleep(ms / 1e3)
        return ms

    @fill.inputs  # type: ignore[untyped-decorator]
    def inputs(n: int) -> tuple[tuple[object, ...], dict[str, object]]:
        return (np.zeros(n), n), {}

    mine = np.zeros(4)
    assert fill(mine, 4) == 20
    deadline = time.monotonic() + 30
    while fill(mine, 4) == 20 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert fill(mine, 4) == 0
    assert threads[id(mine)] == {"MainThread"}
    assert len(threads) == 2


def test_without_inputs_the_default_serves_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    tuned = recorded({1: 2.0, 2: 1.0}, measure="aside")
    assert tuned(3) == tuned(3) == 1
    deadline = time.monotonic() + 10
    while "not measured aside" not in caplog.text and time.monotonic() < deadline:
        time.sleep(0.01)
    assert caplog.text.count("is not measured aside: its inputs must make such a call; none are defined") == 1


def test_a_failing_job_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    queue, done = AsideQueue(), threading.Event()
    queue.submit("a", lambda: 1 // 0)
    queue.submit("b", done.set)
    assert done.wait(10)
    assert "ZeroDivisionError" in caplog.text


def test_a_subject_is_queued_once() -> None:
    queue, done, ran = AsideQueue(), threading.Event(), list[int]()
    for _ in range(3):
        queue.submit("a", lambda: ran.append(1))
    queue.submit("b", done.set)
    assert done.wait(10)
    assert ran == [1]
