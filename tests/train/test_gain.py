"""Fewer features: those that trees gain by, and a model that has no others."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.features import FeatureRows
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.train import (
    ModelSettings,
    Table,
    TrainSettings,
    TuneSettings,
    pool_of,
    rank_features,
    select_features,
    train,
)
from tilewise.train.cost_model import Baselines
from tilewise.train.cost_model._baseline import Baseline

SETTINGS = TrainSettings(ModelSettings(n_estimators=20, num_leaves=15), TuneSettings(n_trials=0), n_splits=3)


def fewer(n: int) -> TrainSettings:
    return dataclasses.replace(SETTINGS, model=dataclasses.replace(SETTINGS.model, n_features=n))


def test_a_feature_that_tells_everything_comes_first(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    place = table.features.names.index("estimated_efficiency_log2")
    telling = table.matrix
    telling[:, place] = table.efficiency
    monkeypatch.setattr(FeatureRows, "__getitem__", lambda rows, index: telling[index])
    ranked = rank_features(table, SETTINGS)
    assert ranked[0] == "estimated_efficiency_log2"
    assert sorted(ranked) == sorted(table.features.names)


def test_those_of_most_gain_stay_in_the_tables_order(table: Table) -> None:
    few = select_features(table, fewer(8))
    assert set(few.features.names) == set(rank_features(table, SETTINGS)[:8])
    places = [table.features.names.index(name) for name in few.features.names]
    assert places == sorted(places)
    assert (few.matrix == table.matrix[:, places]).all()
    first = np.flatnonzero(np.diff(few.problem, prepend=-1))
    of_problem = [f.role == "problem" for f in few.features.features]
    assert (few.problem_matrix == few.matrix[first][:, of_problem]).all()


def test_none_goes_where_all_are_wanted(table: Table) -> None:
    assert select_features(table, SETTINGS) is table
    assert select_features(table, fewer(10_000)) is table


def test_a_choice_of_problems_is_calibrated_once(frame: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    target, calibrated, calibrate = Target.parse(CONV), list[bytes](), Baselines._calibrate

    def counted(baselines: Baselines, problems: npt.NDArray[np.int64]) -> Baseline:
        calibrated.append(problems.tobytes())
        return calibrate(baselines, problems)

    monkeypatch.setattr(Baselines, "_calibrate", counted)
    train(frame, target, pool_of(frame, target), load_arch("sm90"), fewer(12))
    assert len(set(calibrated)) == len(calibrated) > SETTINGS.n_splits


@pytest.mark.long
def test_a_model_with_few_features_is_written_and_ranks(frame: pd.DataFrame, tmp_path: Path) -> None:
    target = Target.parse(CONV)
    result = train(frame, target, pool_of(frame, target), load_arch("sm90"), fewer(12))
    assert len(result.feature_importances) == 12
    write_artefact(tmp_path / "m", result.parts)
    model = load_artefact(tmp_path / "m")
    assert len(model.features.names) == 12
    problem = result.parts.selftest_problems[0]
    assert set(model.rank(problem)) == set(np.flatnonzero(model.supported(problem)))
    assert result.cv_metrics["mean_efficiency"] > 0.9
