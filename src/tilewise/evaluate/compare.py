"""Two models on the same problems: where they agree, who gains, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tilewise.errors import ConfigError, DataError
from tilewise.evaluate.bootstrap import LEVEL, N_RESAMPLES, STATISTICS, Interval, paired_bootstrap
from tilewise.evaluate.holdout import evaluate
from tilewise.evaluate.result import Evaluation, NoiseCeiling
from tilewise.evaluate.slices import groups, slice_names
from tilewise.evaluate.worst import noise_of
from tilewise.metrics import TIE, Floats
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS

THRESHOLD = 1.0  # points of efficiency
MIN_PROBLEMS = 20  # of a slice: below, an interval says nothing
N_SHOWN = 10


@dataclass(frozen=True)
class Side:
    """One of the two: what it is, and its mean, median, P10 and worst efficiency on the common problems."""

    where: str
    content_hash: str
    pool_size: int
    efficiency: Mapping[str, float]


@dataclass(frozen=True)
class SliceDelta:
    """What changes within one group of problems."""

    slice: str
    value: str
    n_problems: int
    mean_a: float
    mean_b: float
    n_improved: int
    n_degraded: int
    deltas: Mapping[str, Interval]


@dataclass(frozen=True)
class Comparison:
    """What B does differently from A. Efficiencies and their differences are fractions; 0.01 is a point.

    Attributes:
        target: name.
        a, b: the models.
        n_problems: problems that both can judge.
        n_only_a, n_only_b: problems that only one of the pools has a valid kernel for; they are left out.
        split_rule: which problems these are.
        noise_ceiling: None where nothing was measured twice.
        threshold_points: a problem improved or degraded where its efficiency moves by more.
        same_kernel: share of problems where both select the same kernel.
        same_within_noise: share where repeats could not tell the two selections apart (the same kernel included).
        n_improved, n_same, n_degraded: problems, by the threshold.
        deltas: B - A in mean, median, P10 and worst, with intervals.
        level, n_resamples, seed: of the intervals.
        slices: the groups with at least :data:`MIN_PROBLEMS` problems.
        regressions, improvements: the largest moves down and up, a dict a problem.
        notes: what makes the comparison less than fair.
    """

    target: str
    a: Side
    b: Side
    n_problems: int
    n_only_a: int
    n_only_b: int
    split_rule: str
    noise_ceiling: NoiseCeiling | None
    threshold_points: float
    same_kernel: float
    same_within_noise: float
    n_improved: int
    n_same: int
    n_degraded: int
    deltas: Mapping[str, Interval]
    level: float
    n_resamples: int
    seed: int
    slices: Sequence[SliceDelta]
    regressions: Sequence[Mapping[str, Any]]
    improvements: Sequence[Mapping[str, Any]]
    notes: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


def compare_models(
    a: TrainedModel,
    b: TrainedModel,
    frame: pd.DataFrame,
    holdout_fraction: float,
    *,
    threshold_points: float = THRESHOLD,
    level: float = LEVEL,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Let both models select for the same problems, from the same measurements.

    Args:
        a: the model that is there.
        b: the one to compare with it.
        frame: a measurement table.
        holdout_fraction: judge on this holdout, or on the smaller one that either model kept from its training;
            0: on every problem of the table.
        threshold_points: see :class:`Comparison`.
        level: of the intervals.
        n_resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        ConfigError: the models are of different targets, or a setting is out of its range.
        DataError: there is no problem that both can be judged by.
    """
    if a.target != b.target:
        raise ConfigError(f"a is a model of {a.target.name}, b of {b.target.name}: they share no problems")
    if threshold_points < 0:
        raise ConfigError(f"the threshold must be 0 points or more, got {threshold_points}")
    fraction, notes = _fair_fraction(a, b, holdout_fraction)
    ours, theirs = (evaluate(model, frame, fraction, require_unseen=False) for model in (a, b))
    both, only_a, only_b = _align(ours, theirs)
    if not len(both):
        raise DataError(f"no problem of {a.target.name} ({ours.split_rule}) has valid kernels of both models' pools")
    first, second = (both[f"efficiency{s}"].to_numpy(dtype=np.float64) for s in ("", "_b"))
    change, threshold = second - first, threshold_points / 100
    up, down = change > threshold, change < -threshold
    same_kernel = (both["selected"] == both["selected_b"]).to_numpy()
    options: dict[str, Any] = {"n_resamples": n_resamples, "level": level, "seed": seed}
    return Comparison(
        target=a.target.name,
        a=_side(a, first),
        b=_side(b, second),
        n_problems=len(both),
        n_only_a=only_a,
        n_only_b=only_b,
        split_rule=ours.split_rule,
        noise_ceiling=ours.noise_ceiling,
        threshold_points=threshold_points,
        same_kernel=float(same_kernel.mean()),
        same_within_noise=float((same_kernel | _tied(both, first, second)).mean()),
        n_improved=int(up.sum()),
        n_same=int((~up & ~down).sum()),
        n_degraded=int(down.sum()),
        deltas=paired_bootstrap(first, second, **options),
        slices=_slices(a.target.op, both, first, second, threshold, options),
        regressions=_moves(a.target.op, both, change, down, 1),
        improvements=_moves(a.target.op, both, change, up, -1),
        notes=notes,
        **options,
    )


