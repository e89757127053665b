"""Learning curves: smaller parts of the same problems, ends that are the cross-validation's own figures."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.ops import Target
from tilewise.train import (
    Fold,
    ModelSettings,
    TrainingData,
    TrainingResult,
    TrainSettings,
    build_table,
    make_folds,
    pool_of,
    train,
)
from tilewise.train import _learning_curve as module


def test_the_curve_by_trees_ends_with_the_figures_of_the_cross_validation(result: TrainingResult) -> None:
    assert [p.n for p in result.by_trees] == [7, 14, 21, 28, 35, 42, 49, 56, 60]
    last = result.by_trees[-1]
    assert last.mean_efficiency == result.cv_metrics["mean_efficiency"]
    assert last.p10_efficiency == result.cv_metrics["p10_efficiency"]


def test_the_curve_by_problems_leaves_out_parts_that_are_too_small(result: TrainingResult) -> None:
    assert [p.n for p in result.by_problems] == [12, 23]
    assert all(0.5 < p.p10_efficiency <= p.mean_efficiency <= 1 for p in result.by_problems)


def test_parts_are_nested_and_keep_groups_together(
    frame: pd.DataFrame, settings: TrainSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target.parse(CONV)
    table = build_table(frame, target, pool_of(frame, target), load_arch("sm90"), 0.18)
    pairs = dataclasses.replace(table, group=table.group // 2)
    (fold, *_), parts = make_folds(pairs, 3, 0), []

    def remember(_: TrainingData, part: Fold, __: ModelSettings) -> np.ndarray:
        parts.append(part)
        return np.zeros(len(table.rows_of(part.test)))

    monkeypatch.setattr(module, "fold_score", remember)
    monkeypatch.setattr(module, "MIN_PROBLEMS", 2)
    grown = {n: np.full(len(table.problems), 0.1 * n) for n in (1, 2, 8)}
    model = dataclasses.replace(settings.model, n_estimators=8)
    points = module.curve_by_problems(TrainingData.prepare(pairs, settings), fold, model, grown)
    assert [p.n for p in points] == [*(len(p.train) for p in parts), len(fold.train)]
    assert points[-1].mean_efficiency == pytest.approx(0.2), "the one with a quarter of the trees"
    for smaller, larger in zip(parts, [*parts[1:], fold], strict=True):
        assert set(smaller.train) < set(larger.train)
        assert not set(pairs.group[smaller.train]) & set(pairs.group[np.setdiff1d(fold.train, smaller.train)])


def test_a_continued_model_has_none_by_problems(result: TrainingResult, frame: pd.DataFrame, tmp_path: Any) -> None:
    from tilewise.model import write_artefact
    from tilewise.train import BaseModel, continue_training

    write_artefact(tmp_path / "model", result.parts)
    base = BaseModel.load(tmp_path / "model")
    target = Target.parse(CONV)
    again = continue_training(frame, target, base, result.settings)
    assert again.by_problems == ()
    assert again.by_trees[-1].mean_efficiency == again.cv_metrics["mean_efficiency"]


@pytest.mark.long
@pytest.mark.parametrize("n", [1, 5])
def test_few_trees_are_a_curve_too(frame: pd.DataFrame, settings: TrainSettings, n: int) -> None:
    target = Target.parse(CONV)
    few = dataclasses.replace(
        settings,
        model=dataclasses.replace(settings.model, n_estimators=n),
        tune=dataclasses.replace(settings.tune, n_trials=0),
    )
    result = train(frame, target, pool_of(frame, target), load_arch("sm90"), few)
    assert [p.n for p in result.by_trees] == list(range(1, n + 1))
