"""Threads that wait for each other's looks, in tests of shared answers."""

from __future__ import annotations

import time
from typing import Any

from tilewise.dispatch.sources._shared_answers import SharedAnswers

WAIT_S = 30.0


def wait_for_threads(answers: SharedAnswers[Any], count: int) -> None:
    """Wait until so many threads ask one question, and none asks another."""
    end = time.monotonic() + WAIT_S
    while [question.threads for question in list(answers._questions.values())] != [count]:
        assert time.monotonic() < end, "the threads did not come"
        time.sleep(0.005)
