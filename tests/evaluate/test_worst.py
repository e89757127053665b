"""The worst problems come first, and each is told why; a reason never contradicts the figures beside it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tilewise.evaluate import Evaluation, evaluate
from tilewise.evaluate._worst import noise_of, within_noise, worst_problems
from tilewise.model import TrainedModel

NAN = float("nan")


@pytest.fixture(scope="module")
def evaluation(model: TrainedModel, frame: pd.DataFrame) -> Evaluation:
    return evaluate(model, frame)


def changed(evaluation: Evaluation, **first: Any) -> dict[str, Any]:
    """Return the worst problem of an evaluation whose first row is the worst, with these values."""
    table = evaluation.per_problem.copy()
    for name, value in ({"efficiency": 0.01} | first).items():
        table.loc[0, name] = value
    return worst_problems(dataclasses.replace(evaluation, per_problem=table), 1)[0]


def test_the_worst_come_first(evaluation: Evaluation) -> None:
    worst = worst_problems(evaluation, 7)
    assert [w["efficiency"] for w in worst] == sorted(evaluation.per_problem["efficiency"])[:7]
    assert set(worst[0]["slices"]) >= {"family", "size", "bound", "pipeline", "distance"}
    assert set(worst[0]["problem"]) == set(evaluation.per_problem.columns[: len(worst[0]["problem"])])


def test_unrepeated_problems_have_the_median_noise_of_the_others() -> None:
    table = pd.DataFrame({"repeat_noise": [0.01, NAN, 0.03, 0.02]})
    assert noise_of(table).tolist() == [0.01, 0.02, 0.03, 0.02]
    assert np.isnan(noise_of(pd.DataFrame({"repeat_noise": [NAN]}))).all()


@pytest.mark.parametrize(
    ("efficiency", "noise", "again", "expected"),
    [
        (0.99, 0.02, NAN, 1),
        (0.97, 0.02, NAN, 0),
        (0.90, 0.02, 1.01, 1),  # the other run finds the selection faster
        (0.90, 0.02, 0.985, 1),
        (0.90, 0.02, 0.95, 0),
        (1.00, NAN, NAN, 1),
    ],
)
def test_what_is_within_noise(efficiency: float, noise: float, again: float, expected: float) -> None:
    table = pd.DataFrame({"efficiency": [efficiency], "repeat_noise": [noise], "efficiency_again": [again]})
    assert within_noise(table).tolist() == [expected]


def test_without_repeats_nobody_knows() -> None:
    table = pd.DataFrame({"efficiency": [0.99], "repeat_noise": [NAN], "efficiency_again": [NAN]})
    assert np.isnan(within_noise(table)).all()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"efficiency_again": 1.02}, "within noise: repeats do not tell the two kernels apart"),
        ({"efficiency_again": 0.5}, "repeats confirm it: 50.0 % by the other runs"),
        ({"efficiency_again": 0.6}, "repeats find less than half of it: 60.0 % by the other runs"),
        ({"oracle_predicted_tflops": NAN}, "the oracle is not in the model's pool"),
        ({"oracle_rank": 1}, "near miss: the oracle is ranked 2"),
        ({"predicted_tflops": 15.0, "selected_tflops": 10.0}, "selection over-predicted by 50 %"),
        ({"oracle_predicted_tflops": 8.0, "oracle_tflops": 10.0}, "oracle under-predicted by 20 %"),
        ({"nearest_octaves": 3.25}, "the nearest shape it learnt from is 3.2 octaves away"),
    ],
)
def test_reasons(evaluation: Evaluation, row: dict[str, Any], reason: str) -> None:
    assert reason in changed(evaluation, **row)["reasons"]


def test_what_is_unknown_is_null(evaluation: Evaluation) -> None:
    worst = changed(evaluation, efficiency_again=NAN, oracle_predicted_tflops=NAN)
    assert worst["efficiency_again"] is worst["oracle_predicted_tflops"] is worst["nearest_octaves"] is None
