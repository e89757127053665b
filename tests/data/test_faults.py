"""Untrustworthy labels are found, and kernels that really are slow are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.data import read_raw_measurements
from tilewise.data.importers import ingest_file
from tilewise.data.quality._faults import HARMLESS, RULES, find_faults, label_faults
from tilewise.ops import Target

TARGET = Target.parse(CONV)
FRAME = measurements(n_problems=20, n_kernels=10, seed=3, failures=0)
VALID = np.flatnonzero(FRAME["is_valid"])
REAL = Path(__file__).parents[3] / "shared" / "data" / "gfx950_forward_bf16_train.csv"
SAMPLES = ["latency_min_ms", "latency_p20_ms", "latency_p80_ms", "repeats"]


def slower(row: int, factor: float, *, sampled: bool) -> pd.DataFrame:
    """Return the table with one latency off; without `sampled` it has no samples, like an import."""
    frame = FRAME.copy()
    frame.loc[row, ["latency_ms", *SAMPLES[:3]]] *= factor
    frame.loc[row, ["tflops", "bandwidth_gb_s"]] /= factor
    return frame if sampled else frame.assign(**dict.fromkeys(SAMPLES, None)).astype(FRAME.dtypes)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("row", VALID[::17])
def test_a_latency_a_hundred_times_its_neighbours_is_an_outlier(row: int, sampled: bool) -> None:
    faults = label_faults(slower(row, 100, sampled=sampled), TARGET, load_arch("sm90"))
    assert faults.index[faults["rule"] != ""].tolist() == [row]
    assert faults["rule"][row] == "outlier"
    assert "times slower than this kernel usually is" in faults["reason"][row]


def test_a_kernel_that_did_a_part_of_the_work_is_an_outlier() -> None:
    row = VALID[np.argmin(FRAME["tflops"].to_numpy()[VALID])]
    faults = label_faults(slower(row, 1 / 60, sampled=False), TARGET, load_arch("sm90"))
    assert faults["rule"][row] in ("outlier", "above_bandwidth")
    assert (faults["rule"].drop(row) == "").all()


def test_a_slow_kernel_whose_samples_agree_is_just_slow() -> None:
    assert (label_faults(slower(VALID[40], 8, sampled=True), TARGET, load_arch("sm90"))["rule"] == "").all()


def test_a_kernel_that_is_slow_on_all_shapes_like_it_is_no_outlier() -> None:
    kernel = FRAME["kernel_name"][VALID[0]]
    rows = FRAME.index[(FRAME["kernel_name"] == kernel) & FRAME["is_valid"]]
    frame = FRAME.assign(**dict.fromkeys(SAMPLES, None)).astype(FRAME.dtypes)
    frame.loc[rows, "latency_ms"] *= 100
    frame.loc[rows, ["tflops", "bandwidth_gb_s"]] /= 100
    assert (label_faults(frame, TARGET, load_arch("sm90"))["rule"] == "").all()


def test_too_few_kernels_are_no_neighbourhood() -> None:
    few = FRAME["kernel_name"].drop_duplicates()[:3]
    frame = slower(VALID[0], 100, sampled=False)
    frame = frame[frame["kernel_name"].isin(few)]
    assert (label_faults(frame, TARGET, load_arch("sm90"))["rule"] == "").all()


def test_rules_of_one_row_come_first() -> None:
    frame = FRAME.copy()
    frame.loc[3, "run_id"] = None
    faults = find_faults([frame], TARGET)
    assert faults.loc[3].tolist() == ["row", "run_id is empty"]
    assert set(faults["rule"]) == {"row"}
    assert {"row", *HARMLESS} < set(RULES)


@pytest.mark.skipif(not REAL.exists(), reason="the published gfx950 table is not beside the repository")
def test_faults_of_the_published_table(tmp_path: Path) -> None:
    target = Target.parse("grouped_conv_forward_bf16_gfx950")
    ingest_file(REAL, target, tmp_path / "t.parquet")
    rows = read_raw_measurements(tmp_path / "t.parquet", target)
    faults = find_faults([rows], target)
    assert faults["rule"].value_counts().to_dict() == {"repeat": 49, "contradiction": 22, "outlier": 3}
    assert sorted(rows["latency_ms"][faults.index[faults["rule"] == "outlier"]].round(2)) == [2.93, 3.57, 3.84]
