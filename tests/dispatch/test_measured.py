"""The measured cache: an entry is what was written or it is none, and machines' caches merge in any order."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.measurers import MACHINE
from synthetic import CONV
from tilewise.collect.results import Outcome, Samples
from tilewise.dispatch import housekeeping
from tilewise.dispatch.machine import kernels_hash
from tilewise.dispatch.measured import FORMAT, Context, Entry, Memory, _digest
from tilewise.errors import DataError
from tilewise.ops import GemmProblem, GroupedConvProblem

CONTEXT = Context(CONV, "p" * 64, MACHINE)
PROBLEM = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3)
OUTCOMES = {
    0: Outcome("ok", None, Samples((0.75, 0.5, 0.25), (1980, 1950, 1965), 4)),
    1: Outcome("timeout", "too long"),
    2: Outcome("ok", None, Samples((0.125,), (), 1)),
}
OK: dict[str, list[Any]] = {
    "kernel": [2, 0],
    "latency_ms": [0.125, 0.5],
    "latency_min_ms": [0.125, 0.25],
    "latency_p20_ms": [0.125, 0.35],
    "latency_p80_ms": [0.125, 0.65],
    "repeats": [1, 3],
    "unrolled": [1, 4],
    "sm_clock_mhz": [None, 1965],
}
ENTRY = Entry(CONTEXT, PROBLEM, OK, [("timeout", "too long", [1])], "2026-01-01T00:00:00+00:00")
# as TILEWISE_CACHE held it before figures beside the median were kept
FIRST_FORMAT = {
    "format": 1,
    "context": asdict(CONTEXT),
    "problem": {"op": PROBLEM.op, **PROBLEM.to_dict()},
    "latency_ms": [[2, 0.125], [0, 0.5]],
    "failed": [[1, "timeout"]],
    "measured_at": ENTRY.measured_at,
}


def one(ms: float) -> dict[int, Outcome]:
    """Kernel 0 measured."""
    return {0: Outcome("ok", None, Samples((ms,), (), 1))}


def with_ok(*times: tuple[int, float]) -> Entry:
    """The entry with these kernels and times."""
    return replace(ENTRY, ok={"kernel": [k for k, _ in times], "latency_ms": [ms for _, ms in times]})


def put(root: Path, entry: Entry) -> Path:
    path = root / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(entry.dumps())
    return path


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.json"))}


def test_what_is_put_is_found_again(tmp_path: Path) -> None:
    memory = Memory(tmp_path, CONTEXT, 3)
    entry = memory.put(PROBLEM, OUTCOMES, ENTRY.measured_at)
    assert entry == ENTRY == memory.get(PROBLEM) == Memory(tmp_path, CONTEXT, 3).get(PROBLEM)
    assert Entry.loads(ENTRY.dumps(), ENTRY.path) == ENTRY
    assert memory.get(replace(PROBLEM, N=9)) is None


def test_an_entry_of_the_first_format_still_serves_and_is_written_anew_by_a_merge(tmp_path: Path) -> None:
    path = tmp_path / "old" / ENTRY.path
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(FIRST_FORMAT | {"sha256": _digest(FIRST_FORMAT)}))
    found = Memory(tmp_path / "old", CONTEXT, 3).get(PROBLEM)
    assert found is not None
    assert found.latency_ms == ENTRY.latency_ms
    assert (found.tried, found.measured_at) == (ENTRY.tried, ENTRY.measured_at)
    housekeeping.merge(tmp_path / "old", tmp_path / "new")
    assert json.loads((tmp_path / "new" / ENTRY.path).read_text())["format"] == FORMAT
    assert Memory(tmp_path / "new", CONTEXT, 3).get(PROBLEM) == found


def test_layouts_are_different_problems(tmp_path: Path) -> None:
    memory = Memory(tmp_path, replace(CONTEXT, target="gemm_universal_bf16_sm90"), 3)
    memory.put(GemmProblem(1, 2, 3), one(1.0), "")
    assert memory.look(GemmProblem(1, 2, 3, "rrr")) is None
    assert memory.look(GemmProblem(1, 2, 3)) is not None


def test_another_process_measured_it(tmp_path: Path) -> None:
    ours, theirs = (Memory(tmp_path, CONTEXT, 3) for _ in range(2))
    theirs.put(PROBLEM, one(1.0), "")
    assert ours.get(PROBLEM) is None
    assert ours.look(PROBLEM) == theirs.get(PROBLEM) == ours.get(PROBLEM)


def test_a_disk_that_cannot_be_written_costs_only_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    memory = Memory(tmp_path / "file", CONTEXT, 3)
    memory.put(PROBLEM, one(1.0), "")
    assert memory.get(PROBLEM) is not None
    assert "cannot be kept" in caplog.text


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_entry_is_none(data: st.DataObject, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Bytes changed, cut off, added or replaced by other JSON: never a wrong answer, never an error."""
    caplog.set_level(logging.CRITICAL)
    good = ENTRY.dumps()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = data.draw(
        st.one_of(
            st.integers(1, 255).map(lambda flip: good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]),
            st.just(good[:at]),
            st.binary(max_size=50),
            st.recursive(
                st.none() | st.booleans() | st.floats() | st.text(max_size=5),
                lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
                max_leaves=5,
            ).map(lambda value: json.dumps(value).encode()),
        )
    )
    put(tmp_path, ENTRY).write_bytes(bad)
    found = Memory(tmp_path, CONTEXT, 3).get(PROBLEM)
    assert found is None or (found == ENTRY and json.loads(bad) == json.loads(good))


