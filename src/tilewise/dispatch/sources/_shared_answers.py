"""One answer for all threads of a process that ask the same question at the same time.

When an alias moves, all dispatchers of a process look at the registry at once. Those that come while another one looks
wait for it, and then one of them looks for all that wait: an answer that was asked for before a thread came may be
older than the move that the thread heard of.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from tilewise.dispatch.background import register_after_fork

T = TypeVar("T")


@dataclass
class _Question(Generic[T]):
    """A question that threads ask now.

    Attributes:
        threads: number of threads that ask it.
        begun: number of looks that have begun.
        ended: number of the last look that gave an answer or an error.
        is_looking: whether a look is in progress.
        answer: of the last look; None after an error.
        error: of the last look.
    """

    threads: int = 0
    begun: int = 0
    ended: int = 0
    is_looking: bool = False
    answer: T | None = None
    error: Exception | None = None


class SharedAnswers(Generic[T]):
    """Shares answers between threads, and keeps none when the last thread that asked has it."""

    def __init__(self) -> None:
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Forget questions in a forked child, in which the threads that ask them do not exist."""
        self._changed = threading.Condition()
        self._questions: dict[Hashable, _Question[T]] = {}

    def ask(self, key: Hashable, look: Callable[[T | None], T | None]) -> T | None:
        """Return the answer of a look that began after this call.

        Args:
            key: the question; other questions share nothing with it.
            look: finds the answer. It gets that of the look before, if this thread waited for it; else None.

        Raises:
            Exception: any error of the look, in all threads that waited for it; the next call looks again.
        """
        with self._asking(key) as question:
            arrived = question.begun
            self._changed.wait_for(lambda: question.ended > arrived or not question.is_looking)
            if question.ended <= arrived:
                self._look(question, look)
            if question.error is not None:
                raise question.error
            return question.answer

    @contextmanager
    def _asking(self, key: Hashable) -> Iterator[_Question[T]]:
        """Hold the lock, and keep the question as long as a thread asks it."""
        with self._changed:
            question = self._questions.setdefault(key, _Question())
            question.threads += 1
            try:
                yield question
            finally:
                question.threads -= 1
                if not question.threads:
                    del self._questions[key]

    def _look(self, question: _Question[T], look: Callable[[T | None], T | None]) -> None:
        """Look without the lock, and note the result; after an interrupt, which notes none, another thread looks."""
        question.begun += 1
        question.is_looking = True
        number, before = question.begun, question.answer
        answer, error = None, None
        self._changed.release()
        try:
            answer = look(before)
        except Exception as e:
            error = e
        except BaseException:
            number = question.ended
            raise
        finally:
            self._changed.acquire()
            question.is_looking = False
            question.ended, question.answer, question.error = number, answer, error
            self._changed.notify_all()
