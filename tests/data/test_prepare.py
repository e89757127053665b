"""Doubtful rows go to quarantine with a reason, all others are unchanged, and no row vanishes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.data import read_raw_measurements
from tilewise.data._schema import SOURCE
from tilewise.data.quality import prepare_measurements
from tilewise.data.quality._faults import label_faults
from tilewise.errors import DataError
from tilewise.ops import Target

TARGET = Target.parse(CONV)
FRAME = measurements(n_problems=6, n_kernels=8, seed=5, failures=0, repeats=2)
VALID = np.flatnonzero(FRAME["is_valid"] & (FRAME["run_id"] == "synthetic-1"))


def with_latency(rows: Any, factor: float, frame: pd.DataFrame = FRAME) -> pd.DataFrame:
    """Return the table with these rows `factor` times as slow, rates included."""
    frame = frame.copy()
    frame.loc[rows, ["latency_ms", "latency_min_ms"]] *= factor
    frame.loc[rows, ["tflops", "bandwidth_gb_s"]] /= factor
    return frame


def reasons(frame: pd.DataFrame) -> pd.Series:
    return label_faults(frame, TARGET, load_arch("sm90"))["reason"]


def test_a_good_table_comes_through_unchanged() -> None:
    prepared = prepare_measurements(FRAME, TARGET)
    pd.testing.assert_frame_equal(prepared.frame, FRAME)
    assert not len(prepared.quarantined)
    assert prepared.quarantined_share == 0


def test_rows_are_kept_or_quarantined_with_file_and_row(tmp_path: Path) -> None:
    bad = with_latency(VALID[3], 1e-4)
    bad.loc[VALID[5], "latency_ms"] = -1.0
    bad.to_parquet(tmp_path / "t.parquet")
    prepared = prepare_measurements(read_raw_measurements(tmp_path), TARGET)
    assert len(prepared.frame) + len(prepared.quarantined) == len(FRAME)
    assert prepared.quarantined["source_row"].tolist() == sorted([VALID[3], VALID[5]])
    assert prepared.quarantined["source_file"].str.endswith("t.parquet").all()
    assert "above the peak of sm90" in prepared.quarantined["reason"].iloc[0]
    assert "must be positive" in prepared.quarantined["reason"].iloc[1]
    assert not set(SOURCE) & set(prepared.frame.columns)


def test_other_targets_are_left_alone() -> None:
    other = measurements("grouped_conv_bwd_data_bf16_sm90", n_problems=2, n_kernels=3)
    prepared = prepare_measurements(pd.concat([other, FRAME], ignore_index=True), TARGET)
    pd.testing.assert_frame_equal(prepared.frame, FRAME)


def test_a_target_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="no row of grouped_conv_bwd_data_bf16_sm90 in a table of"):
        prepare_measurements(FRAME, Target.parse("grouped_conv_bwd_data_bf16_sm90"))


def test_a_table_of_bad_rows_only_is_refused() -> None:
    with pytest.raises(DataError, match=r"all \d+ rows of .* are bad, the first because run_id is empty"):
        prepare_measurements(FRAME.assign(run_id=None), TARGET)


def test_more_tflops_than_the_peak_cannot_be() -> None:
    fastest = FRAME.loc[VALID, "tflops"].idxmax()
    factor = FRAME.loc[fastest, "tflops"] / 1020
    found = reasons(with_latency(fastest, factor))
    assert found[fastest] == "1020 TFLOPS is above the peak of sm90, 1009.29"
    assert (found.drop(fastest) == "").all()


def test_more_bandwidth_than_the_memory_has_cannot_be() -> None:
    big = FRAME.assign(N=FRAME["N"] * 64, stride_h=1, stride_w=1)
    bytes_moved = big["bandwidth_gb_s"] * big["latency_ms"] * 64
    big = big.assign(tflops=1.0, bandwidth_gb_s=bytes_moved / big["latency_ms"])
    row = (bytes_moved.where(FRAME["is_valid"]) - 1e3).idxmax()
    seconds = (bytes_moved[row] - load_arch("sm90").l2_bytes / 1e6) / 4800 / 1.2
    big.loc[row, ["latency_ms", "latency_min_ms", "bandwidth_gb_s"]] = [seconds, seconds, bytes_moved[row] / seconds]
    assert "GB/s of memory, sm90 has 4800" in reasons(big)[row]


def test_a_duplicate_that_agrees_is_kept_once() -> None:
    frame = pd.concat([FRAME, with_latency(VALID[0], 1.01).loc[[VALID[0]]]], ignore_index=True)
    found = reasons(frame)
    assert np.flatnonzero(found != "").tolist() == [len(FRAME)]
    assert found.iloc[-1].startswith("repeats another row of the same run")


def test_duplicates_that_contradict_each_other_are_not_kept() -> None:
    frame = pd.concat([FRAME, with_latency(VALID[0], 1.2).loc[[VALID[0]]]], ignore_index=True)
    found = reasons(frame)
    assert np.flatnonzero(found != "").tolist() == [VALID[0], len(FRAME)]
    assert found.iloc[-1].startswith("contradicts another row of the same run")


def test_a_failure_contradicts_a_success() -> None:
    failed = FRAME.loc[[VALID[0]]].assign(status="timeout", is_valid=False, latency_ms=np.nan, tflops=np.nan)
    found = reasons(pd.concat([FRAME, failed], ignore_index=True))
    assert np.flatnonzero(found != "").tolist() == [VALID[0], len(FRAME)]


def test_the_same_rows_in_another_run_are_repeats_not_contradictions() -> None:
    assert (FRAME["run_id"] == "synthetic-2").any()
    assert (reasons(with_latency(VALID[0], 1.5)) == "").all()


def test_a_median_far_above_the_fastest_sample_is_a_cold_start() -> None:
    frame = with_latency(VALID[0], 50)
    frame.loc[VALID[0], "latency_min_ms"] /= 50
    assert reasons(frame)[VALID[0]].startswith("cold start: the median sample took")


def test_a_latency_far_above_another_run_is_a_cold_start() -> None:
    repeated = FRAME.index[FRAME["is_valid"] & (FRAME["run_id"] == "synthetic-2")][0]
    found = reasons(with_latency(repeated, 3))
    assert np.flatnonzero(found != "").tolist() == [repeated]
    assert found[repeated].startswith("cold start: took 3")
