"""Threads share an answer that was asked for after each of them came, never an older one or another question's."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewise.dispatch.sources._shared_answers import SharedAnswers

WAIT_S = 20.0


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


def wait_for_threads(answers: SharedAnswers[int], key: str, count: int) -> None:
    """Wait until so many threads ask the question."""
    end = threading.Event()
    for _ in range(int(WAIT_S / 0.005)):
        with answers._changed:
            if answers._questions[key].threads == count:
                return
        end.wait(0.005)
    raise AssertionError("the threads did not come")


def test_those_that_come_while_one_looks_share_the_next_look() -> None:
    """The look in progress may have begun before the move that they heard of."""
    answers, looks = SharedAnswers[int](), Looks()
    with ThreadPoolExecutor(10) as pool:
        first = pool.submit(answers.ask, "key", looks.look)
        assert looks.began.wait(WAIT_S)
        others = [pool.submit(answers.ask, "key", looks.look) for _ in range(9)]
        wait_for_threads(answers, "key", 10)
        looks.go_on.set()
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

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(answers.ask, "key", look)
        assert looks.began.wait(WAIT_S)
        others = [pool.submit(answers.ask, "key", look) for _ in range(4)]
        wait_for_threads(answers, "key", 5)
        looks.go_on.set()
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

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(answers.ask, "key", look)
        assert looks.began.wait(WAIT_S)
        others = [pool.submit(answers.ask, "key", look) for _ in range(2)]
        wait_for_threads(answers, "key", 3)
        looks.go_on.set()
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
