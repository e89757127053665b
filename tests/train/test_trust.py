"""Calibrating on simulated rankings whose truth is known, and on a real small training."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest

from tilewise.metrics import DEPTH, Floats
from tilewise.model import COVARIATES, Calibration, load_artefact, write_artefact
from tilewise.train import TrainingResult
from tilewise.train._fit_confidence import MAX_BINS, PROBLEMS_PER_BIN, Rankings, fit_calibration

N = len(COVARIATES)


def draw(n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Covariates, and losses of the best of the top k: the third covariate decides how often and how much is lost."""
    covariates = rng.standard_normal((n, N))
    share = 1 / (1 + np.exp(-2 * covariates[:, 2]))  # of selections that lose anything
    loss = np.where(rng.random(n) < share, rng.exponential(0.06 * share), 0.0).clip(max=1)
    depth = rng.geometric(0.5, n)  # kernels to measure until the best is among them
    return covariates, np.where(np.arange(DEPTH) < depth[:, None], loss[:, None], 0.0)


def fitted(covariates: Floats, losses: Floats) -> Calibration:
    parts = [np.flatnonzero(np.arange(len(losses)) % 5 == i) for i in range(5)]
    return fit_calibration(Rankings(covariates, losses, parts), np.ones((1, 3), dtype=np.int64), 1.0)


@pytest.fixture(scope="module")
def trials() -> list[tuple[Calibration, Floats, Floats, list[int]]]:
    """Calibrations, each with problems that it has not seen: covariates, losses, and their bins."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(20):
        c = fitted(*draw(800, rng))
        covariates, losses = draw(1000, rng)
        found.append((c, covariates, losses, [c.bin_of(float(r)) for r in c.risk(covariates)]))
    return found


def test_new_problems_are_covered_at_every_level_and_k(trials: list) -> None:  # type: ignore[type-arg]
    for level in (0.7, 0.9):
        for k in (1, 2, 3):
            hits = [(losses[:, k - 1] <= [c.bound(b, k, level) for b in bins]).mean() for c, _, losses, bins in trials]
            assert np.mean(hits) > level - 0.01
            if k == 1 and level == 0.9:
                assert np.mean(hits) < 0.93  # and not by bounds that are too wide


def test_each_bin_is_covered(trials: list) -> None:  # type: ignore[type-arg]
    """One quantile for all would cover the risky problems far too seldom; bins do not."""
    worst = [np.array(bins) == len(c.counts) - 1 for c, _, _, bins in trials]
    own = [
        (losses[w, 0] <= c.bound(len(c.counts) - 1, 1)).mean()
        for (c, _, losses, _), w in zip(trials, worst, strict=True)
    ]
    shared = [
        (losses[w, 0] <= np.quantile(losses[:, 0], 0.9)).mean()
        for (*_, losses, _), w in zip(trials, worst, strict=True)
    ]
    assert np.mean(own) == pytest.approx(0.9, abs=0.02)
    assert np.mean(shared) < 0.8


def test_k_keeps_its_promise_and_adapts(trials: list) -> None:  # type: ignore[type-arg]
    within, depths = [], []
    for c, _, losses, bins in trials:
        k = np.array([c.smallest_k(b) or DEPTH for b in bins])
        within.append((losses[np.arange(len(k)), k - 1] <= 0.03).mean())
        depths.append([c.smallest_k(b) or DEPTH for b in range(len(c.counts))])
    assert np.mean(within) > 0.89
    low, high = np.mean(depths, axis=0)[[0, -1]]
    assert low == 1
    assert high > 2


def test_the_line_finds_what_matters(trials: list) -> None:  # type: ignore[type-arg]
    for c, *_ in trials:
        assert np.argmax(np.abs(c.weights)) == 2
        assert c.weights[2] > 0


def test_bins_hold_enough_to_speak() -> None:
    rng = np.random.default_rng(1)
    for n, bins in ((30, 1), (2 * PROBLEMS_PER_BIN, 2), (PROBLEMS_PER_BIN * MAX_BINS * 2, MAX_BINS)):
        c = fitted(*draw(n, rng))
        assert len(c.counts) == bins
        assert c.counts.sum() == n
        assert c.counts.min() > 0.8 * n / bins


def test_problems_that_never_lose_need_one_kernel() -> None:
    covariates, losses = draw(200, np.random.default_rng(2))
    c = fitted(covariates, np.zeros_like(losses))
    assert c.bound(0, 1) == 0.0
    assert c.smallest_k(0, tolerance=0.0) == 1


def test_a_training_calibrates(result: TrainingResult, frame: pd.DataFrame, tmp_path: object) -> None:
    calibration = result.parts.calibration
    assert calibration is not None
    assert calibration.counts.sum() == result.n_problems
    keys = {tuple(k) for k in calibration.keys.tolist()}
    columns = [c for c in frame.columns if c in ("N", "C", "K")]
    assert {k[:3] for k in keys} <= {tuple(r) for r in frame[columns].drop_duplicates().itertuples(index=False)}
    lost = np.sort(1 - result.out_of_fold.efficiency)[::-1]
    np.testing.assert_allclose(calibration.losses[0][0], lost[lost > 0], atol=1e-4)


def test_it_travels_with_the_model(result: TrainingResult, tmp_path) -> None:  # type: ignore[no-untyped-def]
    write_artefact(tmp_path / "m", result.parts)
    model = load_artefact(tmp_path / "m")
    assert model.calibration is not None
    assert result.parts.calibration is not None
    assert json.dumps(model.calibration.to_dict()) == json.dumps(result.parts.calibration.to_dict())
    problem = result.parts.selftest_problems[0]
    confidence = model.confidence(problem, model.score(problem))
    assert confidence is not None
    assert confidence.shape_distance == 0.0  # it was learnt from
    assert confidence.regret[0] == 0 <= confidence.regret[1] <= 1
    write_artefact(tmp_path / "without", dataclasses.replace(result.parts, calibration=None))
    older = load_artefact(tmp_path / "without")
    assert older.confidence(problem, older.score(problem)) is None
