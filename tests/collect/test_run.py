"""A run survives kernels that hang, die, fault or lie, and resumes without losing or repeating a measurement."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collect.fake import BREAK, DIE, HANG, HURT, WRONG, FakeEngine, broken_engine
from tilewise.collect.journal import Journal
from tilewise.collect.plan import Plan
from tilewise.collect.run import collect, journal_path
from tilewise.data.columns import measurement_columns
from tilewise.errors import DataError, MeasurementError


def _quiet(what: str, done: int, of: int) -> None:
    pass


class _KilledError(Exception):
    pass


def test_a_bad_kernel_costs_its_row_and_no_other(plan: Plan, log: Path, tmp_path: Path) -> None:
    report = collect(plan, tmp_path / "out.parquet", FakeEngine, [0], _quiet)
    table = pq.read_table(report.path).to_pylist()
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
    assert next(r for r in table if r["kernel_name"] == names[BREAK] and not r["is_valid"])["error"] == (
        "an illegal memory access was encountered"
    )


def test_rows_carry_every_column_and_derived_figures(plan: Plan, log: Path, tmp_path: Path) -> None:
    table = pq.read_table(collect(plan, tmp_path / "out.parquet", FakeEngine, [0, 1], _quiet).path)
    assert table.column_names == [c.name for c in measurement_columns("grouped_conv")]
    row = table.to_pylist()[1]
    problem = plan.items[0].problem
    assert row["latency_ms"] == 2.0
    assert row["tflops"] == pytest.approx(problem.flops / 2e-3 / 1e12)
    assert row["bandwidth_gb_s"] == pytest.approx(problem.min_bytes("bf16") / 2e-3 / 1e9)
    assert (row["run_id"], row["origin"], row["hw_device"], row["repeats"]) == ("run-1", "test", "fake", 3)


def test_a_killed_run_resumes_where_it_stopped(plan: Plan, log: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"

    def kill(what: str, done: int, of: int) -> None:
        if done == 2:
            raise _KilledError

    with pytest.raises(_KilledError):
        collect(plan, output, FakeEngine, [0], kill)
    assert not output.exists()
    with journal_path(output).open("ab") as f:
        f.write(b'{"index":4,"at":"torn')  # the write that the kill interrupted
    with Journal(journal_path(output), plan) as journal:
        before = set(journal.entries)
    assert before >= {0, 1}
    log.write_text("")
    report = collect(plan, output, FakeEngine, [0], _quiet)
    again = {int(line.split()[0]) for line in log.read_text().splitlines()}
    assert again == set(range(5)) - before
    assert report.rows == 30
    counts = Counter((r["N"], r["kernel_name"]) for r in pq.read_table(output).to_pylist())
    assert set(counts.values()) == {1}


def test_an_earlier_result_is_never_overwritten(plan: Plan, tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    output.write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already"):
        collect(plan, output, FakeEngine, [0], _quiet)
    assert output.read_bytes() == b"mine"


def test_the_journal_of_another_plan_is_refused(plan: Plan, tmp_path: Path) -> None:
    with Journal(tmp_path / "j", plan):
        pass
    other = dataclasses.replace(plan, run_id="run-2")
    with pytest.raises(DataError, match="another plan"):
        Journal(tmp_path / "j", other)


def test_a_damaged_journal_line_is_named(plan: Plan, tmp_path: Path) -> None:
    path = tmp_path / "j"
    with Journal(path, plan):
        pass
    path.write_bytes(path.read_bytes() + b"{nonsense}\n")
    with pytest.raises(DataError, match=r"j:2: damaged journal line"):
        Journal(path, plan)


def test_an_engine_that_cannot_start_ends_the_run(plan: Plan, tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="no CUDA-capable device"):
        collect(plan, tmp_path / "out.parquet", broken_engine, [0], _quiet)
