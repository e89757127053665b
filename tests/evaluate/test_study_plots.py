"""Plots of a study are readable PNG files, and only those that its trials are enough for."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from tilewise.evaluate.plots import plot_study
from tilewise.train import ModelSettings, TrialResult, TuningResult
from tilewise.train._training_result import TrialState


def trial(number: int, mean: float, cost: float, state: TrialState = "complete", leaves: int = 31) -> TrialResult:
    params = {"num_leaves": leaves + number, "lambda_l2": 1.0}
    return TrialResult(
        number, params, mean, (mean,), state, {"mean": mean, "selection_time": cost}, is_initial=number == 0
    )


def names(tuning: TuningResult, folder: Path) -> set[str]:
    paths = plot_study(tuning, folder)
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) > 300
    return {path.name for path in paths}


def test_everything_is_drawn_for_a_study_of_two_objectives(tmp_path: Path) -> None:
    trials = (trial(0, 0.9, 5), trial(1, 0.5, 4, "pruned"), trial(2, 0.95, 9), trial(3, float("nan"), 0, "failed"))
    tuning = TuningResult(ModelSettings(), trials, "mine", trials[2], {"num_leaves": 0.7, "lambda_l2": 0.3})
    parts = ("history", "parameters", "importances", "pareto_selection_time")
    assert names(tuning, tmp_path) == {f"tuning_{part}.png" for part in parts}


def test_pruned_trials_alone_are_drawn_too_from_three_on(tmp_path: Path) -> None:
    pruned = tuple(
        TrialResult(n, {"num_leaves": 3 + n}, 0.5, (0.5,), "pruned", {"efficiency": 0.5}, is_initial=n == 0)
        for n in range(3)
    )
    drawn = {"tuning_history.png", "tuning_parameters.png"}
    assert names(TuningResult(ModelSettings(), pruned, "mine"), tmp_path) == drawn
    assert names(TuningResult(ModelSettings(), pruned[:2], "mine"), tmp_path) == set()


def test_without_trials_there_is_nothing_to_draw(tmp_path: Path) -> None:
    assert plot_study(TuningResult(ModelSettings()), tmp_path) == []
    failed = (trial(0, float("nan"), 0, "failed"),)
    assert plot_study(TuningResult(ModelSettings(), failed, "mine"), tmp_path) == []
