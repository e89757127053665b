"""A replay table answers as the GPU did; a pair that it does not hold is a failure that says so."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imports import SRC
from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.cli.main import main
from tilewise.collect import Samples, Timing, collect_with_engine, summarize_samples
from tilewise.collect.engines import ReplayTable, replay_engine
from tilewise.collect.engines._replay_table import Oracle, samples_from_row
from tilewise.data import problems_of, read_measurements
from tilewise.data.importers import ingest_file
from tilewise.errors import DataError
from tilewise.ops import Target

TARGET = Target.parse(CONV)
FRAME = measurements(n_problems=6, n_kernels=8, seed=4, failures=0.1)
REAL = Path(__file__).parents[4] / "shared" / "data" / "gfx950_forward_bf16_train.csv"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    FRAME.to_parquet(tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def _quiet(what: str, done: int, of: int) -> None:
    pass


def test_a_table_answers_single_questions(table: Path) -> None:
    recorded = ReplayTable.load(table, TARGET)
    assert recorded.problems == problems_of(FRAME, TARGET)
    assert list(recorded.pool.names) == FRAME["kernel_name"].unique().tolist()
    for problem, (_, rows) in zip(recorded.problems, FRAME.groupby(np.arange(len(FRAME)) // 8), strict=True):
        best = rows.loc[rows["latency_ms"].idxmin()]
        assert recorded.oracle(problem) == Oracle(best["kernel_name"], best["latency_ms"])
        for kernel, (_, row) in zip(recorded.pool.kernels, rows.iterrows(), strict=True):
            outcome = recorded.outcome(problem, kernel)
            assert (outcome.status, outcome.error) == (row["status"], None if row["is_valid"] else row["error"])
            assert recorded.latency_ms(problem, kernel) == (row["latency_ms"] if row["is_valid"] else None)
            assert recorded.latency_ms(problem, row["kernel_name"]) == recorded.latency_ms(problem, kernel)


def test_an_unmeasured_pair_says_so(table: Path) -> None:
    recorded = ReplayTable.load(table, TARGET)
    unknown = type(recorded.problems[0]).from_dict({**recorded.problems[0].to_dict(), "N": 77})
    outcome = recorded.outcome(unknown, recorded.pool.kernels[0])
    assert (outcome.status, outcome.samples) == ("runtime_error", None)
    assert outcome.error is not None
    assert outcome.error.startswith("never measured")
    assert recorded.latency_ms(unknown, recorded.pool.names[0]) is None
    assert recorded.oracle(unknown) is None
    assert recorded.outcome(recorded.problems[0], "no such kernel").status == "runtime_error"


def test_the_first_valid_of_repeated_rows_counts(tmp_path: Path) -> None:
    valid = FRAME[FRAME["is_valid"]].iloc[[0]]
    failed = valid.assign(status="timeout", is_valid=False, latency_ms=np.nan)
    slower = valid.assign(latency_ms=valid["latency_ms"] * 2)
    pd.concat([failed, valid, slower]).to_parquet(tmp_path / "t.parquet")
    recorded = ReplayTable.load(tmp_path, TARGET)
    assert recorded.latency_ms(recorded.problems[0], recorded.pool.names[0]) == valid["latency_ms"].iloc[0]


def test_the_latest_programs_of_repeated_rows_count(tmp_path: Path) -> None:
    valid = FRAME[FRAME["is_valid"]].iloc[[0]]
    later = valid.assign(latency_ms=valid["latency_ms"] / 2, programs_version=2)
    pd.concat([valid, later, valid.assign(programs_version=1)]).to_parquet(tmp_path / "t.parquet")
    recorded = ReplayTable.load(tmp_path, TARGET)
    assert recorded.latency_ms(recorded.problems[0], recorded.pool.names[0]) == later["latency_ms"].iloc[0]


@given(
    times=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12),
    clocks=st.lists(st.integers(1, 2000), min_size=1, max_size=3),
)
def test_samples_have_the_summary_that_was_recorded(times: list[float], clocks: list[int]) -> None:
    """Samples rebuilt from a row summarize to the same row."""
    row = summarize_samples(Samples(tuple(times), tuple(clocks), 4))
    again = summarize_samples(samples_from_row(row))
    assert again == pytest.approx(row, rel=1e-9)


@pytest.mark.long
def test_collecting_from_a_table_reproduces_it(table: Path, tmp_path: Path) -> None:
    recorded = ReplayTable.load(table, TARGET)
    plan = recorded.plan("again", Timing(), load_arch("sm90"))
    report = collect_with_engine(plan, tmp_path / "out.parquet", replay_engine(table), [0, 1], _quiet)
    assert report.path is not None
    again = read_measurements(report.path, TARGET)
    same = [
        c for c in FRAME if c not in ("run_id", "measured_at") and not c.startswith(("hw_", "driver", "libr", "reg"))
    ]
    same = [c for c in same if c != "sm_clock_mhz"]
    pd.testing.assert_frame_equal(again[same], FRAME[same], rtol=2**-13)  # tables of collect keep few digits
    assert again["regime"].unique().tolist() == ["recorded"]
    assert again["run_id"].unique().tolist() == ["again"]


def test_the_factory_can_be_sent_to_a_worker(table: Path) -> None:
    factory = pickle.loads(pickle.dumps(replay_engine(table)))  # as spawning a worker does
    plan = ReplayTable.load(table, TARGET).plan("again")
    assert len(factory(plan, 0).measure(plan.items[0], {}, lambda kernel: None)) == 8


@pytest.mark.long
def test_the_command_simulates(table: Path, tmp_path: Path) -> None:
    output = tmp_path / "again.parquet"
    assert main(["collect", f"collect.simulate={table}", f"output={output}"]) == 0
    again = read_measurements(output, TARGET)
    np.testing.assert_allclose(again["latency_ms"], FRAME["latency_ms"], rtol=2**-13)
    assert again["run_id"].unique().tolist() == ["simulated-h200-1"]


@pytest.mark.skipif(not REAL.exists(), reason="the published gfx950 table is not beside the repository")
def test_an_imported_table_can_be_replayed(tmp_path: Path) -> None:
    target = Target.parse("grouped_conv_forward_bf16_gfx950")
    ingest_file(REAL, target, tmp_path / "t.parquet")
    recorded = ReplayTable.load(tmp_path / "t.parquet", target)
    assert (len(recorded.problems), len(recorded.pool)) == (185, 20)
    oracle = recorded.oracle(recorded.problems[0])
    assert oracle is not None
    frame = read_measurements(tmp_path / "t.parquet", target)
    assert oracle.latency_ms == frame["latency_ms"][:20].min()


def test_an_invalid_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        ReplayTable.load(tmp_path / "nothing.parquet", TARGET)
    FRAME.drop(columns="status").to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t\.parquet: column status is missing"):
        ReplayTable.load(tmp_path, TARGET)
    with pytest.raises(DataError, match="no row of grouped_conv_bwd_data_bf16_sm90"):
        ReplayTable.load(tmp_path, Target.parse("grouped_conv_bwd_data_bf16_sm90"))
    FRAME.assign(C=-1).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=r"t: not a table of measurements: C: must be at least 1|not a table"):
        ReplayTable.load(tmp_path / "t.parquet", TARGET)


def test_simulating_needs_no_pandas() -> None:
    code = (
        "import sys, tilewise.collect.engines._replay_table;"
        "print(sorted({'pandas', 'torch', 'mlflow', 'hydra', 'sklearn'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": str(SRC)})
    assert done.stdout == "[]\n", done.stderr
