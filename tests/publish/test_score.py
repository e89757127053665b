"""Scores equal the evaluation of the model that made the selections, and damaged files are refused by their row."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from small_model import PROBLEMS, table, with_vendor, write_model
from synthetic import CONV, measurements
from tilewise.cli.main import main
from tilewise.data import TargetTable
from tilewise.errors import DataError
from tilewise.evaluate import Evaluation, evaluate, read_predictions, write_predictions
from tilewise.model import load_artefact
from tilewise.ops import Target
from tilewise.publish import score_predictions, vendor_rates

TARGET = Target.parse(CONV)
FRACTION = 0.5


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return with_vendor(table())


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory, frame: pd.DataFrame) -> Evaluation:
    model = load_artefact(write_model(tmp_path_factory.mktemp("model") / "m", vendor=True))
    return evaluate(model, frame, FRACTION, require_unseen=False)


@pytest.fixture
def rows(evaluation: Evaluation) -> pd.DataFrame:
    """Return a sound submission: a selection per holdout problem, and the predicted TFLOPS."""
    names = [*TARGET.problem_type.column_names(), "selected", "predicted_tflops"]
    return evaluation.per_problem[names].rename(columns={"selected": "kernel_name"}).assign(target=CONV)


def test_the_score_is_the_evaluation_of_the_model(evaluation: Evaluation, frame: pd.DataFrame, tmp_path: Path) -> None:
    write_predictions(tmp_path / "a.parquet", evaluation)
    score = score_predictions(read_predictions(tmp_path / "a.parquet", TARGET), frame, FRACTION)
    assert 10 < score.figures["n_problems"] < PROBLEMS
    assert score.figures == pytest.approx({name: evaluation.metrics[name] for name in score.figures})
    assert score.tflops_error == pytest.approx(evaluation.metrics["tflops_error"])
    assert score.n_kernels == evaluation.per_problem["selected"].nunique()


def test_the_vendor_s_own_selections_take_as_long_as_the_vendor(frame: pd.DataFrame, tmp_path: Path) -> None:
    labels = TargetTable.of(frame, TARGET).holdout(FRACTION).labelled()
    rates = vendor_rates(labels)
    rates.to_csv(tmp_path / "vendor.csv", index=False)
    score = score_predictions(read_predictions(tmp_path / "vendor.csv", TARGET), frame, FRACTION)
    expected = {"n_problems": len(rates), "geomean": 1.0, "p10": 1.0, "least": 1.0}
    assert score.vendor == pytest.approx(expected)
    best = labels.rows.groupby(list(TARGET.problem_type.column_names()))["tflops"].max()
    assert score.figures["mean_efficiency"] == pytest.approx(
        np.mean(rates["vendor_tflops"].to_numpy() / best.to_numpy())
    )
    assert score.weakest[0]["p10_efficiency"] <= score.weakest[-1]["p10_efficiency"]


def test_without_calls_of_the_vendor_there_is_no_ratio(rows: pd.DataFrame, tmp_path: Path) -> None:
    plain = table()
    fastest = (
        plain[plain["is_valid"]].sort_values("latency_ms").drop_duplicates(list(TARGET.problem_type.column_names()))
    )
    held = TargetTable.of(fastest, TARGET).holdout(FRACTION).rows
    held[[*TARGET.problem_type.column_names(), "kernel_name"]].to_csv(tmp_path / "best.csv", index=False)
    score = score_predictions(read_predictions(tmp_path / "best.csv", TARGET), plain, FRACTION)
    assert (score.vendor, score.tflops_error) == (None, None)
    assert score.figures["min_efficiency"] == score.figures["top1_accuracy"] == 1.0


class TestRefused:
    def score(self, rows: pd.DataFrame, frame: pd.DataFrame, folder: Path) -> None:
        rows.to_csv(folder / "mine.csv", index=False)
        score_predictions(read_predictions(folder / "mine.csv", TARGET), frame, FRACTION)

    def test_a_missing_problem(self, rows: pd.DataFrame, frame: pd.DataFrame, tmp_path: Path) -> None:
        message = (
            rf"mine\.csv: 1 of {len(rows)} problems have no row, the first is N=\d.* each problem of the holdout: 50%"
        )
        with pytest.raises(DataError, match=message):
            self.score(rows.drop(index=3), frame, tmp_path)

    def test_a_problem_outside_the_holdout(self, rows: pd.DataFrame, frame: pd.DataFrame, tmp_path: Path) -> None:
        other = TargetTable.of(frame, TARGET).training(FRACTION).rows.iloc[[0]]
        more = pd.concat([rows, other[[*TARGET.problem_type.column_names(), "kernel_name"]].assign(target=CONV)])
        message = rf"mine\.csv, row {len(more)}: the problem is not of the holdout.*; leave out such rows \(1 of"
        with pytest.raises(DataError, match=message):
            self.score(more, frame, tmp_path)

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("kernel_name", "fast", r"mine\.csv, row 3: .*fast"),
            (
                "predicted_tflops",
                -1.0,
                "row 3: predicted_tflops must be positive, got -1; give it in every row or none",
            ),
            ("predicted_tflops", np.nan, "row 3: predicted_tflops must be positive, got nan"),
            ("N", 0, "row 3: N: must be at least 1, got 0"),
        ],
    )
    def test_a_bad_cell(
        self, column: str, value: object, message: str, rows: pd.DataFrame, frame: pd.DataFrame, tmp_path: Path
    ) -> None:
        rows = rows.astype({column: object} if isinstance(value, str) else {})
        rows.loc[rows.index[2], column] = value
        with pytest.raises(DataError, match=message):
            self.score(rows, frame, tmp_path)

    def test_a_kernel_that_failed(self, rows: pd.DataFrame, frame: pd.DataFrame, tmp_path: Path) -> None:
        key = [*TARGET.problem_type.column_names(), "kernel_name"]
        at = frame.merge(rows.iloc[[4]][key].assign(chosen=True), on=key, how="left")["chosen"].notna().to_numpy()
        failed = frame.assign(status=np.where(at, "timeout", frame["status"]), is_valid=frame["is_valid"] & ~at)
        with pytest.raises(
            DataError, match=r"row 5: .* has status timeout for this problem; select a kernel of its rows"
        ):
            self.score(rows, failed, tmp_path)


@pytest.mark.long
def test_the_command_scores_raw_measurements_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = measurements(CONV, PROBLEMS, 8)
    plain.to_parquet("table.parquet")
    fastest = (
        plain[plain["is_valid"]].sort_values("latency_ms").drop_duplicates(list(TARGET.problem_type.column_names()))
    )
    held = TargetTable.of(fastest, TARGET).holdout(FRACTION).rows
    held[[*TARGET.problem_type.column_names(), "kernel_name"]].to_csv("best.csv", index=False)
    words = ["score", "predictions=best.csv", "data=table.parquet", f"holdout.fraction={FRACTION}", f"target={CONV}"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"], found["figures"]["mean_efficiency"]) == (CONV, 1.0)
    assert main(words) == 0
    assert "worst   100.00 %" in capsys.readouterr().out
    assert main(["score", "data=table.parquet"]) == 2
    assert "predictions: a file FILE.csv or FILE.parquet is needed, got None" in capsys.readouterr().err
    assert main(["score", "predictions=none.csv", "data=table.parquet"]) == 2
    assert "predictions=none.csv: no such file or folder" in capsys.readouterr().err
