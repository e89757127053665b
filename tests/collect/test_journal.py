"""A journal returns its entries after any crash, and is refused for another plan, format or run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tilewise.collect import Outcome, Plan, Samples
from tilewise.collect._journal import Journal
from tilewise.collect.engines import Device
from tilewise.errors import DataError

DEVICES = (Device("a", "uuid-a", "580", "torch", "cold"), Device("a", "uuid-b", "580", "torch", "cold"))


def outcomes(seed: int) -> list[Outcome]:
    """Return six outcomes: two ok, with and without a clock; two equal refusals; one without a reason; one wrong."""
    ms = 0.1 * (seed + 1) / 3
    return [
        Outcome("ok", None, Samples((ms, 2 * ms, 3 * ms), (1980, 1965, 1980), 4)),
        Outcome("unsupported", "more groups"),
        Outcome("ok", None, Samples((ms,), (), 1)),
        Outcome("unsupported", "more groups"),
        Outcome("runtime_error"),
        Outcome("wrong_result", "7 elements"),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "j"


def test_entries_survive_reopening(plan: Plan, path: Path) -> None:
    with Journal(path, plan) as journal:
        for i in (3, 0, 4):
            journal.add(i, f"2026-01-01T00:00:0{i}+00:00", DEVICES[i % 2], outcomes(i))
        journal.note_broken(1, {5: Outcome("timeout", "no answer")})
        journal.note_broken(3, {5: Outcome("timeout", "of a problem that is measured since")})
        entries = dict(journal.entries)
    with Journal(path, plan) as again:
        assert again.entries == entries
        assert again.broken[1] == {5: Outcome("timeout", "no answer")}
    entry = entries[3]
    assert entry.by_status == {"ok": 2, "unsupported": 2, "runtime_error": 1, "wrong_result": 1}
    assert [(g.error, list(g.kernels)) for g in entry.failed] == [
        ("more groups", [1, 3]),
        ("runtime_error", [4]),  # every failure has a reason
        ("7 elements", [5]),
    ]
    assert entry.ok["latency_ms"] == [pytest.approx(0.8 / 3, rel=1e-7), pytest.approx(0.4 / 3, rel=1e-7)]
    assert entry.ok["sm_clock_mhz"] == [1980, None]


def test_a_file_cut_anywhere_keeps_its_whole_lines(plan: Plan, path: Path) -> None:
    with Journal(path, plan) as journal:
        for i in range(3):
            journal.add(i, "2026-01-01T00:00:00+00:00", DEVICES[0], outcomes(i))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]  # of the header, the device, three problems
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with Journal(path, plan) as journal:
            assert set(journal.entries) == set(range(sum(end <= cut for end in ends[2:])))
            journal.add(4, "2026-01-01T00:00:00+00:00", DEVICES[1], outcomes(4))
        with Journal(path, plan) as journal:
            assert journal.entries[4].device == DEVICES[1]


def test_the_journal_of_another_plan_is_refused(plan: Plan, path: Path) -> None:
    with Journal(path, plan):
        pass
    other = dataclasses.replace(plan, run_id="run-2")
    with pytest.raises(DataError, match="another plan"):
        Journal(path, other)


def test_an_older_format_is_refused(plan: Plan, path: Path) -> None:
    path.write_text(json.dumps({"plan": plan.hash, "run_id": "run-1"}) + "\n")
    with pytest.raises(DataError, match="journal format 1, this version writes 2; finish that run"):
        Journal(path, plan)


def test_a_journal_serves_one_run_at_a_time(plan: Plan, path: Path) -> None:
    with Journal(path, plan), pytest.raises(DataError, match="in use by another run"):
        Journal(path, plan)
    with Journal(path, plan):
        pass


@pytest.mark.parametrize(
    "line",
    [
        "{nonsense}",
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["ok","",[0]]]}',
        '{"done":9,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["ok","",[0,1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0,1,2,3,4,5],"latency_ms":[1]},"failed":[]}',
        '{"done":0,"at":"now","on":7,"ok":{"kernel":[]},"failed":[["ok","",[0,1,2,3,4,5]]]}',
    ],
)
def test_a_damaged_line_is_named(plan: Plan, path: Path, line: str) -> None:
    with Journal(path, plan) as journal:
        journal.add(1, "2026-01-01T00:00:00+00:00", DEVICES[0], outcomes(1))
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(DataError, match=r"j:4: damaged journal line"):
        Journal(path, plan)
