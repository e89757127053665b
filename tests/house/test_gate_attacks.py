"""docs/gate-attacks.md lists at least forty ways around the gate, each with a test that exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in (ROOT / "docs" / "gate-attacks.md").read_text().splitlines()
    if line.startswith("| ") and "::" in line
]


@cache
def _tests(path: Path) -> frozenset[str]:
    """Return the names of a file's tests, in the form ``Class::test`` or ``test``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return frozenset(found)


def test_there_are_at_least_forty_different_ways() -> None:
    assert len({way for way, _, _ in ROWS}) == len(ROWS) >= 40


@pytest.mark.parametrize(("way", "meets", "test"), ROWS, ids=[row[0] for row in ROWS])
def test_each_is_tried_by_a_test(way: str, meets: str, test: str) -> None:
    assert way
    assert meets
    file, _, name = test.strip("`").partition("::")
    assert name in _tests(ROOT / file), f"{file} has no test {name}; it has {', '.join(sorted(_tests(ROOT / file)))}"
