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
FRAME = measurements(n_problems=4, n_kernels=5, seed=3, failures=0)
PAIR = [*OPS["grouped_conv"].column_names(), "kernel_name"]
ROW = [*PAIR, "run_id"]

# Of each run the version of its programs, and which rows of FRAME it has.
RUNS = st.lists(
    st.tuples(st.sampled_from([None, 1, 2, 3]), st.sets(st.integers(0, len(FRAME) - 1), min_size=1)),
    min_size=1,
    max_size=5,
)


def run(number: int, version: int | None, rows: set[int]) -> pd.DataFrame:
    """Return rows of FRAME as another run, at other times for other versions."""
    frame = FRAME.iloc[sorted(rows)].assign(run_id=f"run-{number}")
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


@settings(deadline=None, max_examples=25)
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
