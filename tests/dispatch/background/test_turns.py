"""Threads take short turns while a block needs it; the application's interval comes back afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from alone import run_alone
from tilewise.dispatch.background import short_turns


@pytest.fixture(autouse=True)
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield
    sys.setswitchinterval(before)


def test_the_interval_is_short_in_overlapping_blocks_and_restored_after_the_last() -> None:
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(1e-4)
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(0.005)


def test_an_interval_that_the_application_sets_meanwhile_stays() -> None:
    with short_turns():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == pytest.approx(0.002)


def test_a_shorter_interval_stays() -> None:
    sys.setswitchinterval(1e-5)
    with short_turns():
        assert sys.getswitchinterval() == pytest.approx(1e-5)
    assert sys.getswitchinterval() == pytest.approx(1e-5)


def test_a_forked_child_has_the_applications_interval() -> None:
    run_alone("""
        import os, sys
        from tilewise.dispatch.background import short_turns

        before = sys.getswitchinterval()
        with short_turns():
            child = os.fork()
            if not child:
                os._exit(sys.getswitchinterval() != before)
            assert os.waitpid(child, 0)[1] == 0
        assert sys.getswitchinterval() == before
    """)
