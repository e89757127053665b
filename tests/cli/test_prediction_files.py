"""The chain of files: evaluate and select write predictions, compare reads them; CK Tile's CSV judges as it is."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from ck_files import CONV_KERNELS, conv_problems, csv_lines
from small_model import table, write_model
from synthetic import CONV
from tilewise.cli.main import main
from tilewise.data import read_measurements
from tilewise.data.importers import read_table_or_import
from tilewise.model import read_parts, write_artefact
from tilewise.ops import Target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name, sign in (("good", 1.0), ("bad", -1.0)):
        parts = read_parts(write_model(folder / name, sign=sign))
        figures = {"n_problems": 40, "r2": 0.9, "rmse": 1.0}  # the verb prints them, and small models lack them
        write_artefact(folder / name, dataclasses.replace(parts, cv_metrics={**parts.cv_metrics, **figures}))
    table().to_parquet(folder / "table.parquet")
    return folder


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


ALL = ("data=table.parquet", "holdout.fraction=0")


@pytest.mark.long
def test_evaluate_writes_and_compare_reads(capsys: pytest.CaptureFixture[str]) -> None:
    for name, ending in (("good", "csv"), ("bad", "parquet")):
        words = ["evaluate", "-q", f"model_dir={name}", f"out=report-{name}", f"output={name}.{ending}"]
        assert main([*words, *ALL]) == 0
    assert main(["compare", "--json", "a=bad.parquet", "b=good.csv", "compare.n_resamples=100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert main(["compare", "--json", "a=bad", "b=good", "compare.n_resamples=100", *ALL]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert found["a"]["efficiency"] == pytest.approx(expected["a"]["efficiency"])
    assert (found["n_problems"], found["same_kernel"]) == (expected["n_problems"], expected["same_kernel"])
    assert main(["compare", "a=bad", "b=good.csv"]) == 2
    assert "give two models, or two files of predictions" in capsys.readouterr().err
    # the report's own predictions state no target, so the command does
    assert main(["compare", "-q", "a=report-bad/predictions.parquet", "b=good.csv", f"target={CONV}"]) == 0


@pytest.mark.long
def test_selections_are_judged_by_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(Target.parse(CONV).problem_type.column_names())
    pd.read_parquet("table.parquet")[names].drop_duplicates().head(20).to_csv("problems.csv", index=False)
    for name in ("good", "bad"):
        words = ["select", "-q", "problems=problems.csv", f"model_dir={name}", f"output=selected-{name}.csv"]
        assert main(words) == 0
    words = ["compare", "--json", "a=selected-bad.csv", "b=selected-good.csv", "data=table.parquet"]
    assert main([*words, "compare.n_resamples=100"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["n_problems"] > 10
    assert found["deltas"]["mean"]["delta"] > 0


@pytest.mark.long
def test_a_slice_is_judged_alone_and_writes_no_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--json", "model_dir=good", "slices={bound: memory}", *ALL, "output=some.csv"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = pd.read_csv("some.csv")
    assert set(rows["bound"]) == {"memory"}
    assert found["n_problems"] == len(rows) > 0
    assert found["mean_efficiency"] == pytest.approx(rows["efficiency"].mean())
    assert not Path("reports").exists()
    assert main(["evaluate", "model_dir=good", "slices={bound: memory}", *ALL, "out=x"]) == 2
    assert "writes no report; leave out out=" in capsys.readouterr().err
    assert main(["evaluate", "model_dir=good", "slices={bond: memory}", *ALL]) == 2
    assert "slices: 'bond' is unknown" in capsys.readouterr().err


@pytest.mark.long
def test_ck_tiles_csv_is_read_as_it_is(tmp_path: Path) -> None:
    target = Target.parse("grouped_conv_forward_bf16_gfx950")
    (tmp_path / "bench.csv").write_text("".join(f"{line}\n" for line in csv_lines(conv_problems(8), CONV_KERNELS[:4])))
    frame, report = read_table_or_import(tmp_path / "bench.csv", target)
    assert report is not None
    assert len(frame) == report.rows > 10
    frame.to_parquet(tmp_path / "own.parquet")
    same, none = read_table_or_import(tmp_path / "own.parquet", target)
    assert none is None
    pd.testing.assert_frame_equal(same, read_measurements(tmp_path / "own.parquet", target))
