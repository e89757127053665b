"""No group lies on both sides of a fold, and scores over bins equal the model's scores over values."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import lightgbm as lgb
import numpy as np
import pytest

from tilewise.cluster import Executor
from tilewise.errors import DataError
from tilewise.metrics import METRICS
from tilewise.model import COST_MODEL_LABELS
from tilewise.train import (
    Bins,
    Fit,
    FoldResult,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    cross_validate,
    make_folds,
    make_labels,
)
from tilewise.train import _cross_validation as cross_validation
from tilewise.train._boosting import Growth, lightgbm_params, model_text
from tilewise.train.cost_model import Baselines
from tilewise.train.hosts import Learning, grow_model

MODEL = ModelSettings(label="relative", n_estimators=25, num_leaves=15, learning_rate=0.2)


@pytest.fixture(scope="module")
def bins(table: Table) -> Bins:
    return Bins(table.matrix, table.features.names, MODEL.max_bin, 1)


def test_folds_part_groups_and_cover_every_problem_once(table: Table) -> None:
    shared = dataclasses.replace(table, group=table.group // 2)  # pairs of problems share a key, as layouts do
    folds = make_folds(shared, 5, 0)
    for fold in folds:
        assert not set(shared.group[fold.train]) & set(shared.group[fold.test])
        assert not set(shared.problem[shared.rows_of(fold.train)]) & set(fold.test)
    assert sorted(np.concatenate([f.test for f in folds])) == list(range(len(table.problems)))


def test_folds_depend_on_the_seed_alone(table: Table) -> None:
    first, again, other = (make_folds(table, 4, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a.test, b.test) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a.test, b.test) for a, b in zip(first, other, strict=True))


def test_too_few_groups_are_refused(table: Table) -> None:
    with pytest.raises(DataError, match=r"\d+ distinct split keys cannot make 500 folds"):
        make_folds(table, 500, 0)


def test_scores_over_bins_equal_those_of_a_model_over_values(table: Table, bins: Bins) -> None:
    train, test = table.rows_of(np.arange(20)), table.rows_of(np.arange(20, len(table.problems)))
    wanted = make_labels(table, MODEL, np.zeros(len(table.problem)))
    over_bins = bins.fit_predict(MODEL, wanted, train, test, Fit(1, 1))
    data = lgb.Dataset(
        table.matrix,
        wanted.values,
        weight=wanted.weight,
        params=dict(lightgbm_params(MODEL, Fit(1, 1))),
        feature_name=list(table.features.names),
    )
    booster = lgb.Booster(dict(lightgbm_params(MODEL, Fit(1, 1))), data.construct().subset(train.tolist()).construct())
    for _ in range(MODEL.n_estimators):
        booster.update()
    assert np.array_equal(over_bins, booster.predict(table.matrix[test]))


def test_labels_and_weights_of_one_fit_do_not_leak_into_the_next(table: Table, bins: Bins) -> None:
    rows, test = table.rows_of(np.arange(20)), table.rows_of(np.arange(20, 30))
    heavier = dataclasses.replace(MODEL, top_weight=3)
    plain, weighted = (
        make_labels(table, MODEL, np.zeros(len(table.problem))),
        make_labels(table, heavier, np.zeros(len(table.problem))),
    )
    before = bins.fit_predict(MODEL, plain, rows, test, Fit(0, 1))
    bins.fit_predict(MODEL, weighted, rows, test, Fit(0, 1))
    assert np.array_equal(bins.fit_predict(MODEL, plain, rows, test, Fit(0, 1)), before)


def test_rows_that_another_fold_learns_from_are_scored_without_its_baseline(table: Table) -> None:
    """With two folds, each tests the rows that the other learns from."""
    settings = TrainSettings(ModelSettings(shortlist=0, n_estimators=5, num_leaves=8), n_splits=2, threads=1)
    first, second = make_folds(table, 2, 0)
    alone = cross_validation.fold_score(TrainingData.prepare(table, settings), second, settings.model)
    data = TrainingData.prepare(table, settings)
    cross_validation.fold_score(data, first, settings.model)
    assert cross_validation.fold_score(data, second, settings.model).tobytes() == alone.tobytes()


def test_the_text_does_not_tell_the_number_of_threads(table: Table, bins: Bins) -> None:
    texts = {
        model_text(bins.fit(MODEL, make_labels(table, MODEL, np.zeros(len(table.problem))), Fit(0, threads)))
        for threads in (1, 2)
    }
    assert len(texts) == 1
    assert "[num_threads: 0]" in texts.pop()


@pytest.mark.long
@pytest.mark.parametrize("label", ["regret", "residual", "lambdarank", "relative", "log1p"])
def test_every_row_is_predicted_once_and_metrics_add_up(table: Table, bins: Bins, label: str) -> None:
    model = ModelSettings(label=label, n_estimators=40, num_leaves=15, learning_rate=0.2)
    seen: list[FoldResult] = []
    data = TrainingData(table, bins, Baselines(table, model, 0), TrainSettings(model, n_splits=3, threads=1))
    done = cross_validate(data, make_folds(table, 3, 0), model, seen.append)
    assert tuple(seen) == done.folds
    assert [f.fold for f in seen] == [0, 1, 2]
    assert tuple(done.metrics) == METRICS
    assert sum(f.metrics["n_problems"] for f in seen) == done.metrics["n_problems"] == len(table.problems)
    assert done.metrics["mean_efficiency"] == pytest.approx(done.out_of_fold.efficiency.mean())
    assert np.isfinite(done.out_of_fold.predicted).all()
    assert (done.out_of_fold.predicted > 0).all()
    assert done.metrics["mean_efficiency"] > 0.8  # random choice: about 0.5
    assert done.metrics["r2"] > 0.3
    # Two dozen problems say little about the TFLOPS of another where no cost model does.
    assert done.metrics["tflops_error"] < (0.25 if label in COST_MODEL_LABELS else 0.6)


def test_folds_score_the_shortlists_of_their_test_problems_only(
    table: Table, bins: Bins, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ModelSettings(label="lambdarank", shortlist=4, n_estimators=3, num_leaves=15)
    data = TrainingData(table, bins, Baselines(table, model, 0), TrainSettings(model, n_splits=3, threads=1))
    fold, tested = make_folds(table, 3, 0)[0], list[np.ndarray]()

    def watched(executor: Executor, bins: Bins, learning: Learning, *, every: int) -> Iterator[Growth]:
        tested.append(learning.test)
        return grow_model(executor, bins, learning, every=every)

    monkeypatch.setattr(cross_validation, "grow_model", watched)
    score = cross_validation.fold_score(data, fold, model)
    rows = table.measured_rows_of(fold.test)
    assert len(score) == len(rows)
    assert np.bincount(table.problem[tested[0]])[fold.test].tolist() == [4] * len(fold.test)
    # Rows that trees do not score have the place that they have if trees score every row.
    labels = make_labels(table, model, data.baselines.of(fold.train).scores)
    every = bins.fit_predict(model, labels, data.baselines.training_rows(fold.train), rows, data.fit)
    ranking = data.baselines.ranking(fold.train, rows)
    assert score.tobytes() == ranking.scores(every[ranking.listed]).tobytes()


def test_the_scale_takes_up_a_level_that_the_scores_have_wrong(table: Table) -> None:
    """Every score is too high by a factor that depends on the filter: as LambdaRank's may be."""
    model = ModelSettings(label="lambdarank", shortlist=0, n_estimators=10)
    data = TrainingData.prepare(table, TrainSettings(model, n_splits=3, threads=1))
    folds = make_folds(table, 3, 0)
    offset = np.array([1.0 if p.to_dict()["Y"] > 1 else 0.5 for p in table.problems])
    log_scale = np.full(len(table.problems), np.nan)
    tested = cross_validation.tested_problems(folds)
    log_scale[tested] = -offset[tested]
    found = cross_validation._predicted_scales(data, folds, "lambdarank", log_scale)
    assert np.abs(found + offset).mean() < 0.15  # without a scale: 0.5 or more
    assert (cross_validation._predicted_scales(data, folds, "residual", log_scale) == 0).all()


def test_a_scale_is_learnt_from_other_folds_only(table: Table) -> None:
    model = ModelSettings(label="lambdarank")
    data = TrainingData.prepare(table, TrainSettings(model, n_splits=3, threads=1))
    folds = make_folds(table, 3, 0)
    log_scale = np.random.default_rng(0).normal(size=len(table.problems))
    before = cross_validation._predicted_scales(data, folds, "lambdarank", log_scale)
    log_scale[folds[0].test] += 100
    after = cross_validation._predicted_scales(data, folds, "lambdarank", log_scale)
    assert (after[folds[0].test] == before[folds[0].test]).all()
    assert (after[folds[1].test] != before[folds[1].test]).any()
