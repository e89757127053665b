"""The measurement table has every column, failures with their reason, and figures of few bits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collect.test_journal import DEVICES, outcomes
from tilewise.collect import Plan, measurement_table, write_measurement_table
from tilewise.collect._journal import Journal
from tilewise.data import DERIVED_COLUMNS, PROGRAMS_COLUMN, measurement_columns, read_measurements
from tilewise.errors import DataError
from tilewise.kernels import PROGRAM_VERSIONS
from tilewise.kernels.triton import TRITON_DTYPES
from tilewise.kernels.vendor import VendorCall


@pytest.fixture
def journal(plan: Plan, tmp_path: Path) -> Journal:
    with Journal(tmp_path / "j", plan) as journal:
        for i in (2, 0):
            journal.add(i, f"2026-01-01T00:00:0{i}+00:00", DEVICES[i % 2], outcomes(i))
    return journal


def test_rows_carry_every_column_that_is_not_derived(plan: Plan, journal: Journal) -> None:
    rows = measurement_table(plan, journal.entries.values())
    omitted = {*DERIVED_COLUMNS, PROGRAMS_COLUMN}  # no version is known here
    assert rows.column_names == [c.name for c in measurement_columns("grouped_conv") if c.name not in omitted]
    assert [(r["N"], r["kernel_name"]) for r in rows.to_pylist()] == [
        (plan.items[i].problem.to_dict()["N"], name) for i in (0, 2) for name in plan.pool.names
    ]
    row = rows.to_pylist()[6]
    assert row["latency_ms"] == pytest.approx(0.2, rel=2**-13)
    assert (row["run_id"], row["origin"], row["hw_uuid"], row["repeats"]) == ("run-1", "test", "uuid-a", 3)
    assert (row["status"], row["error"], row["is_valid"], row["sm_clock_mhz"]) == ("ok", None, True, 1980)
    assert {name: row[name] for name in ("op", "variant", "dtype", "arch")} == {
        "op": "grouped_conv",
        "variant": "forward",
        "dtype": "bf16",
        "arch": "sm90",
    }
    assert row["tile_m"] == plan.pool.kernels[0].tile_m


def test_rows_of_own_programs_state_the_version_that_the_problem_was_measured_with(plan: Plan, tmp_path: Path) -> None:
    call = VendorCall("cudnn")
    pool = dataclasses.replace(plan.pool, kernels=(*plan.pool.kernels[:5], call))
    mixed = dataclasses.replace(plan, pool=pool, items=tuple(dataclasses.replace(i, kernels=None) for i in plan.items))
    devices = [DEVICES[0], dataclasses.replace(DEVICES[0], programs_version=2)]
    for i, device in enumerate(devices):  # a run that a later version of the sources goes on with
        with Journal(tmp_path / "j", mixed) as journal:
            journal.add(i, "2026-01-01T00:00:00+00:00", device, outcomes(i))
    rows = measurement_table(mixed, journal.entries.values()).to_pylist()
    assert [row[PROGRAMS_COLUMN] for row in rows] == [*[None] * 6, *[2] * 5, None]
    assert rows[11]["kernel_name"].endswith("vendor_cudnn")
    assert rows[8]["status"] == "ok"
    assert rows[10]["status"] == "runtime_error"


def test_every_op_of_own_programs_has_a_version() -> None:
    assert PROGRAM_VERSIONS.keys() == TRITON_DTYPES.keys()


def test_a_failure_keeps_its_reason_and_has_no_figures(plan: Plan, journal: Journal) -> None:
    rows = measurement_table(plan, journal.entries.values()).to_pylist()
    failed = rows[4]
    assert (failed["status"], failed["error"], failed["is_valid"]) == ("runtime_error", "runtime_error", False)
    figures = ("latency_ms", "latency_min_ms", "repeats", "unrolled", "sm_clock_mhz")
    assert {failed[name] for name in figures} == {None}
    assert all(r["error"] for r in rows if not r["is_valid"])


def test_the_schema_reads_the_written_table(plan: Plan, journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    write_measurement_table(measurement_table(plan, journal.entries.values()), path)
    frame = read_measurements(path)
    assert len(frame) == 12
    valid = frame["is_valid"].to_numpy()
    flops = np.repeat([float(plan.items[i].problem.flops) for i in (0, 2)], len(plan.pool))
    moved = np.repeat([float(plan.items[i].problem.min_bytes("bf16")) for i in (0, 2)], len(plan.pool))
    np.testing.assert_allclose(frame["tflops"][valid], (flops / frame["latency_ms"] / 1e9)[valid])
    np.testing.assert_allclose(frame["bandwidth_gb_s"][valid], (moved / frame["latency_ms"] / 1e6)[valid])
    assert frame[["tflops", "bandwidth_gb_s"]][~valid].isna().all(axis=None)
    assert str(frame["latency_ms"].dtype) == "float64"
    assert pq.read_schema(path).field("latency_ms").type == pa.float32()


def test_figures_keep_sixteen_bits(plan: Plan, journal: Journal) -> None:
    figures = measurement_table(plan, journal.entries.values()).column("latency_ms").drop_null().to_numpy()
    assert len(figures)
    assert not np.any(figures.astype(np.float32).view(np.uint32) & 0x7F)


def test_a_table_is_never_overwritten(plan: Plan, journal: Journal, tmp_path: Path) -> None:
    path = tmp_path / "out.parquet"
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="exists already; earlier results are never overwritten"):
        write_measurement_table(measurement_table(plan, journal.entries.values()), path)
    assert path.read_bytes() == b"mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["j", "out.parquet"]


def test_no_entries_make_an_empty_table(plan: Plan) -> None:
    assert measurement_table(plan, []).num_rows == 0
