"""A journal returns its entries after any crash or damage, and is refused for another plan, format or run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tilewise.collect import Outcome, Plan, Samples, measurement_table
from tilewise.collect._journal import Journal, _checksum
from tilewise.collect.engines import Device
from tilewise.errors import DataError

AT = "2026-01-01T00:00:00+00:00"
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
            journal.add(i, AT, DEVICES[0], outcomes(i))
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]  # of the header, the device, three problems
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with Journal(path, plan) as journal:
            assert set(journal.entries) == set(range(sum(end <= cut for end in ends[2:])))
            journal.add(4, AT, DEVICES[1], outcomes(4))
        with Journal(path, plan) as journal:
            assert journal.entries[4].device == DEVICES[1]


def test_the_journal_of_another_plan_is_refused(plan: Plan, path: Path) -> None:
    with Journal(path, plan):
        pass
    other = dataclasses.replace(plan, run_id="run-2")
    with pytest.raises(DataError, match="another plan"):
        Journal(path, other)


@pytest.mark.parametrize(("header", "number"), [({}, 1), ({"journal": 2}, 2)])
def test_an_older_format_is_refused(plan: Plan, path: Path, header: dict[str, int], number: int) -> None:
    path.write_text(json.dumps({**header, "plan": plan.hash, "run_id": "run-1"}) + "\n")
    with pytest.raises(DataError, match=f"journal format {number}, this version writes 3; finish that run"):
        Journal(path, plan)


def test_a_journal_serves_one_run_at_a_time(plan: Plan, path: Path) -> None:
    with Journal(path, plan), pytest.raises(DataError, match="in use by another run"):
        Journal(path, plan)
    with Journal(path, plan):
        pass


def test_a_journal_without_a_valid_line_is_moved_aside(plan: Plan, path: Path) -> None:
    path.write_bytes(b"\xff\0 not a journal\n")
    with pytest.warns(UserWarning, match="no valid line of this plan; the file is moved to j.damaged"):
        journal = Journal(path, plan)
    with journal:
        journal.add(1, AT, DEVICES[0], outcomes(1))
    assert path.with_name("j.damaged").read_bytes() == b"\xff\0 not a journal\n"
    with Journal(path, plan) as again:
        assert set(again.entries) == {1}


def test_any_flipped_byte_costs_at_most_what_its_line_held(plan: Plan, path: Path) -> None:
    """Also of the first line, which states the plan, and of figures, which would become other labels."""
    with Journal(path, plan) as journal:
        for i in range(3):
            journal.add(i, AT, DEVICES[0], outcomes(i))
        entries = dict(journal.entries)
    whole = path.read_bytes()
    for at in range(0, len(whole) - 1, 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        line = whole.count(b"\n", 0, at) + 1
        with pytest.warns(UserWarning, match=rf"j:{line}: \d damaged lines are skipped|moved to j.damaged"):
            journal = Journal(path, plan)
        with journal:
            kept = journal.entries
            assert set(entries) - set(kept) <= ({0, 1, 2} if line == 2 else {line - 3})
            assert all(entries[i] == entry for i, entry in kept.items())
        path.with_name("j.damaged").unlink(missing_ok=True)


def test_impossible_times_and_texts_of_a_library_are_kept_for_the_quality_checks(plan: Plan, path: Path) -> None:
    odd = [Outcome("ok", None, Samples((ms,), (0,), 1)) for ms in (float("inf"), 0.0, -1.0)]
    with Journal(path, plan) as journal:
        journal.note_broken(2, {5: Outcome("timeout", None), 4: Outcome("timeout", "half \ud800")})
        journal.add(1, AT, DEVICES[0], [*odd, *([Outcome("runtime_error", "half \ud800")] * 3)])
        entries, broken = dict(journal.entries), dict(journal.broken)
    assert measurement_table(plan, entries.values()).num_rows == 6
    with Journal(path, plan) as again:
        assert repr((again.entries, again.broken)) == repr((entries, broken))  # NaN differs from itself
    assert broken[2][4].error == "half ?"


def test_a_lost_device_is_not_mistaken_for_a_later_one(plan: Plan, path: Path) -> None:
    with Journal(path, plan) as journal:
        journal.add(0, AT, DEVICES[0], outcomes(0))
        journal.add(1, AT, DEVICES[1], outcomes(1))
    lines = path.read_bytes().splitlines(keepends=True)
    assert b"uuid-b" in lines[3]
    path.write_bytes(b"".join(lines[:3]) + b"?" + b"".join(lines[3:]))
    with pytest.warns(UserWarning, match="j:4: 2 damaged lines"):
        journal = Journal(path, plan)
    with journal:
        assert set(journal.entries) == {0}
        journal.add(2, AT, DEVICES[1], outcomes(2))
    with pytest.warns(UserWarning, match="damaged"), Journal(path, plan) as again:
        assert {i: entry.device for i, entry in again.entries.items()} == {0: DEVICES[0], 2: DEVICES[1]}


def test_a_resumed_run_keeps_the_version_of_the_programs_of_each_problem(plan: Plan, path: Path) -> None:
    later = dataclasses.replace(DEVICES[0], programs_version=2)
    for index, device in enumerate((DEVICES[0], later)):
        with Journal(path, plan) as journal:
            journal.add(index, AT, device, outcomes(index))
    with Journal(path, plan) as again:
        assert [entry.device.programs_version for _, entry in sorted(again.entries.items())] == [None, 2]


@pytest.mark.parametrize(
    "line",
    [
        "{nonsense}",
        "[" * 3000,
        '{"unknown":0}',
        '{"broke":0,"kernels":[[true,"timeout","no answer"]]}',
        '{"broke":0,"kernels":[[6,"timeout","no answer"]]}',
        '{"device":{"hw_device":"\\ud800","hw_uuid":null,"driver":null,"libraries":"","regime":""},"number":3}',
        *(
            '{"device":{"hw_device":"a","hw_uuid":null,"driver":null,"libraries":"","regime":"","programs_version":'
            f'{version}}},"number":3}}'
            for version in ("0", "2.0", '"2"', "true", "2147483648")
        ),
        '{"done":true,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["timeout","t",[0,1,2,3,4,5]]]}',
        '{"done":9,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["timeout","t",[0,1,2,3,4,5]]]}',
        '{"done":0,"at":1,"on":0,"ok":{"kernel":[]},"failed":[["timeout","t",[0,1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":7,"ok":{"kernel":[]},"failed":[["timeout","t",[0,1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["timeout","t",[0]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[]},"failed":[["ok","",[0,1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0,1,2,3,4,5],"latency_ms":[1]},"failed":[]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0],"latency_ms":["1"]},"failed":[["timeout","t",[1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0],"latency_ms":[true]},"failed":[["timeout","t",[1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0],"latency_ms":[1],"repeats":[1.5]},"failed":[["t","t",[1,2,3,4,5]]]}',
        '{"done":0,"at":"now","on":0,"ok":{"kernel":[0],"latency_ms":[1],"else":[1]},"failed":[["t","t",[1,2,3,4,5]]]}',
    ],
)
def test_a_line_with_impossible_content_is_skipped_whatever_its_checksum(plan: Plan, path: Path, line: str) -> None:
    with Journal(path, plan) as journal:
        journal.add(1, AT, DEVICES[0], outcomes(1))
    sealed = line.encode() + b"\t" + _checksum(line.encode(), plan.hash) + b"\n"
    path.write_bytes(path.read_bytes() + sealed)
    with pytest.warns(UserWarning, match="j:4: 1 damaged lines are skipped"):
        journal = Journal(path, plan)
    with journal:
        assert set(journal.entries) == {1}
        assert not journal.broken
