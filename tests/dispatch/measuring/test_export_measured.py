"""Measurements made on the spot are exported as a measurement table, each row once, ready for training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from small_model import table, write_model
from synthetic import CONV
from tilewise.cli.main import main
from tilewise.collect.engines import ReplayTable
from tilewise.data import read_measurements
from tilewise.data.quality import prepare_measurements
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.measuring import Machine, ReplayMeasurer
from tilewise.ops import Problem, Target

TARGET = Target.parse(CONV)
FIGURES = ["latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms", "repeats", "unrolled", "sm_clock_mhz"]


class OnSomeGpu(ReplayMeasurer):
    """A replay measurer that claims to be a GPU."""

    def machine(self, target: Target) -> Machine:
        return Machine("NVIDIA H200", "sm90", "580.1", "2.11.0", "3.6.0", super().machine(target).kernels)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    table().to_parquet("recorded.parquet")
    write_model(Path("models") / CONV, trees=2)


def _measured(*problems: Problem) -> None:
    """Measure problems with a dispatcher that must not use its model."""
    from tilewise.model import load_artefact

    model = load_artefact(Path("models") / CONV)
    switches = Switches.read({}, model="off", measure="missing")
    with Dispatcher(TARGET, model.pool, model, switches=switches, measurer=OnSomeGpu("recorded.parquet")) as dispatcher:
        for problem in problems:
            assert dispatcher.select(problem).why == "measured"


@pytest.mark.long
def test_exported_rows_equal_collected_ones(capsys: pytest.CaptureFixture[str]) -> None:
    recorded = ReplayTable.load("recorded.parquet", TARGET)
    first, second, third = recorded.problems[:3]
    _measured(first, second)
    assert main(["cache", "export", "output=data/a.parquet", "collect.run_id=spot-1"]) == 0
    assert "of 2 problems; left out are 0" in capsys.readouterr().out
    rows = read_measurements(Path("data/a.parquet"), TARGET)
    assert rows["run_id"].str.fullmatch(r"spot-1-[0-9a-f]{8}").all()
    assert (rows["origin"] == "dispatch").all()
    assert set(rows["libraries"]) == {"torch 2.11.0, triton 3.6.0"}
    assert set(rows["regime"]) == {"cold_l2+graph"}
    names = [n for n in first.column_names()]
    wanted = table().merge(rows[names].drop_duplicates())
    wanted = wanted[wanted["status"] != "unsupported"]  # never tried
    keys = [*names, "kernel_name"]
    both = rows.merge(wanted, on=keys, suffixes=("", "_recorded"))
    assert len(both) == len(rows) == len(wanted)
    assert (both["status"] == both["status_recorded"]).all()
    for name in FIGURES:
        assert both[name].astype(float).tolist() == pytest.approx(
            both[f"{name}_recorded"].astype(float).tolist(), rel=2**-13, nan_ok=True
        )
    assert not len(prepare_measurements(rows, TARGET).quarantined)

    assert main(["cache", "export", "output=data/b.parquet", "collect.run_id=spot-2"]) == 2
    assert "2 problems are among the measurements already" in capsys.readouterr().err
    _measured(third)
    assert main(["cache", "export", "output=data/b.parquet", "collect.run_id=spot-2"]) == 0
    assert "of 1 problems; left out are 2 that data holds already" in capsys.readouterr().out
    both_runs = read_measurements(Path("data"), TARGET)
    assert both_runs[names].drop_duplicates().shape[0] == 3
    assert not len(prepare_measurements(both_runs, TARGET).quarantined)


def test_entries_of_an_unknown_pool_are_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    _measured(ReplayTable.load("recorded.parquet", TARGET).problems[0])
    pool = Path("models") / CONV / "pool.json"
    values = json.loads(pool.read_text())
    pool.write_text(json.dumps(values | {"hash": "0" * 64}))
    assert main(["cache", "export", "output=data/a.parquet", "collect.run_id=spot-1"]) == 2
    assert "1 were measured with other sources of the kernels or with a pool" in capsys.readouterr().err
    assert not list(Path("data").iterdir())