@pytest.mark.parametrize(
    "entry",
    [
        with_ok(),
        with_ok((0, 0.5), (2, 0.125)),
        with_ok((0, -1.0)),
        with_ok((0, float("nan"))),
        with_ok((0, 1.0), (0, 2.0)),
        with_ok((1, 1.0)),  # which failed
        with_ok((-1, 1.0)),
        with_ok((7, 1.0)),
        replace(ENTRY, ok={**OK, "repeats": [1]}),
        replace(ENTRY, ok={**OK, "latency_min_ms": [0.125, "0.25"]}),
        replace(ENTRY, failed=[("timeout", "too long", [-1])]),
    ],
)
def test_a_sound_checksum_is_not_enough(entry: Entry, tmp_path: Path) -> None:
    put(tmp_path, entry)
    assert Memory(tmp_path, CONTEXT, 3).get(PROBLEM) is None


def test_an_entry_in_the_wrong_place_is_none(tmp_path: Path) -> None:
    path = put(tmp_path, ENTRY)
    path.rename(path.with_name("0" * 32 + ".json"))
    assert Memory(tmp_path, CONTEXT, 3).get(PROBLEM) is None
    other = replace(CONTEXT, pool="q" * 64)
    shutil.move(path.parent, tmp_path / other.folder)
    assert Memory(tmp_path, other, 3).get(PROBLEM) is None


class TestCachesOfSeveralMachines:
    def test_merging_makes_the_same_of_any_order(self, tmp_path: Path) -> None:
        more = replace(ENTRY, failed=[("timeout", "too long", [1, 3])])
        later = replace(ENTRY, measured_at="2027-01-01T00:00:00+00:00")
        other = replace(ENTRY, context=replace(CONTEXT, machine=replace(MACHINE, device="other")))
        caches = {"a": [ENTRY, other], "b": [more], "c": [later]}
        for name, entries in caches.items():
            for entry in entries:
                put(tmp_path / name, entry)
        (tmp_path / "b" / "x" / "y").mkdir(parents=True)
        (tmp_path / "b" / "x" / "y" / "damaged.json").write_text("{")
        for order in ("abc", "cba", "bca"):
            for name in order:
                housekeeping.merge(tmp_path / name, tmp_path / order)
        assert files(tmp_path / "abc") == files(tmp_path / "cba") == files(tmp_path / "bca")
        assert files(tmp_path / "abc") == {str(e.path): e.dumps() for e in (more, other)}

    def test_a_merge_says_what_it_did_and_mends(self, tmp_path: Path) -> None:
        put(tmp_path / "a", ENTRY)
        put(tmp_path / "b", ENTRY).write_text("damaged")
        assert housekeeping.merge(tmp_path / "a", tmp_path / "b") == housekeeping.Merged(replaced=1)
        assert housekeeping.merge(tmp_path / "a", tmp_path / "b") == housekeeping.Merged(kept=1)
        assert files(tmp_path / "a") == files(tmp_path / "b")

    def test_pruning_keeps_what_still_serves(self, tmp_path: Path) -> None:
        current = replace(ENTRY, context=replace(CONTEXT, machine=replace(MACHINE, kernels=kernels_hash())))
        put(tmp_path, ENTRY)
        put(tmp_path, current)
        put(tmp_path, replace(current, problem=replace(PROBLEM, N=1))).write_text("damaged")
        assert housekeeping.prune(tmp_path) == 2
        assert list(files(tmp_path)) == [str(current.path)]
        assert [p.name for p in (tmp_path / CONV).iterdir()] == [current.path.parent.name]

    def test_no_cache(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there are no measurements"):
            housekeeping.measured_folder(tmp_path)
