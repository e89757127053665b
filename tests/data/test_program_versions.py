"""Times of superseded programs do not count, however a table is read, and no other row leaves."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic import CONV, measurements
from tilewise.data import (
    PROGRAMS_COLUMN,
    TargetTable,
    chunks_of,
    open_measurements,
    open_rows,
    parquet_bytes,
    read_measurements,
    table_hash,
)
from tilewise.data.quality import merge_measurements, prepare_files, prepare_measurements, write_prepared
from tilewise.ops import OPS, Target

TARGET = Target.parse(CONV)
WHOLE = measurements(n_problems=60, n_kernels=5, seed=7, failures=0)
# Whether version 2 has other programs for a row's problem: 2 divides the channels of a group, 8 does not.
_CHANNELS = [WHOLE[n] // WHOLE["G"] for n in ("C", "K")]
CONCERNED = np.logical_or.reduce([np.isin(n % 8, (2, 4, 6)) for n in _CHANNELS])
FRAME, OTHERS = (WHOLE[mask].reset_index(drop=True) for mask in (CONCERNED, ~CONCERNED))
PAIR = [*OPS["grouped_conv"].column_names(), "kernel_name"]
ROW = [*PAIR, "run_id"]

# Of each run the version of its programs, and which rows of FRAME it has.
RUNS = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sets(st.integers(0, len(FRAME) - 1), min_size=1)),
    min_size=1,
    max_size=5,
)


def run(number: int, version: int | None, rows: set[int], of: pd.DataFrame = FRAME) -> pd.DataFrame:
    """Return rows of a table as another run, by programs of a version."""
    frame = of.iloc[sorted(rows)].assign(run_id=f"run-{number}")
    frame[PROGRAMS_COLUMN] = pd.array([version] * len(frame), dtype="Int64")
    return frame


def current(frame: pd.DataFrame) -> set[tuple[object, ...]]:
    """Return the rows that count, one by one: no row of the same problem and kernel has a later version."""
    rows = list(frame[[*ROW, PROGRAMS_COLUMN]].fillna({PROGRAMS_COLUMN: 1}).itertuples(index=False, name=None))
    latest: dict[tuple[object, ...], int] = {}
    for *row, _, version in rows:
        latest[tuple(row)] = max(latest.get(tuple(row), 0), int(version))
    return {(*row, name) for *row, name, version in rows if version == latest[tuple(row)]}


def keys(frame: pd.DataFrame) -> set[tuple[object, ...]]:
    return set(frame[ROW].itertuples(index=False, name=None))


@pytest.mark.long
@settings(deadline=None, max_examples=12)
@given(RUNS, st.randoms(use_true_random=False))
def test_the_latest_version_of_each_problem_and_kernel_counts_and_nothing_else_leaves(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[int | None, set[int]]], random: Random
) -> None:
    frames = [run(i, *each) for i, each in enumerate(runs)]
    random.shuffle(frames)
    whole = pd.concat(frames, ignore_index=True)
    prepared = prepare_measurements(whole, TARGET)
    assert keys(prepared.frame) == current(whole)
    assert len(prepared.frame) + len(prepared.quarantined) == len(whole)
    assert set(prepared.quarantined["rule"]) <= {"superseded"}
    assert prepared.quarantined_share == 0
    folder = tmp_path_factory.mktemp("files")
    for i, frame in enumerate(frames):
        (folder / f"{i}.parquet").write_bytes(parquet_bytes(frame))
    output, chunked = folder.with_suffix(".whole"), folder.with_suffix(".chunked")
    write_prepared(output, prepare_files(folder, TARGET))
    write_prepared(chunked, prepare_measurements(open_rows(folder, TARGET, 7), TARGET))
    assert output.read_bytes() == chunked.read_bytes()
    assert keys(read_measurements(output)) == current(whole)
    raw = TargetTable.of(read_measurements(folder, TARGET), TARGET)
    written = TargetTable.of(read_measurements(output), TARGET)
    pd.testing.assert_frame_equal(raw.labelled().rows, written.labelled().rows)


def remeasured() -> pd.DataFrame:
    """Return all rows of version 1, and again half of them, three times as fast, of version 2."""
    again = run(2, 2, set(range(0, len(FRAME), 2)))
    times = [name for name in FRAME if name.startswith("latency")]
    again = again.assign(**{n: again[n] / 3 for n in times}, **{n: again[n] * 3 for n in ("tflops", "bandwidth_gb_s")})
    return pd.concat([run(1, None, set(range(len(FRAME)))), again], ignore_index=True)


@pytest.mark.parametrize(("version", "superseded"), [(1, 0), (2, 0), (3, 5)])
def test_a_version_concerns_the_problems_whose_programs_it_changed(version: int, superseded: int) -> None:
    """Version 3 is unknown here, so it concerns all."""
    frame = pd.concat([run(1, None, set(range(20)), OTHERS), run(2, version, set(range(5)), OTHERS)])
    assert len(frame) - len(TargetTable.of(frame, TARGET)) == superseded


def test_kernels_measured_again_with_equal_programs_keep_the_level_of_all() -> None:
    """As when the fastest kernels of a problem, and a further one, are measured by a later tilewise."""
    rows = next(of for _, of in OTHERS.groupby(PAIR[:-1]) if of["is_valid"].sum() >= 4)
    fastest = rows.sort_values("latency_ms")["kernel_name"].iloc[:3].tolist()
    later = rows[rows["kernel_name"].isin(fastest)].assign(run_id="later", **{PROGRAMS_COLUMN: 2})
    times = [name for name in later if name.startswith("latency")]
    later = later.assign(**{name: later[name] * 1.1 for name in times})  # at lower clocks
    labels = TargetTable.of(pd.concat([rows, later]), TARGET).labelled().rows
    relative = labels.set_index("kernel_name")["latency_ms"] / rows.set_index("kernel_name")["latency_ms"]
    relative = relative[rows.loc[rows["is_valid"], "kernel_name"]]
    assert relative.to_numpy() == pytest.approx(relative.iloc[0])


def test_labels_are_of_the_latest_programs_even_if_few_kernels_were_measured_with_them() -> None:
    """Times of the others cannot be brought to their level, and without the fastest kernels they would mislead."""
    rows = next(of for _, of in FRAME.groupby(PAIR[:-1]) if of["is_valid"].sum() >= 3)
    valid = rows[rows["is_valid"]]
    later = valid.iloc[:2].assign(run_id="later", measured_at="2026-01-01T00:00:00Z", **{PROGRAMS_COLUMN: 2})
    labels = TargetTable.of(pd.concat([rows, later]), TARGET).labelled().rows
    assert set(labels["kernel_name"]) == set(later["kernel_name"])
    failed = later.assign(status="runtime_error", error="x", is_valid=False, latency_ms=np.nan)
    labels = TargetTable.of(pd.concat([rows, failed]), TARGET).labelled().rows
    assert set(labels.loc[labels["is_valid"], "kernel_name"]) == set(valid["kernel_name"].iloc[2:])


def test_a_faster_later_program_is_no_cold_start_of_the_earlier(tmp_path: Path) -> None:
    quarantined = prepare_measurements(remeasured(), TARGET).quarantined
    assert set(quarantined["run_id"]) == {"run-1"}
    assert set(quarantined["reason"]) == {"superseded: version 1 of the programs, measured again with a later one"}


def test_training_from_an_opened_file_sees_the_same_rows_as_from_memory(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(remeasured()))
    columns = (*("op", "variant", "dtype", "arch"), *ROW)
    opened = open_measurements(tmp_path / "t.parquet", TARGET, 10)
    for _ in range(2):  # the first pass checks the rows, the second one reads columns alone
        found = [keys(chunk.rows) for chunk in chunks_of(opened, TARGET, columns)]
        assert len(found) > 1
        assert set().union(*found) == current(remeasured())


def test_a_merge_leaves_superseded_rows_out_without_a_decision(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(parquet_bytes(remeasured()))
    merged = merge_measurements([tmp_path], TARGET)
    assert not len(merged.faults)
    assert (merged.superseded, merged.repeats) == (len(range(0, len(FRAME), 2)), 0)
    assert keys(merged.frame) == current(remeasured())


@pytest.mark.long
def test_tables_without_versions_keep_their_bytes_and_hash(tmp_path: Path) -> None:
    old = FRAME.drop(columns=PROGRAMS_COLUMN)
    pq.write_table(pq.read_table(_written(tmp_path / "a.parquet", old)), tmp_path / "old.parquet")
    read = read_measurements(tmp_path / "old.parquet")
    assert read[PROGRAMS_COLUMN].isna().all()
    write_prepared(tmp_path / "prepared.parquet", prepare_files(tmp_path / "old.parquet", TARGET))
    assert PROGRAMS_COLUMN not in pq.read_schema(tmp_path / "prepared.parquet").names
    assert parquet_bytes(read) == parquet_bytes(old)
    assert table_hash(read) == table_hash(old)
    assert np.array_equal(read["latency_ms"], FRAME["latency_ms"], equal_nan=True)


def _written(path: Path, frame: pd.DataFrame) -> Path:
    frame.to_parquet(path)
    return path
