"""A table is read and checked as a whole, or refused with file and row: no row is dropped silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest

from synthetic import CONV, measurements
from tilewise.data import (
    DERIVED_COLUMNS,
    QUARANTINED,
    measurement_columns,
    read_measurements,
    read_raw_measurements,
)
from tilewise.data._schema import TOLERANCE, row_faults
from tilewise.errors import DataError
from tilewise.ops import Target

BWD_DATA = "grouped_conv_bwd_data_bf16_sm90"
FRAME = measurements(n_problems=4, n_kernels=6, seed=3, failures=0)
VALID = int(np.flatnonzero(FRAME["is_valid"])[2])


def written(tmp_path: Path, frame: pd.DataFrame, name: str = "table.parquet") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_parquet(path)
    return path


def changed(column: str, value: Any, row: int = VALID) -> pd.DataFrame:
    frame = FRAME.copy()
    frame.loc[row, column] = value
    return frame


def test_a_written_table_is_read_back(tmp_path: Path) -> None:
    frame = read_measurements(written(tmp_path, FRAME))
    pd.testing.assert_frame_equal(frame, FRAME)
    assert list(frame.columns) == [c.name for c in measurement_columns("grouped_conv")]


def test_a_folder_is_read_in_the_order_of_its_files(tmp_path: Path) -> None:
    written(tmp_path, FRAME[10:], "b.parquet")
    written(tmp_path, FRAME[:10], "a/z.parquet")
    pd.testing.assert_frame_equal(read_measurements(tmp_path), FRAME)


def test_rows_in_quarantine_are_not_read_with_their_folder(tmp_path: Path) -> None:
    written(tmp_path, FRAME)
    quarantined = written(tmp_path, FRAME.head(3), f"table{QUARANTINED}")
    assert len(read_measurements(tmp_path)) == len(FRAME)
    assert len(read_measurements(quarantined)) == 3


def test_a_target_keeps_its_rows_and_passes_over_other_ops(tmp_path: Path) -> None:
    written(tmp_path, FRAME, "conv.parquet")
    written(tmp_path, pd.DataFrame({"op": ["gemm"]}), "gemm.parquet")
    written(tmp_path, measurements(BWD_DATA, n_problems=2, n_kernels=3), "bwd.parquet")
    pd.testing.assert_frame_equal(read_measurements(tmp_path, Target.parse(CONV)), FRAME)
    assert len(read_measurements(tmp_path, Target.parse(BWD_DATA))) == 6


def test_tables_of_several_ops_need_a_target(tmp_path: Path) -> None:
    written(tmp_path, FRAME, "conv.parquet")
    written(tmp_path, pd.DataFrame({"op": ["gemm"]}), "gemm.parquet")
    with pytest.raises(DataError, match="tables of grouped_conv and gemm do not fit together; name a target"):
        read_measurements(tmp_path)


def test_a_file_holds_one_op(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one op per file, got gemm, grouped_conv"):
        read_measurements(written(tmp_path, pd.DataFrame({"op": ["gemm", "grouped_conv"]})))


def test_an_empty_file_is_passed_over(tmp_path: Path) -> None:
    written(tmp_path, FRAME[:0], "a.parquet")
    with pytest.raises(DataError, match="no rows"):
        read_measurements(tmp_path)
    written(tmp_path, FRAME, "b.parquet")
    pd.testing.assert_frame_equal(read_measurements(tmp_path), FRAME)


def test_a_target_without_rows_names_what_there_is(tmp_path: Path) -> None:
    written(tmp_path, FRAME)
    with pytest.raises(DataError, match=f"no row of {BWD_DATA}; there are {CONV}"):
        read_measurements(tmp_path, Target.parse(BWD_DATA))


def test_missing_files_say_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such file or folder"):
        read_measurements(tmp_path / "nowhere")
    with pytest.raises(
        DataError, match="no parquet file in this folder; `tilewise collect` or `tilewise ingest` writes one"
    ):
        read_measurements(tmp_path)


@pytest.mark.parametrize("keep", [0, 3, 100, -10], ids=["empty", "three_bytes", "head", "cut_off"])
def test_a_damaged_file_is_named(tmp_path: Path, keep: int) -> None:
    path = written(tmp_path, FRAME)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"table\.parquet: not a readable parquet file"):
        read_measurements(path)


@pytest.mark.long
def test_no_damage_ends_in_another_error(tmp_path: Path) -> None:
    whole, rng = written(tmp_path, FRAME).read_bytes(), np.random.default_rng(0)
    refused: list[str] = []
    path = tmp_path / "damaged.parquet"
    for _ in range(60):
        damaged = bytearray(whole)
        for at in rng.integers(len(whole), size=rng.choice([1, 3, 20])):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_measurements(path)
        except DataError as e:
            refused.append(str(e))
    assert all("damaged.parquet" in message for message in refused)
    assert len(refused) > 30  # a flipped bit may change a latency without a trace: the file has no checksums


def test_checksums_reveal_every_damage_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    FRAME.to_parquet(path, write_page_checksum=True, compression="none")
    whole = path.read_bytes()
    at = whole.index(FRAME["latency_ms"].iloc[VALID].tobytes())
    path.write_bytes(whole[: at + 3] + bytes([whole[at + 3] ^ 1]) + whole[at + 4 :])
    with pytest.raises(DataError, match=r"table\.parquet: not a readable parquet file: .*CRC"):
        read_measurements(path)


@pytest.mark.parametrize("column", ["tile_m", "N", "latency_ms", "run_id", "op"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    with pytest.raises(DataError, match=rf"table\.parquet: column {column} is missing"):
        read_measurements(written(tmp_path, FRAME.drop(columns=column)))


@pytest.mark.parametrize(
    ("column", "value", "kind"),
    [("tile_m", "64", "int"), ("latency_ms", "fast", "float"), ("kernel_name", 7, "str"), ("is_valid", 1, "bool")],
)
def test_a_column_of_another_type_is_named(tmp_path: Path, column: str, value: object, kind: str) -> None:
    with pytest.raises(DataError, match=rf"table\.parquet: column {column} must hold {kind} values"):
        read_measurements(written(tmp_path, FRAME.assign(**{column: [value] * len(FRAME)})))


def test_halves_are_no_integers(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="column tile_m must hold int values"):
        read_measurements(written(tmp_path, FRAME.assign(tile_m=FRAME["tile_m"] + 0.5)))


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("N", arrow.array([[1]] * len(FRAME)), "column N must hold int values"),
        ("N", arrow.array([np.inf] * len(FRAME)), "column N must hold int values"),
        ("N", arrow.array([2**63] * len(FRAME), arrow.uint64()), "column N must hold int values"),
        ("op", arrow.array([["grouped_conv"]] * len(FRAME)), "op must be one of"),
        ("op", arrow.array(["grouped_conv", None] * (len(FRAME) // 2)), "column op must hold one op per file"),
        ("error", arrow.array([b"\xff"] * len(FRAME)), "column error must hold str values"),
        ("latency_ms", arrow.array(["x"] * len(FRAME)).dictionary_encode(), "column latency_ms must hold float values"),
    ],
)
def test_strange_types_are_named(tmp_path: Path, column: str, values: arrow.Array, message: str) -> None:
    table = arrow.Table.from_pandas(FRAME)
    pq.write_table(table.set_column(table.column_names.index(column), column, values), tmp_path / "t.parquet")
    with pytest.raises(DataError, match=rf"t\.parquet: .*{message}"):
        read_measurements(tmp_path)


def test_a_column_that_stands_there_twice_is_named(tmp_path: Path) -> None:
    table = arrow.Table.from_pandas(FRAME)
    pq.write_table(table.append_column("N", table["N"]), tmp_path / "t.parquet")
    with pytest.raises(DataError, match="column names must be unique, got N more than once"):
        read_measurements(tmp_path)


def test_text_of_several_files_is_categories_in_the_order_of_the_names(tmp_path: Path) -> None:
    """Objects would be compared as text, and other orders would sort otherwise than text."""
    names = FRAME["kernel_name"].unique()
    for i, some in enumerate((names[3:], names[:3])):
        written(tmp_path, FRAME[FRAME["kernel_name"].isin(some)].assign(run_id=f"run-{9 - i}"), f"{i}.parquet")
    raw = read_raw_measurements(tmp_path)
    assert {str(raw[c.name].dtype) for c in measurement_columns("grouped_conv") if c.kind == "str"} == {"category"}
    assert raw["kernel_name"].cat.categories.tolist() == sorted(names)
    assert raw["run_id"].cat.categories.tolist() == ["run-8", "run-9"]
    assert raw["source_file"].unique().tolist() == [str(tmp_path / f"{i}.parquet") for i in range(2)]


def test_smaller_and_encoded_types_are_as_good(tmp_path: Path) -> None:
    smaller = FRAME.astype({"N": "int16", "kernel_name": "category", "op": "category"}).assign(extra=1)
    pd.testing.assert_frame_equal(read_measurements(written(tmp_path, smaller)), FRAME)


@pytest.mark.parametrize("left_out", [DERIVED_COLUMNS, DERIVED_COLUMNS[:1]])
def test_rates_that_a_file_leaves_out_are_derived(tmp_path: Path, left_out: tuple[str, ...]) -> None:
    frame = read_measurements(written(tmp_path, FRAME.drop(columns=list(left_out))))
    pd.testing.assert_frame_equal(frame, FRAME, rtol=TOLERANCE)
    assert frame.loc[~frame["is_valid"], list(DERIVED_COLUMNS)].isna().all(axis=None)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("C", 0, "C: must be at least 1"),
        ("C", None, "C is empty"),
        ("latency_ms", None, "a valid row needs latency_ms"),
    ],
)
def test_a_row_whose_rates_cannot_be_derived_is_named(tmp_path: Path, column: str, value: object, reason: str) -> None:
    frame = changed(column, value).drop(columns=list(DERIVED_COLUMNS))
    with pytest.raises(DataError, match=rf"table\.parquet: row {VALID}: .*{reason}"):
        read_measurements(written(tmp_path, frame))


def test_rates_do_not_follow_from_nothing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"row {VALID}: tflops nan does not follow from latency_ms"):
        read_measurements(written(tmp_path, changed("tflops", None)))


def test_an_unknown_op_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"op must be one of .*, got 'fft'"):
        read_measurements(written(tmp_path, FRAME.assign(op="fft")))


BAD_ROWS = [
    ("latency_ms", -1.0, "latency_ms must be positive, got -1.0"),
    ("latency_ms", 0.0, "latency_ms must be positive"),
    ("latency_ms", np.inf, "latency_ms must be finite"),
    ("latency_ms", None, "a valid row needs latency_ms"),
    ("tflops", 1e-3, "tflops 0.001 does not follow from latency_ms: expected"),
    ("bandwidth_gb_s", 1e9, r"bandwidth_gb_s 1e\+09 does not follow"),
    ("status", "fine", "status must be one of ok, .*, got 'fine'"),
    ("status", "timeout", "is_valid must mean that status is ok"),
    ("run_id", None, "run_id is empty"),
    ("repeats", -3, "repeats must not be negative, got -3"),
    ("C", 0, "C: must be at least 1, got 0"),
    ("G", 7, "must be divisible by G = 7"),
    ("variant", "sideways", "variant: must be one of forward"),
    ("tile_m", 48, "kernel_name .* does not belong to its columns: expected .*_48x"),
    ("kernel_name", "k", "kernel_name 'k' does not belong to its columns"),
    ("dtype", "bf17", "dtype 'bf17' is unknown"),
]


@pytest.mark.long
@pytest.mark.parametrize(("column", "value", "reason"), BAD_ROWS)
def test_a_bad_row_is_named(tmp_path: Path, column: str, value: object, reason: str) -> None:
    with pytest.raises(DataError, match=rf"table\.parquet: row {VALID}: .*{reason}"):
        read_measurements(written(tmp_path, changed(column, value)))


def test_rows_are_counted_within_their_file(tmp_path: Path) -> None:
    written(tmp_path, FRAME[:10], "a.parquet")
    written(tmp_path, changed("latency_ms", -1.0, 12)[10:].assign(sm_clock_mhz=-1), "b.parquet")
    with pytest.raises(DataError, match=rf"b\.parquet: row 0: .*; {len(FRAME) - 11} more rows are bad"):
        read_measurements(tmp_path)


def test_every_bad_row_has_one_reason_and_good_ones_none(tmp_path: Path) -> None:
    frame = changed("latency_ms", -1.0)
    frame.loc[0, "run_id"] = None
    faults = row_faults(read_raw_measurements(written(tmp_path, frame)))
    assert set(np.flatnonzero(faults != "")) == {0, VALID}
    assert faults[0] == "run_id is empty"


def test_a_failed_kernel_needs_no_latency() -> None:
    failed = FRAME[~FRAME["is_valid"]]
    assert len(failed)
    assert failed["latency_ms"].isna().all()
    assert (row_faults(failed) == "").all()


def test_a_table_of_a_version_without_layouts_has_the_channels_last(tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(read_measurements(written(tmp_path, FRAME.drop(columns="layout"))), FRAME)


def test_an_unknown_layout_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"layout: must be one of NHWGC, NGCHW, got 'NCHW'"):
        read_measurements(written(tmp_path, changed("layout", "NCHW")))
