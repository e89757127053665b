"""Efficiency over the whole pool: a listed selection has its own rate, an unlisted one that of the slowest listed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tilewise.data import TargetTable
from tilewise.evaluate import evaluate
from tilewise.evaluate._holdout import _whole_pool
from tilewise.evaluate._scored_table import ScoredTable
from tilewise.model import TrainedModel


def labels_of(model: TrainedModel, frame: pd.DataFrame) -> TargetTable:
    """Return the labels of the problems of which the model's own selection was measured, all kernels supported."""
    labels = TargetTable.of(frame, model.target).labelled().ordered(model.pool).supported(model.pool)
    selected = np.array([model.rank(problem, 1)[0] for problem in labels.problems])
    is_selected = labels.kernel(model.pool) == selected[labels.problem]
    return labels.take(np.isin(labels.problem, labels.problem[is_selected])).ordered(model.pool)


def test_listed_selections_have_the_efficiency_of_their_measurement(model: TrainedModel, frame: pd.DataFrame) -> None:
    scored = ScoredTable.of(model, labels_of(model, frame))
    whole, efficiency = _whole_pool(scored), scored.chosen.efficiency
    assert whole.listed_rate == 1
    assert whole.mean_efficiency == pytest.approx(efficiency.mean())
    assert whole.median_efficiency == pytest.approx(np.median(efficiency))
    assert whole.p10_efficiency == pytest.approx(np.percentile(efficiency, 10))


def test_unlisted_selections_count_as_the_slowest_listed_kernel(model: TrainedModel, frame: pd.DataFrame) -> None:
    labels = labels_of(model, frame)
    whole = ScoredTable.of(model, labels)
    removed = whole.chosen.selected[::2]
    kept = np.ones(len(labels), dtype=bool)
    kept[removed] = False
    part = labels.take(kept).ordered(model.pool)
    rates = pd.Series(part.tflops).groupby(part.problem)
    expected = whole.table.tflops[whole.chosen.selected] / rates.max().to_numpy()
    expected[::2] = (rates.min() / rates.max()).to_numpy()[::2]
    found = _whole_pool(ScoredTable.of(model, part))
    assert found.mean_efficiency == pytest.approx(expected.mean())
    assert found.p10_efficiency == pytest.approx(np.percentile(expected, 10))
    assert found.listed_rate == pytest.approx(1 - len(removed) / len(whole.chosen.selected))


def test_complete_tables_have_one_figure_only(model: TrainedModel, frame: pd.DataFrame) -> None:
    assert evaluate(model, frame).whole_pool is None
