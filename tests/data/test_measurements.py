"""A prepared table that is read in chunks gives the rows, the hash and the errors of the whole table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from data.test_row_source import write
from synthetic import CONV, measurements
from tilewise.data import Measurements, open_measurements, parquet_bytes, read_measurements, table_hash
from tilewise.errors import DataError
from tilewise.files import write_bytes
from tilewise.ops import OPS, Target

TARGET = Target.parse(CONV)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return measurements(n_problems=20, n_kernels=12, repeats=6, seed=4)


@pytest.fixture
def file(frame: pd.DataFrame, tmp_path: Path) -> Path:
    """Write a prepared table with several row groups."""
    write(tmp_path, frame, 1, 70)
    return tmp_path / "0.parquet"


def opened(file: Path, chunk_rows: int = 60) -> Measurements:
    rows = open_measurements(file, TARGET, chunk_rows)
    assert isinstance(rows, Measurements)
    return rows


@pytest.mark.long
def test_chunks_hold_whole_problems_and_every_row(file: Path) -> None:
    whole, chunks = read_measurements(file, TARGET), list(opened(file).chunks())
    assert len(chunks) > 3
    assert len(opened(file)) == len(whole)
    of_problem = list(OPS[TARGET.op].column_names())
    held = [set(chunk[of_problem].itertuples(index=False, name=None)) for chunk in chunks]
    assert sum(map(len, held)) == len(set().union(*held)) == 20
    by = [*of_problem, "kernel_name", "run_id"]
    joined = pd.concat(chunks).sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(joined, whole.sort_values(by, ignore_index=True))


@pytest.mark.long
def test_a_second_pass_reads_its_columns_alone_and_checks_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*OPS[TARGET.op].column_names(), "kernel_name", "tflops", "repeats", "is_valid"]
    rows = opened(file)
    first = list(rows.chunks(names))
    monkeypatch.setattr("tilewise.data._measurements.checked", None)
    monkeypatch.setattr("tilewise.data._row_source.open_table", None)
    for chunk, again in zip(first, rows.chunks(names), strict=True):
        pd.testing.assert_frame_equal(chunk[names], again[names])


@pytest.mark.long
def test_a_pass_that_ends_early_has_not_checked_the_table(frame: pd.DataFrame, tmp_path: Path) -> None:
    bad = frame.copy()
    bad.loc[bad.index[-1], "latency_ms"] = -1.0
    write(tmp_path, bad, 1, 70)
    rows = opened(tmp_path / "0.parquet")
    next(rows.chunks())
    for _ in range(2):
        with pytest.raises(DataError, match=r"latency_ms must be positive"):
            list(rows.chunks())


@pytest.mark.long
def test_the_hash_is_that_of_the_whole_table(file: Path) -> None:
    assert opened(file).content_hash == table_hash(read_measurements(file, TARGET))


@pytest.mark.long
def test_a_bad_row_is_named_when_it_is_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    bad = frame.copy()
    bad.loc[130, "latency_ms"] = -1.0
    write(tmp_path, bad, 1, 70)
    rows = opened(tmp_path / "0.parquet")
    with pytest.raises(DataError, match=r"0\.parquet: row 130: latency_ms must be positive, got -1\.0"):
        list(rows.chunks())


def test_other_tables_are_read_as_a_whole(frame: pd.DataFrame, file: Path, tmp_path: Path) -> None:
    assert isinstance(open_measurements(file, TARGET, len(frame)), pd.DataFrame)
    (tmp_path / "folder").mkdir()
    write(tmp_path / "folder", frame, 2, 70)
    assert isinstance(open_measurements(tmp_path / "folder", TARGET, 60), pd.DataFrame)
    others = pd.concat(
        [frame, frame.assign(dtype="fp16", kernel_name=frame["kernel_name"].str.replace("bf16", "fp16"))]
    )
    for name, table in (("targets", others), ("rates", frame.drop(columns="tflops"))):
        write_bytes(tmp_path / f"{name}.parquet", parquet_bytes(table))
        rows = open_measurements(tmp_path / f"{name}.parquet", TARGET, 60)
        assert isinstance(rows, pd.DataFrame)
        assert len(rows) == len(frame)
