"""Unlisted kernels are learnt as slow as the slowest listed one, and nothing that was measured changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.data import TargetTable
from tilewise.kernels import Pool
from tilewise.metrics import place_within
from tilewise.ops import Target
from tilewise.train import (
    ModelSettings,
    TrainingData,
    TrainSettings,
    build_table,
    cross_validate,
    make_folds,
    pool_of,
)
from tilewise.train._training_pool import UNLISTED_PER_PROBLEM, LabelRows, with_unlisted

TARGET = Target.parse(CONV)
LISTED = 3


def fastest_of(frame: pd.DataFrame, count: int) -> tuple[TargetTable, Pool]:
    """Return labels with the `count` fastest kernels of each problem, and the pool of all kernels."""
    pool = pool_of(frame, TARGET)
    labels = TargetTable.of(frame, TARGET).labelled().ordered(pool).supported(pool)
    kept = labels.take(place_within(labels.problem, labels.tflops) < count)
    return kept.ordered(pool), pool


def cells(labels: LabelRows) -> pd.Series:
    """Return the rate of each problem, by its number in the order of dimensions, and kernel."""
    return pd.Series(labels.tflops, index=pd.MultiIndex.from_arrays([labels.problem, labels.kernel]))


def test_listed_rows_stay_and_unlisted_ones_have_the_slowest_rate(frame: pd.DataFrame) -> None:
    fastest, pool = fastest_of(frame, LISTED)
    labels = LabelRows.of(fastest, pool)
    table = with_unlisted(labels, pool)
    listed, known = cells(labels), cells(table)
    assert known.index.is_unique
    pd.testing.assert_series_equal(known[table.is_measured], listed)
    added = known[~table.is_measured]
    slowest = listed.groupby(level=0).min()
    assert (added.to_numpy() == slowest[added.index.get_level_values(0)].to_numpy()).all()
    assert table.problems == labels.problems
    for number, problem in enumerate(labels.problems):
        supported = np.flatnonzero(pool.supported(problem))
        drawn = added[added.index.get_level_values(0) == number].index.get_level_values(1)
        assert len(drawn) == min(UNLISTED_PER_PROBLEM, len(supported) - len(listed[number]))
        assert set(drawn) <= set(supported.tolist())


def test_rows_are_in_order_and_the_same_in_every_call(frame: pd.DataFrame) -> None:
    fastest, pool = fastest_of(frame, LISTED)
    labels = LabelRows.of(fastest, pool)
    first, second = with_unlisted(labels, pool), with_unlisted(labels, pool)
    pd.testing.assert_series_equal(cells(first), cells(second))
    assert cells(first).index.is_monotonic_increasing


def test_a_complete_table_stays_as_it_is(frame: pd.DataFrame) -> None:
    fastest, pool = fastest_of(frame, len(pool_of(frame, TARGET)))
    of_first_two = np.bincount(fastest.problem[np.isin(fastest.kernel(pool), (0, 1))])
    is_twice = of_first_two[fastest.problem] == 2
    only = Pool(pool.op, pool.variant, pool.dtype, pool.kernels[:2])
    complete = LabelRows.of(fastest.take(np.isin(fastest.kernel(pool), (0, 1)) & is_twice), only)
    assert with_unlisted(complete, only) is complete


def test_selections_are_judged_by_the_measured_rows(frame: pd.DataFrame) -> None:
    labels, pool = fastest_of(frame, LISTED)
    vars(pool)["backend"] = replace(pool.backend, lists_fastest=True)
    table = build_table(labels.rows, TARGET, pool, load_arch("sm90"), 0.0)
    assert len(table.problem) > len(labels) == table.is_measured.sum()
    data = TrainingData.prepare(table, TrainSettings(ModelSettings(label="relative", n_estimators=10), n_splits=3))
    done = cross_validate(data, make_folds(table, 3, 0), data.settings.model)
    assert len(done.out_of_fold.problem) == len(labels)
    assert np.sort(done.out_of_fold.measured) == pytest.approx(np.sort(labels.tflops))
