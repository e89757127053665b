"""Threads share an answer that was asked for after each of them came, never an older one or another question's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from shared_looks import WAIT_S, wait_for_threads
from tilewise.dispatch.sources._shared_answers import SharedAnswers


class Looks:
    """Looks that return their number; the first one lasts until it is let go."""

    def __init__(self) -> None:
        self.known: list[int | None] = []
        self.began, self.go_on = threading.Event(), threading.Event()

    def look(self, known: int | None) -> int:
        self.known.append(known)
        number = len(self.known)
        if number == 1:
            self.began.set()
            assert self.go_on.wait(WAIT_S)
        return number


@contextmanager
def waiting(
    answers: SharedAnswers[int], looks: Looks, look: Callable[[int | None], int], count: int
) -> Iterator[tuple[Future[int | None], list[Future[int | None]]]]:
    """Yield the first look, which is let go once `count` others wait for it, and those others."""
    with ThreadPoolExecutor(1 + count) as pool:
        first = pool.submit(answers.ask, "key", look)
        assert looks.began.wait(WAIT_S)
        others = [pool.submit(answers.ask, "key", look) for _ in range(count)]
        wait_for_threads(answers, 1 + count)
        looks.go_on.set()
        yield first, others


def test_those_that_come_while_one_looks_share_the_next_look() -> None:
    """The look in progress may have begun before the move that they heard of."""
    answers, looks = SharedAnswers[int](), Looks()
    with waiting(answers, looks, looks.look, 9) as (first, others):
        assert first.result(WAIT_S) == 1
        assert [other.result(WAIT_S) for other in others] == [2] * 9
    assert looks.known == [None, 1], "the second look knows what the first one found"
    assert not answers._questions, "no answer is kept"


def test_one_after_the_other_share_nothing() -> None:
    answers, looks = SharedAnswers[int](), Looks()
    looks.go_on.set()
    assert [answers.ask("key", looks.look) for _ in range(3)] == [1, 2, 3]
    assert looks.known == [None] * 3


def test_other_questions_do_not_wait() -> None:
    answers, looks = SharedAnswers[int](), Looks()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answers.ask, "key", looks.look)
        assert looks.began.wait(WAIT_S)
        assert answers.ask("other", lambda known: 7 if known is None else 8) == 7
        looks.go_on.set()
        assert first.result(WAIT_S) == 1


def test_all_see_the_error_of_their_look_and_the_next_call_looks_again() -> None:
    answers, looks = SharedAnswers[int](), Looks()

    def look(known: int | None) -> int:
        if looks.look(known) == 2:
            raise OSError("the registry is away")
        return len(looks.known)

    with waiting(answers, looks, look, 4) as (first, others):
        assert first.result(WAIT_S) == 1
        for other in others:
            with pytest.raises(OSError, match="the registry is away"):
                other.result(WAIT_S)
    assert answers.ask("key", look) == 3
    assert looks.known == [None, 1, None], "nothing is known after an error"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_those_that_wait_look_themselves_if_the_first_one_fails(error: type[BaseException]) -> None:
    """An interrupt, too, ends the look of its own thread only."""
    answers, looks = SharedAnswers[int](), Looks()

    def look(known: int | None) -> int:
        if looks.look(known) == 1:
            raise error
        return len(looks.known)

    with waiting(answers, looks, look, 2) as (first, others):
        assert isinstance(first.exception(WAIT_S), error)
        assert [other.result(WAIT_S) for other in others] == [2, 2]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_its_parents_threads(within: Callable[[int], int]) -> None:
    answers, looks = SharedAnswers[int](), Looks()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(answers.ask, "key", looks.look)
        assert looks.began.wait(WAIT_S)
        child = os.fork()
        if not child:
            os._exit(0 if answers.ask("key", lambda _: 7) == 7 else 1)
        status = within(child)
        looks.go_on.set()
        assert (first.result(WAIT_S), status) == (1, 0)


@pytest.fixture
def within() -> Callable[[int], int]:
    """Return a function that waits for a child, and kills it after a while."""

    def _wait(child: int) -> int:
        timer = threading.Timer(WAIT_S, os.kill, (child, 9))
        timer.start()
        try:
            return os.waitpid(child, 0)[1]
        finally:
            timer.cancel()

    return _wait
