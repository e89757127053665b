"""Shares of features are Shapley values: equal to the definition, and together the difference of the scores."""

from __future__ import annotations

from itertools import permutations

import lightgbm
import numpy as np
import pytest

from tilewise.model import Ensemble, contributions

N = 5


@pytest.fixture(scope="module")
def trees() -> Ensemble:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, N))
    x[rng.random(x.shape) < 0.1] = np.nan
    y = np.nan_to_num(x[:, 0] * x[:, 1] + np.where(x[:, 2] > 0, x[:, 3], 0))
    settings = {"num_leaves": 15, "min_data_in_leaf": 5, "verbosity": -1, "num_threads": 1, "deterministic": True}
    return Ensemble.from_text(lightgbm.train(settings, lightgbm.Dataset(x, y), 8).model_to_string())


def by_definition(trees: Ensemble, winner: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the effect of replacing each feature, as the mean over all orders."""
    shares = np.zeros(N)
    orders = list(permutations(range(N)))
    for order in orders:
        steps = np.tile(other, (N + 1, 1))
        for place, f in enumerate(order):
            steps[place + 1 :, f] = winner[f]
        shares[list(order)] += np.diff(trees.predict(steps))
    return shares / len(orders)


@pytest.mark.parametrize("seed", range(6))
def test_as_defined(trees: Ensemble, seed: int) -> None:
    rng = np.random.default_rng(seed)
    winner, other = rng.normal(size=(2, N))
    winner[rng.integers(N)] = np.nan
    other[2] = winner[2]  # where they are equal nothing is gained
    shares = contributions(trees, winner, other)
    np.testing.assert_allclose(shares, by_definition(trees, winner, other), atol=1e-12)
    np.testing.assert_allclose(shares.sum(), np.diff(trees.predict(np.stack([other, winner])))[0], atol=1e-12)
    assert shares[2] == 0
    assert np.abs(shares).max() > 0
