"""Distances are to the nearest of the problems that the model itself was left to learn from."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd

from small_model import altered
from tilewise.data import group_keys, holdout_mask
from tilewise.evaluate._distance import distance_labels, training_keys
from tilewise.kernels import Pool
from tilewise.model import TrainedModel


def test_bins_hold_their_upper_end() -> None:
    labels = distance_labels(np.array([0, 1e-9, 1, 1.5, 2, 4, 4.01, 30, np.nan]))
    assert labels == ["0", "0-1", "0-1", "1-2", "1-2", "2-4", "4+", "4+", "unknown"]


def told(model: TrainedModel, **manifest: object) -> TrainedModel:
    return altered(model, manifest={**model.manifest, **manifest})


def test_what_was_learnt_from_is_the_table_without_the_models_holdout(model: TrainedModel, frame: pd.DataFrame) -> None:
    valid = frame[frame["is_valid"]]
    keys = np.unique(group_keys("grouped_conv", valid), axis=0)
    expected = keys[~holdout_mask("grouped_conv", keys, 0.3)]
    found = training_keys(told(model, holdout_fraction=0.3, n_problems=len(expected)), frame)
    assert found is not None
    np.testing.assert_array_equal(found, expected)


def test_another_table_is_not_taken_for_the_models_own(model: TrainedModel, frame: pd.DataFrame) -> None:
    assert training_keys(model, frame) is None  # the manifest tells nothing
    assert training_keys(told(model, n_problems=1000), frame) is None
    assert training_keys(told(model, n_problems=60), frame[frame["N"] < 0]) is None
    nobody = dataclasses.replace(model, pool=Pool("grouped_conv", "forward", "bf16", model.pool.kernels[:1]))
    assert training_keys(told(nobody, n_problems=60), frame.assign(kernel_name="k")) is None
