"""Entries of the measured cache are read back unchanged or not at all, and caches merge in any order."""

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

from dispatch.measuring.measurers import MACHINE
from synthetic import CONV
from tilewise.collect import Outcome, Samples
from tilewise.dispatch.measuring import find_measured_folder, kernels_hash, merge_caches, prune_cache
from tilewise.dispatch.measuring._measured_cache import FORMAT, MeasuredCache, MeasuredContext, MeasuredEntry
from tilewise.dispatch.measuring._merge_caches import MergeCounts
from tilewise.errors import DataError
from tilewise.files import digest_of
from tilewise.ops import GemmProblem, GroupedConvProblem

CONTEXT = MeasuredContext(CONV, "p" * 64, MACHINE)
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
ENTRY = MeasuredEntry(CONTEXT, PROBLEM, OK, [("timeout", "too long", [1])], "2026-01-01T00:00:00+00:00")
# an entry of format 1, which held medians only
FIRST_FORMAT = {
    "format": 1,
    "context": asdict(CONTEXT),
    "problem": {"op": PROBLEM.op, **PROBLEM.to_dict()},
    "latency_ms": [[2, 0.125], [0, 0.5]],
    "failed": [[1, "timeout"]],
    "measured_at": ENTRY.measured_at,
}


def one(ms: float) -> dict[int, Outcome]:
    """Return an outcome for kernel 0."""
    return {0: Outcome("ok", None, Samples((ms,), (), 1))}


def with_ok(*times: tuple[int, float]) -> MeasuredEntry:
    """Return the entry with these kernels and times."""
    return replace(ENTRY, ok={"kernel": [k for k, _ in times], "latency_ms": [ms for _, ms in times]})


def put(root: Path, entry: MeasuredEntry) -> Path:
    path = root / entry.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(entry.dumps())
    return path


def files(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*.json"))}


def test_an_entry_is_found_again(tmp_path: Path) -> None:
    cache = MeasuredCache(tmp_path, CONTEXT, 3)
    entry = cache.put(PROBLEM, OUTCOMES, ENTRY.measured_at)
    assert entry == ENTRY == cache.get(PROBLEM) == MeasuredCache(tmp_path, CONTEXT, 3).get(PROBLEM)
    assert MeasuredEntry.loads(ENTRY.dumps(), ENTRY.path) == ENTRY
    assert cache.get(replace(PROBLEM, N=9)) is None


def test_an_entry_of_the_first_format_is_read_and_converted_by_a_merge(tmp_path: Path) -> None:
    path = tmp_path / "old" / ENTRY.path
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(FIRST_FORMAT | {"sha256": digest_of(FIRST_FORMAT)}))
    found = MeasuredCache(tmp_path / "old", CONTEXT, 3).get(PROBLEM)
    assert found is not None
    assert found.latency_ms == ENTRY.latency_ms
    assert (found.tried, found.measured_at) == (ENTRY.tried, ENTRY.measured_at)
    merge_caches(tmp_path / "old", tmp_path / "new")
    assert json.loads((tmp_path / "new" / ENTRY.path).read_text())["format"] == FORMAT
    assert MeasuredCache(tmp_path / "new", CONTEXT, 3).get(PROBLEM) == found


def test_layouts_are_different_problems(tmp_path: Path) -> None:
    cache = MeasuredCache(tmp_path, replace(CONTEXT, target="gemm_universal_bf16_sm90"), 3)
    cache.put(GemmProblem(1, 2, 3), one(1.0), "")
    assert cache.read(GemmProblem(1, 2, 3, "rrr")) is None
    assert cache.read(GemmProblem(1, 2, 3)) is not None


def test_an_entry_of_another_process_is_found(tmp_path: Path) -> None:
    ours, theirs = (MeasuredCache(tmp_path, CONTEXT, 3) for _ in range(2))
    theirs.put(PROBLEM, one(1.0), "")
    assert ours.get(PROBLEM) is None
    assert ours.read(PROBLEM) == theirs.get(PROBLEM) == ours.get(PROBLEM)


def test_a_disk_that_cannot_be_written_costs_only_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    cache = MeasuredCache(tmp_path / "file", CONTEXT, 3)
    cache.put(PROBLEM, one(1.0), "")
    assert cache.get(PROBLEM) is not None
    assert "cannot be kept" in caplog.text


@pytest.mark.long
@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_entry_is_ignored(data: st.DataObject, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Changed, cut, added or replaced bytes never give a wrong answer or an error."""
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
    found = MeasuredCache(tmp_path, CONTEXT, 3).get(PROBLEM)
    assert found is None or (found == ENTRY and json.loads(bad) == json.loads(good))


@pytest.mark.parametrize(
    "entry",
    [
        with_ok(),
        with_ok((0, 0.5), (2, 0.125)),
        with_ok((0, -1.0)),
        with_ok((0, float("nan"))),
        with_ok((0, 1.0), (0, 2.0)),
        with_ok((1, 1.0)),  # a kernel that failed
        with_ok((-1, 1.0)),
        with_ok((7, 1.0)),
        replace(ENTRY, ok={**OK, "repeats": [1]}),
        replace(ENTRY, ok={**OK, "latency_min_ms": [0.125, "0.25"]}),
        replace(ENTRY, failed=[("timeout", "too long", [-1])]),
    ],
)
def test_a_valid_checksum_is_not_enough(entry: MeasuredEntry, tmp_path: Path) -> None:
    put(tmp_path, entry)
    assert MeasuredCache(tmp_path, CONTEXT, 3).get(PROBLEM) is None


def test_a_misplaced_entry_is_ignored(tmp_path: Path) -> None:
    path = put(tmp_path, ENTRY)
    path.rename(path.with_name("0" * 32 + ".json"))
    assert MeasuredCache(tmp_path, CONTEXT, 3).get(PROBLEM) is None
    other = replace(CONTEXT, pool="q" * 64)
    shutil.move(path.parent, tmp_path / other.folder)
    assert MeasuredCache(tmp_path, other, 3).get(PROBLEM) is None


class TestCachesOfSeveralMachines:
    def test_the_order_of_merging_makes_no_difference(self, tmp_path: Path) -> None:
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
                merge_caches(tmp_path / name, tmp_path / order)
        assert files(tmp_path / "abc") == files(tmp_path / "cba") == files(tmp_path / "bca")
        assert files(tmp_path / "abc") == {str(e.path): e.dumps() for e in (more, other)}

    def test_a_merge_counts_and_repairs(self, tmp_path: Path) -> None:
        put(tmp_path / "a", ENTRY)
        put(tmp_path / "b", ENTRY).write_text("damaged")
        assert merge_caches(tmp_path / "a", tmp_path / "b") == MergeCounts(replaced=1)
        assert merge_caches(tmp_path / "a", tmp_path / "b") == MergeCounts(unchanged=1)
        assert files(tmp_path / "a") == files(tmp_path / "b")

    def test_pruning_keeps_current_entries(self, tmp_path: Path) -> None:
        current = replace(ENTRY, context=replace(CONTEXT, machine=replace(MACHINE, kernels=kernels_hash())))
        put(tmp_path, ENTRY)
        put(tmp_path, current)
        put(tmp_path, replace(current, problem=replace(PROBLEM, N=1))).write_text("damaged")
        assert prune_cache(tmp_path) == 2
        assert list(files(tmp_path)) == [str(current.path)]
        assert [p.name for p in (tmp_path / CONV).iterdir()] == [current.path.parent.name]

    def test_no_cache(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="has no measurements"):
            find_measured_folder(tmp_path)
