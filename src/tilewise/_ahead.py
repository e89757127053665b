"""Work on large tables by two threads: one reads or computes a part while the other uses the part before it.

Arrow, NumPy, LightGBM and the compression of files let other threads run, so that this nearly halves the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")

_END = object()


def ahead(parts: Iterable[T]) -> Iterator[T]:
    """Yield the parts; another thread makes the next one meanwhile.

    Raises:
        Exception: whatever making a part raises, in its turn.
    """
    source: Iterator[object] = iter(parts)
    thread = ThreadPoolExecutor(1, "ahead")
    try:
        following = thread.submit(next, source, _END)
        while (part := following.result()) is not _END:
            following = thread.submit(next, source, _END)
            yield cast(T, part)
            del part
    finally:
        thread.shutdown(wait=False)  # the garbage collector may end this in the very thread that would be waited for


def begin(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Call the function in a thread of its own, which does not keep the process from ending."""
    result: Future[T] = Future()

    def call() -> None:
        try:
            result.set_result(function(*args, **kwargs))
        except BaseException as e:  # whoever waits for the result gets it
            result.set_exception(e)

    Thread(target=call, name="begun", daemon=True).start()
    return result
