"""A run survives kernels that hang, die, fault or lie; it resumes without losing or repeating a measurement."""

from __future__ import annotations

import dataclasses
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collect.fake import (
    BREAK,
    DIE,
    HANG,
    HURT,
    SLOW,
    WRONG,
    FakeEngine,
    HastyEngine,
    UnpreparedEngine,
    broken_engine,
    half_broken_engine,
)
from tilewise.collect import CollectLimits, Outcome, Plan, collect_with_engine
from tilewise.collect._journal import Journal
from tilewise.collect._run import journal_path, partial_path
from tilewise.collect.engines import Device
from tilewise.errors import ConfigError, DataError, MeasurementError, UnfinishedError

DEVICE = Device("a", "uuid-a", "580", "torch", "cold")


def _quiet(what: str, done: int, of: int) -> None:
    pass


class _KilledError(Exception):
    pass


def _table(path: Path | None) -> list[dict[str, Any]]:
    assert path is not None
    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_bad_kernel_costs_its_row_and_no_other(plan: Plan, log: Path, tmp_path: Path) -> None:
    report = collect_with_engine(plan, tmp_path / "out.parquet", FakeEngine, [0], _quiet)
    table = _table(report.path)
    assert len(table) == report.rows == 30
    bad = {r["kernel_name"]: r["status"] for r in table if not r["is_valid"]}
    names = plan.pool.names
    assert bad == {
        names[HANG]: "timeout",
        names[DIE]: "runtime_error",
        names[BREAK]: "runtime_error",
        names[WRONG]: "wrong_result",
    }
    assert {r["N"] for r in table if not r["is_valid"]} == {plan.items[HURT].problem.to_dict()["N"]}
    errors = {r["kernel_name"]: r["error"] for r in table if not r["is_valid"]}
    assert errors == {
        names[HANG]: "no answer within 1.5 s",
        names[DIE]: "the worker died (exit code 3)",
        names[BREAK]: "an illegal memory access was encountered",
        names[WRONG]: "7 elements",
    }


def test_kernels_that_a_problem_does_not_ask_for_are_neither_run_nor_rows(
    plan: Plan, log: Path, tmp_path: Path
) -> None:
    wanted = {0: (0, 5), HURT: (WRONG, 5)}
    items = tuple(dataclasses.replace(item, kernels=wanted.get(i)) for i, item in enumerate(plan.items))
    some = dataclasses.replace(plan, items=items)
    report = collect_with_engine(some, tmp_path / "out.parquet", FakeEngine, [0], _quiet)
    expected = [(i, k) for i in range(5) for k in wanted.get(i, range(6))]
    ran = {tuple(map(int, line.split())) for line in log.read_text().splitlines()}
    assert ran == set(expected)
    rows = [(r["N"] - 1, some.pool.names.index(r["kernel_name"])) for r in _table(report.path)]
    assert rows == expected
    assert report.rows == len(expected)
    assert report.by_status == {"ok": len(expected) - 1, "wrong_result": 1}