def _side(model: TrainedModel, efficiency: Floats) -> Side:
    figures = {name: float(statistic(efficiency)) for name, statistic in STATISTICS.items()}
    return Side(model.where, model.content_hash, len(model.pool), figures)


def _fair_fraction(a: TrainedModel, b: TrainedModel, fraction: float) -> tuple[float | None, list[str]]:
    """The holdout that neither model was trained on: a smaller one is part of a larger one. None: all problems."""
    if not fraction:
        return None, ["every problem of the table is judged, those that the models learnt from included"]
    notes = []
    for name, model in (("a", a), ("b", b)):
        kept = float(model.manifest.get("holdout_fraction", 0.0))
        if not kept:
            notes.append(f"{name} was trained on all problems, these included: the comparison favours it")
        elif kept < fraction:
            notes.append(f"{name} was trained with a holdout of {kept:g}; both are judged on that one")
            fraction = kept
    return fraction, notes


def _align(ours: Evaluation, theirs: Evaluation) -> tuple[pd.DataFrame, int, int]:
    """A's table with B's selection beside it, for the problems that both have; how many only one has."""
    key = list(OPS[ours.target.op].column_names())
    other = theirs.per_problem[[*key, "selected", "efficiency", "efficiency_again", "predicted_tflops"]]
    both = ours.per_problem.merge(other, on=key, suffixes=("", "_b"))
    return both, len(ours.per_problem) - len(both), len(other) - len(both)


def _tied(both: pd.DataFrame, first: Floats, second: Floats) -> np.ndarray:
    """Which problems' two selections differ by no more than the repeat noise; where that is unknown, by 0.1 %."""
    noise = noise_of(both)
    tied: np.ndarray = np.abs(np.log(second / first)) <= np.where(np.isfinite(noise), noise, TIE)
    return tied


def _slices(
    op: str, both: pd.DataFrame, first: Floats, second: Floats, threshold: float, options: Mapping[str, Any]
) -> list[SliceDelta]:
    found = []
    for name, value, members in groups(both, slice_names(op, both)):
        if len(members) < MIN_PROBLEMS:
            continue
        a, b = first[members], second[members]
        up, down = (int((sign * (b - a) > threshold).sum()) for sign in (1, -1))
        deltas = paired_bootstrap(a, b, **options)
        found.append(SliceDelta(name, value, len(members), float(a.mean()), float(b.mean()), up, down, deltas))
    return found


def _moves(op: str, both: pd.DataFrame, change: Floats, wanted: np.ndarray, sign: int) -> list[dict[str, Any]]:
    """The problems that moved most, at most :data:`N_SHOWN`; `sign` 1: downwards first."""
    order = np.argsort(sign * change, kind="stable")
    rows = both.iloc[order[wanted[order]][:N_SHOWN]].to_dict("records")
    return [
        {
            "problem": {name: row[name] for name in OPS[op].column_names()},
            "family": row["family"],
            "oracle": row["oracle"],
            "selected_a": row["selected"],
            "selected_b": row["selected_b"],
            "efficiency_a": row["efficiency"],
            "efficiency_b": row["efficiency_b"],
        }
        for row in rows
    ]
