"""A table that is read in chunks is prepared to the same bytes as in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic import CONV, measurements
from tilewise.data import open_rows, parquet_bytes, read_raw_measurements
from tilewise.data._row_source import FileSource, FrameSource
from tilewise.data.quality import find_exclusions, prepare_measurements, prepared_metadata, write_prepared
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

TARGET = Target.parse(CONV)
GEMM = Target.parse("gemm_universal_bf16_sm90")
COLUMNS = list(OPS["grouped_conv"].column_names())
EXCLUSION = {"rule": "any", "key": {"run_id": "synthetic-2"}, "reason": "a trial", "decided_by": "a person"}


def write(folder: Path, frame: pd.DataFrame, files: int, group_rows: int) -> None:
    """Write a table as several files of small row groups."""
    for i, part in enumerate(np.array_split(np.arange(len(frame)), files)):
        table = pa.Table.from_pandas(frame.iloc[part], preserve_index=False)
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=group_rows)


def faulty(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return a table with an outlier, a cold start, a contradiction, a repeat, and rows that break rules of one row."""
    frame, rng = frame.copy(), np.random.default_rng(seed)
    valid = rng.permutation(np.flatnonzero(frame["is_valid"]))
    for row, factor in zip(valid[:6], (200, 60, 1 / 300, 7, 40, 4), strict=True):
        frame.loc[row, ["latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms"]] *= factor
        frame.loc[row, ["tflops", "bandwidth_gb_s"]] /= factor
    frame.loc[valid[6], "latency_min_ms"] /= 10
    frame.loc[valid[7], "latency_ms"] = -1.0
    frame.loc[valid[8], "run_id"] = None
    repeated = frame.loc[valid[9:13]]
    twice = repeated.assign(**{n: repeated[n] * np.array([1, 1, 2, 2]) for n in ("latency_ms",)})
    return pd.concat([frame, twice], ignore_index=True)


@given(seed=st.integers(0, 9), files=st.integers(1, 3), group=st.integers(50, 120), chunk=st.integers(30, 120),
       shuffled=st.booleans(), decided=st.booleans())  # fmt: skip
@pytest.mark.long
@settings(max_examples=4)
def test_chunks_give_the_bytes_of_the_whole_table(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    files: int,
    group: int,
    chunk: int,
    shuffled: bool,
    decided: bool,
) -> None:
    folder = tmp_path_factory.mktemp("table")
    frame = faulty(measurements(n_problems=12, n_kernels=10, repeats=4, seed=seed), seed)
    if shuffled:  # a problem is then in every file
        frame = frame.sample(frac=1, random_state=seed)
    write(folder, frame, files, group)
    if decided:
        (folder / "exclusions.yaml").write_text(yaml.safe_dump([EXCLUSION]))
    exclusions = find_exclusions([folder])
    whole = prepare_measurements(read_raw_measurements(folder, TARGET), TARGET, exclusions)
    rows = open_rows(folder, TARGET, chunk)
    parts = prepare_measurements(rows, TARGET, exclusions)
    assert isinstance(rows, FileSource) == (len(frame) > chunk)
    assert len(whole.quarantined) > 3
    write_prepared(folder / "out.prepared", parts)
    assert (folder / "out.prepared").read_bytes() == parquet_bytes(whole.frame, prepared_metadata(whole))
    pd.testing.assert_frame_equal(parts.quarantined, whole.quarantined)
    pd.testing.assert_frame_equal(
        parts.excluded.sort_values(["source_file", "source_row"], ignore_index=True),
        whole.excluded.sort_values(["source_file", "source_row"], ignore_index=True),
    )
    assert parts.applied == whole.applied
    assert parts.quarantined_share == whole.quarantined_share


@pytest.mark.long
def test_chunks_hold_whole_problems_and_every_row_once(tmp_path: Path) -> None:
    frame = measurements(n_problems=12, n_kernels=10, repeats=6).sample(frac=1, random_state=0)
    write(tmp_path, frame, files=2, group_rows=33)
    chunks = list(open_rows(tmp_path, TARGET, 40))
    assert len(chunks) > 2
    assert sorted(np.concatenate([c.index for c in chunks]).tolist()) == list(range(len(frame)))
    assert sum(len(c[COLUMNS].drop_duplicates()) for c in chunks) == len(frame[COLUMNS].drop_duplicates())
    assert max(len(c) for c in chunks) <= 40 + 20  # and the rows of one problem, which two runs measured


@pytest.mark.long
def test_a_problem_is_one_in_files_of_other_types_and_without_later_columns(tmp_path: Path) -> None:
    frame = measurements(GEMM, n_problems=4, n_kernels=6)
    later = list(OPS["gemm"].later_columns)
    sizes = {name: np.int32 for name, kind in OPS["gemm"].column_kinds().items() if kind == "int"}
    frame.to_parquet(tmp_path / "a.parquet", index=False)
    frame.astype(sizes).drop(columns=later).assign(run_id="again").to_parquet(tmp_path / "b.parquet", index=False)
    chunks = list(open_rows(tmp_path, GEMM, 7))
    columns = list(OPS["gemm"].column_names())
    assert len(chunks) > 1
    assert sum(len(c[columns].drop_duplicates()) for c in chunks) == 4
    assert all(set(c["run_id"]) == {"synthetic-1", "again"} for c in chunks)


def test_other_targets_are_left_out(tmp_path: Path) -> None:
    other = measurements("grouped_conv_bwd_data_bf16_sm90", n_problems=3, n_kernels=4)
    frame = measurements(n_problems=4, n_kernels=5)
    pd.concat([other, frame], ignore_index=True).to_parquet(tmp_path / "t.parquet", index=False)
    rows = open_rows(tmp_path, TARGET, 8)
    assert len(rows) == len(frame)
    found = pd.concat(list(rows)).sort_index()
    assert (found["source_row"].to_numpy() == np.arange(len(other), len(other) + len(frame))).all()
    with pytest.raises(DataError, match="no row of gemm_universal_bf16_sm90; there are"):
        open_rows(tmp_path, GEMM, 8)


def test_a_small_table_is_read_as_a_whole(tmp_path: Path) -> None:
    measurements(n_problems=2, n_kernels=3).to_parquet(tmp_path / "t.parquet", index=False)
    assert isinstance(open_rows(tmp_path, TARGET), FrameSource)


def test_a_file_without_the_columns_of_a_problem_is_refused(tmp_path: Path) -> None:
    frame = measurements(n_problems=2, n_kernels=3)
    frame.drop(columns="arch").to_parquet(tmp_path / "t.parquet", index=False)
    with pytest.raises(DataError, match="not a readable measurement table"):
        open_rows(tmp_path, TARGET, 2)


def test_rows_of_other_targets_are_no_reason_to_read_in_chunks(tmp_path: Path) -> None:
    frame = measurements(n_problems=4, n_kernels=5)
    frame.to_parquet(tmp_path / "t.parquet", index=False)
    measurements(GEMM, n_problems=6, n_kernels=8).to_parquet(tmp_path / "other.parquet", index=False)
    assert isinstance(open_rows(tmp_path, TARGET, len(frame)), FrameSource)
    assert isinstance(open_rows(tmp_path, TARGET, len(frame) - 1), FileSource)
