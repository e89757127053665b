"""Readers keep their guarantees on damaged files; ``python -m benchmarks.robustness.fuzz`` tries many more."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzzed.readers import READERS

SLOW = [name for name in READERS if name.startswith("table_") or name in ("compiled", "cost_model", "scores")]
pytestmark = pytest.mark.filterwarnings("ignore")  # of damages, which are reported; and of huge numbers in a model


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Log nothing: pytest-xdist cannot send a report whose captured log has half a character."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_an_intact_file_is_read(name: str, tmp_path: Path) -> None:
    assert READERS[name].read(READERS[name].sample(), tmp_path) != "refused"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in READERS if name not in SLOW])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    damage(name, 60, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_many_damaged_files(name: str, tmp_path: Path) -> None:
    damage(name, 100 if name in SLOW else 1000, tmp_path)


def damage(name: str, count: int, folder: Path) -> None:
    """Read damaged files; the number in a failure's trace is that of ``benchmarks.robustness.fuzz --only``."""
    for number in range(count):
        READERS[name].read(READERS[name].variant(random.Random(f"{name}-0-{number}")), folder)
