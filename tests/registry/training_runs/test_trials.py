"""The table of trials beside their nested runs."""

from __future__ import annotations

import csv
import io

from tilewise.registry.training_runs._trials import trials_csv
from tilewise.train import ModelSettings, TrialResult, TuningResult


def test_a_row_a_trial_with_gaps_where_folds_were_not_seen() -> None:
    params = {"num_leaves": 9, "lambda_l2": 0.5}
    trials = (
        TrialResult(0, params, 0.9, (0.8, 1.0), "complete", {"mean": 0.9, "p10": 0.7}, is_initial=True),
        TrialResult(2, params | {"num_leaves": 5}, 0.5, (0.5,), "pruned", {"mean": 0.5, "p10": 0.2}, is_initial=False),
        TrialResult(3, {}, float("nan"), (), "failed", {}, is_initial=False),
    )
    rows = list(csv.DictReader(io.StringIO(trials_csv(TuningResult(ModelSettings(), trials, "mine", trials[0])))))
    assert [row["number"] for row in rows] == ["0", "2", "3"]
    assert rows[0] == {
        "number": "0",
        "state": "complete",
        "given": "1",
        "chosen": "1",
        "lambda_l2": "0.5",
        "num_leaves": "9",
        "mean": "0.9",
        "p10": "0.7",
        "fold_0": "0.8",
        "fold_1": "1.0",
    }
    assert (rows[1]["chosen"], rows[1]["fold_0"], rows[1]["fold_1"]) == ("0", "0.5", None)
    assert rows[2]["mean"] == rows[2]["num_leaves"] == ""
