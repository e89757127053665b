"""Pages that promise something line by line name a test for each line, and it exists."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAST = {"gate-attacks.md": 40, "expectations.md": 60, "coming-from-ck-tile.md": 40}  # lines of each page
ROWS = [
    (page, cells[0], cells[-1].strip("`"))
    for page in LEAST
    for line in (ROOT / "docs" / page).read_text().splitlines()
    if line.startswith("| ") and "::" in line
    for cells in [[cell.strip() for cell in line.strip().strip("|").split(" | ")]]
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


@pytest.mark.parametrize("page", LEAST)
def test_a_page_has_enough_different_lines(page: str) -> None:
    lines = [line for of, line, _ in ROWS if of == page]
    assert len(set(lines)) == len(lines) >= LEAST[page]


@pytest.mark.parametrize(("page", "line", "test"), ROWS, ids=[f"{page}: {line}" for page, line, _ in ROWS])
def test_a_line_names_a_test_that_exists(page: str, line: str, test: str) -> None:
    assert line, page
    file, _, name = test.partition("::")
    assert name in _tests(ROOT / file), f"{file} has no test {name}; it has {', '.join(sorted(_tests(ROOT / file)))}"
