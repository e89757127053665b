"""Parts that another thread makes come in order, one ahead, and its errors come in their turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tilewise._ahead import ahead


def test_parts_come_in_order_and_the_next_one_is_made_by_another_thread() -> None:
    second = threading.Event()

    def parts() -> Iterator[int]:
        yield 1
        assert threading.current_thread() is not threading.main_thread()
        second.set()
        yield from (2, 3)

    made = ahead(parts())
    assert next(made) == 1
    assert second.wait(10)  # while the first part is in use
    assert list(made) == [2, 3]
    assert list(ahead([])) == []


def test_an_error_comes_after_the_parts_before_it() -> None:
    def parts() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    made = ahead(parts())
    assert next(made) == 1
    with pytest.raises(ValueError, match="broken"):
        next(made)


def test_no_thread_stays_where_parts_are_left() -> None:
    made = ahead(iter(range(9)))
    next(made)
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
    assert workers
    made.close()  # type: ignore[attr-defined]  # a generator
    for worker in workers:
        worker.join(10)
        assert not worker.is_alive()
