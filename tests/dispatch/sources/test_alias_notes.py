"""The notes of an alias: the last content first, few of them, and nothing of a damaged file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewise.dispatch.sources._alias_notes import AliasNote, read_notes, write_notes

NOTES = [AliasNote(f"{number:064x}", number) for number in range(9, 0, -1)]


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_they_come_back(tmp_path: Path, count: int) -> None:
    write_notes(tmp_path / "production.json", NOTES)
    write_notes(tmp_path / "production.json", NOTES[:count])
    assert read_notes(tmp_path / "production.json") == NOTES[:count]


def test_the_last_four_are_kept(tmp_path: Path) -> None:
    write_notes(tmp_path / "production.json", NOTES)
    assert read_notes(tmp_path / "production.json") == NOTES[:4]


def test_a_file_of_an_earlier_tilewise(tmp_path: Path) -> None:
    (tmp_path / "production.json").write_text(json.dumps(NOTES[0]._asdict()) + "\n")
    assert read_notes(tmp_path / "production.json") == NOTES[:1]


@pytest.mark.parametrize(
    "before", [7, "x", {}, [7], [[]], [{"content_hash": "../x", "version": 1}], [{"content_hash": "0" * 64}]]
)
def test_damaged_ones_are_left_out(tmp_path: Path, before: Any) -> None:
    (tmp_path / "production.json").write_text(json.dumps(NOTES[0]._asdict() | {"before": before}))
    assert read_notes(tmp_path / "production.json") == NOTES[:1]