@pytest.mark.long
def test_a_killed_run_resumes_where_it_stopped(plan: Plan, log: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"

    def kill(what: str, done: int, of: int) -> None:
        if done == 2:
            raise _KilledError

    with pytest.raises(_KilledError):
        collect_with_engine(plan, output, FakeEngine, [0], kill)
    assert not output.exists()
    with journal_path(output).open("ab") as f:
        f.write(b'{"done":4,"at":"torn')  # the write that the kill interrupted
    with Journal(journal_path(output), plan) as journal:
        before = set(journal.entries)
    assert before >= {0, 1}
    log.write_text("")
    report = collect_with_engine(plan, output, FakeEngine, [0], _quiet)
    again = {int(line.split()[0]) for line in log.read_text().splitlines()}
    assert again == set(range(5)) - before
    assert report.rows == 30
    counts = Counter((r["N"], r["kernel_name"]) for r in pq.read_table(output).to_pylist())
    assert set(counts.values()) == {1}


def test_a_run_killed_before_it_removes_its_journal_is_finished_by_the_next(
    plan: Plan, log: Path, tmp_path: Path
) -> None:
    output, kept = tmp_path / "out.parquet", tmp_path / "kept"
    with Journal(journal_path(output), plan) as journal:
        for i in range(len(plan.items)):
            journal.add(i, "2026-01-01T00:00:00+00:00", DEVICE, [Outcome("timeout", "t")] * 6)
    shutil.copy(journal_path(output), kept)
    collect_with_engine(plan, output, broken_engine, [0], _quiet)
    table = output.read_bytes()
    shutil.copy(kept, journal_path(output))
    report = collect_with_engine(plan, output, broken_engine, [0], _quiet)
    assert (report.path, report.rows, report.left) == (output, 30, 0)
    assert output.read_bytes() == table
    assert not journal_path(output).exists()


@pytest.mark.parametrize("content", [b"mine", None])
def test_a_journal_beside_another_table_is_kept(plan: Plan, log: Path, tmp_path: Path, content: bytes | None) -> None:
    output = tmp_path / "out.parquet"
    with Journal(journal_path(output), plan) as journal:
        for i in range(len(plan.items)):
            journal.add(i, "2026-01-01T00:00:00+00:00", DEVICE, [Outcome("timeout", "t")] * 6)
    if content is None:
        pq.write_table(pa.table({"a": [1]}), output)
    else:
        output.write_bytes(content)
    with pytest.raises(DataError, match="exists already"):
        collect_with_engine(plan, output, broken_engine, [0], _quiet)
    assert journal_path(output).exists()


def test_an_earlier_result_is_never_overwritten(plan: Plan, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    output.write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already"):
        collect_with_engine(plan, output, FakeEngine, [0], _quiet)
    assert output.read_bytes() == b"mine"


def test_an_engine_that_cannot_start_ends_the_run(plan: Plan, tmp_path: Path) -> None:
    with (
        pytest.warns(UserWarning, match="GPU 0 cannot be used"),
        pytest.raises(
            MeasurementError, match=r"GPU 0: RuntimeError: no CUDA-capable device.*; measure on a machine with"
        ),
    ):
        collect_with_engine(plan, tmp_path / "out.parquet", broken_engine, [0], _quiet)


@pytest.mark.long
def test_a_device_that_cannot_start_does_not_stop_the_others(plan: Plan, log: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="GPU 0 cannot be used: RuntimeError: no CUDA-capable device"):
        report = collect_with_engine(plan, tmp_path / "out.parquet", half_broken_engine, [0, 1], _quiet)
    assert (report.done, list(report.unusable)) == (5, [0])
    assert {r["hw_uuid"] for r in _table(report.path)} == {"fake-1"}


@pytest.mark.long
def test_a_sweep_that_takes_too_long_costs_time_only(plan: Plan, log: Path, tmp_path: Path) -> None:
    report = collect_with_engine(plan, tmp_path / "out.parquet", HastyEngine, [0], _quiet)
    assert report.by_status == {"ok": 30}


def test_a_problem_that_cannot_be_prepared_costs_its_rows(plan: Plan, log: Path, tmp_path: Path) -> None:
    report = collect_with_engine(plan, tmp_path / "out.parquet", UnpreparedEngine, [0], _quiet)
    assert report.by_status == {"ok": 24, "runtime_error": 6}
    failed = [r for r in _table(report.path) if not r["is_valid"]]
    assert {r["error"] for r in failed} == {"MemoryError: out of memory"}
    assert {r["N"] for r in failed} == {plan.items[HURT].problem.to_dict()["N"]}


@pytest.mark.long
def test_a_spent_budget_leaves_the_rest_for_the_same_call(
    plan: Plan, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = dataclasses.replace(plan, items=plan.items[:HURT])
    output = tmp_path / "out.parquet"
    monkeypatch.setenv(SLOW, "0.1")
    report = collect_with_engine(good, output, FakeEngine, [0], _quiet, CollectLimits(budget_s=0.2, partial=True))
    assert (report.done, report.left, report.valid) == (1, 1, 6)
    assert report.path == partial_path(output, 1, 2)
    assert len(_table(report.path)) == 6
    assert not output.exists()
    with pytest.raises(UnfinishedError, match="1 of 2 problems are left"):
        report.require_complete()
    nothing = collect_with_engine(good, output, FakeEngine, [], _quiet, CollectLimits(budget_s=0))
    assert (nothing.done, nothing.path) == (1, None)
    report = collect_with_engine(good, output, FakeEngine, [0], _quiet, CollectLimits(budget_s=60))
    report.require_complete()
    assert report.path == output
    assert not journal_path(output).exists()
    first, whole = (pq.read_table(p).drop_columns("measured_at") for p in (partial_path(output, 1, 2), output))
    assert whole.slice(0, 6).equals(first)


def test_the_second_of_two_runs_is_refused(plan: Plan, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    with Journal(journal_path(output), plan), pytest.raises(DataError, match="in use by another run"):
        collect_with_engine(plan, output, FakeEngine, [0], _quiet)


def test_a_budget_is_not_negative() -> None:
    with pytest.raises(ConfigError, match="must not be negative, got -1"):
        CollectLimits(budget_s=-1)
