"""benchmarks/README.md lists every script in one line, with its committed result or the reason for having none."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in BENCHMARKS.rglob("*.py") if path.name != "__init__.py")
RESULTS = sorted(path.name for path in (BENCHMARKS / "results").glob("*.json"))
ROWS = {
    cells[0].strip("`"): cells
    for line in (BENCHMARKS / "README.md").read_text().splitlines()
    if line.startswith("| `") and (cells := [cell.strip() for cell in line.strip("|").split("|")])
}


def _result_patterns(cell: str) -> list[str]:
    """Return regular expressions for the file names of a row: words in capitals are placeholders."""
    names = [name.replace(".", r"\.") for name in re.findall(r"`([\w.]+\.json)`", cell)]
    return [re.sub(r"(?<![a-z])[A-Z]+(?![a-z])", r"\\w+", name) for name in names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(BENCHMARKS).as_posix())
def test_script_is_listed_with_its_result_or_a_reason(script: Path) -> None:
    _, question, _, result = ROWS[script.relative_to(BENCHMARKS).as_posix()]
    assert question
    if not re.match(r"none: \w+", result):
        patterns = _result_patterns(result)
        assert patterns, result
        assert all(any(re.fullmatch(pattern, name) for name in RESULTS) for pattern in patterns), result


def test_every_row_is_a_script_and_every_result_has_a_row() -> None:
    assert sorted(ROWS) == [path.relative_to(BENCHMARKS).as_posix() for path in SCRIPTS]
    patterns = [pattern for cells in ROWS.values() for pattern in _result_patterns(cells[3])]
    assert [name for name in RESULTS if not any(re.fullmatch(pattern, name) for pattern in patterns)] == []
