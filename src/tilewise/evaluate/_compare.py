"""Comparison of two models on the same problems: agreement, gains and losses, and their confidence intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from tilewise.errors import ConfigError, DataError
from tilewise.evaluate._bootstrap import LEVEL, N_RESAMPLES, STATISTICS, Interval, paired_bootstrap
from tilewise.evaluate._evaluation import NoiseCeiling
from tilewise.evaluate._holdout import evaluate
from tilewise.evaluate._slices import problem_groups, slice_names
from tilewise.evaluate._worst import noise_of
from tilewise.metrics import TIE, Floats
from tilewise.model import TrainedModel
from tilewise.ops import OPS, Target

MIN_PROBLEMS = 20  # smaller slices are left out: their intervals say nothing
N_SHOWN = 10


@dataclass(frozen=True)
class CompareSettings:
    """Settings of a comparison.

    Attributes:
        threshold_points: a problem improved or degraded if its efficiency moved by more than this many points.
        level, n_resamples, seed: settings of the bootstrap, see :func:`tilewise.evaluate.paired_bootstrap`.

    Raises:
        ConfigError: the threshold is negative.
    """

    threshold_points: float = 1.0
    level: float = LEVEL
    n_resamples: int = N_RESAMPLES
    seed: int = 0

    def __post_init__(self) -> None:
        if self.threshold_points < 0:
            raise ConfigError(f"the threshold must be 0 points or more, got {self.threshold_points}")


@dataclass(frozen=True)
class Side:
    """One of the two models, and its mean, median, P10 and worst efficiency on the common problems.

    Without the model: the file of its selections, and as `pool_size` the number of distinct kernels selected.
    """

    where: str
    content_hash: str
    pool_size: int
    efficiency: Mapping[str, float]


@dataclass(frozen=True)
class SliceDelta:
    """The change within one group of problems."""

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
    """The difference between models A and B. Efficiencies and differences are fractions; 0.01 is one point.

    Attributes:
        target: name of the target.
        a, b: the models.
        n_problems: problems that both models can be judged on.
        n_only_a, n_only_b: problems left out because only one pool has a valid kernel for them.
        split_rule: description of the problems.
        noise_ceiling: None where no problem was measured twice.
        threshold_points: a problem improved or degraded if its efficiency moved by more than this many points.
        same_kernel: share of problems where both models select the same kernel.
        same_within_noise: share of problems where repeats do not distinguish the two selections, equal kernels
            included.
        n_improved, n_same, n_degraded: numbers of problems, by the threshold.
        deltas: B - A in mean, median, P10 and worst efficiency, with intervals.
        level, n_resamples, seed: settings of the intervals.
        slices: groups with at least :data:`MIN_PROBLEMS` problems.
        regressions, improvements: problems that moved most, down and up.
        notes: reasons why the comparison is not quite fair.
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
        """Return plain data for JSON."""
        return dataclasses.asdict(self)


def compare_models(
    a: TrainedModel,
    b: TrainedModel,
    frame: pd.DataFrame,
    holdout_fraction: float,
    settings: CompareSettings | None = None,
) -> Comparison:
    """Compare the selections of two models for the same problems, by the same measurements.

    Args:
        a: the present model.
        b: the model to compare with it.
        frame: a measurement table.
        holdout_fraction: the holdout; the smaller one of either model's training replaces it. 0: all problems.
        settings: threshold and bootstrap; None: the defaults.

    Raises:
        ConfigError: the models are of different targets.
        DataError: no problem has valid kernels of both pools.
    """
    settings = settings or CompareSettings()
    fraction, notes = _fair_fraction(a, b, holdout_fraction)
    ours, theirs = (evaluate(model, frame, fraction, require_unseen=False) for model in (a, b))
    both = Compared.of(a.target, ours.per_problem, theirs.per_problem, ours.split_rule, ours.noise_ceiling)
    if not len(both.table):
        raise DataError(f"no problem of {a.target.name} ({ours.split_rule}) has valid kernels of both models' pools")
    sides = tuple(Side(model.where, model.content_hash, len(model.pool), {}) for model in (a, b))
    return compare_tables(both, (sides[0], sides[1]), settings, notes)


@dataclass(frozen=True)
class Compared:
    """The problems that two sets of selections share.

    Attributes:
        target: target of the problems.
        table: the first set's columns, and the second set's selections in columns that end with ``_b``.
        n_only_a, n_only_b: problems that only one set has.
        split_rule: description of the problems.
        noise_ceiling: None where no problem was measured twice.
    """

    target: Target
    table: pd.DataFrame
    n_only_a: int
    n_only_b: int
    split_rule: str
    noise_ceiling: NoiseCeiling | None

    @classmethod
    def of(
        cls,
        target: Target,
        a: pd.DataFrame,
        b: pd.DataFrame,
        split_rule: str = "the problems of both files",
        noise_ceiling: NoiseCeiling | None = None,
    ) -> Self:
        """Align two tables, a row per problem each."""
        key = list(OPS[target.op].column_names())
        other = b[[*key, "selected", "efficiency", "efficiency_again", "predicted_tflops"]]
        both = a.merge(other, on=key, suffixes=("", "_b"))
        return cls(target, both, len(a) - len(both), len(b) - len(both), split_rule, noise_ceiling)


def compare_tables(
    compared: Compared, sides: tuple[Side, Side], settings: CompareSettings, notes: Sequence[str]
) -> Comparison:
    """Return the comparison of aligned selections; the efficiencies of `sides` are filled in."""
    both, op = compared.table, compared.target.op
    first, second = _efficiencies(both)
    up, down = (sign * (second - first) > settings.threshold_points / 100 for sign in (1, -1))
    same = (both["selected"] == both["selected_b"]).to_numpy()
    return Comparison(
        target=compared.target.name,
        a=_with_figures(sides[0], first),
        b=_with_figures(sides[1], second),
        n_problems=len(both),
        n_only_a=compared.n_only_a,
        n_only_b=compared.n_only_b,
        split_rule=compared.split_rule,
        noise_ceiling=compared.noise_ceiling,
        same_kernel=float(same.mean()),
        same_within_noise=float((same | _tied(both, first, second)).mean()),
        n_improved=int(up.sum()),
        n_same=int((~up & ~down).sum()),
        n_degraded=int(down.sum()),
        deltas=_deltas(first, second, settings),
        slices=_slices(op, both, settings),
        regressions=_moves(op, both, second - first, down, 1),
        improvements=_moves(op, both, second - first, up, -1),
        notes=notes,
        **dataclasses.asdict(settings),
    )


def _efficiencies(both: pd.DataFrame) -> tuple[Floats, Floats]:
    first, second = (both[name].to_numpy(dtype=np.float64) for name in ("efficiency", "efficiency_b"))
    return first, second


def _deltas(first: Floats, second: Floats, settings: CompareSettings) -> dict[str, Interval]:
    return paired_bootstrap(first, second, n_resamples=settings.n_resamples, level=settings.level, seed=settings.seed)


def _with_figures(side: Side, efficiency: Floats) -> Side:
    figures = {name: float(statistic(efficiency)) for name, statistic in STATISTICS.items()}
    return dataclasses.replace(side, efficiency=figures)


def _fair_fraction(a: TrainedModel, b: TrainedModel, fraction: float) -> tuple[float | None, list[str]]:
    """Return the largest holdout that neither model was trained on (None: all problems), and notes for the report."""
    if a.target != b.target:
        raise ConfigError(f"a is a model of {a.target.name}, b of {b.target.name}: they share no problems")
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


def _tied(both: pd.DataFrame, first: Floats, second: Floats) -> np.ndarray:
    """Return the problems whose two selections differ by at most the repeat noise, or 0.1 % where it is unknown."""
    noise = noise_of(both)
    tied: np.ndarray = np.abs(np.log(second / first)) <= np.where(np.isfinite(noise), noise, TIE)
    return tied


def _slices(op: str, both: pd.DataFrame, settings: CompareSettings) -> list[SliceDelta]:
    first, second = _efficiencies(both)
    threshold, found = settings.threshold_points / 100, []
    for name, value, members in problem_groups(both, slice_names(op, both)):
        if len(members) < MIN_PROBLEMS:
            continue
        a, b = first[members], second[members]
        up, down = (int((sign * (b - a) > threshold).sum()) for sign in (1, -1))
        deltas = _deltas(a, b, settings)
        found.append(SliceDelta(name, value, len(members), float(a.mean()), float(b.mean()), up, down, deltas))
    return found


def _moves(op: str, both: pd.DataFrame, change: Floats, wanted: np.ndarray, sign: int) -> list[dict[str, Any]]:
    """Return the problems that moved most, at most :data:`N_SHOWN`; largest losses first for `sign` 1."""
    order = np.argsort(sign * change, kind="stable")
    rows = both.iloc[order[wanted[order]][:N_SHOWN]].to_dict("records")
    return [
        {
            "problem": {name: row[name] for name in OPS[op].column_names()},
            "family": row["family"],
            "oracle": row.get("oracle"),
            "selected_a": row["selected"],
            "selected_b": row["selected_b"],
            "efficiency_a": row["efficiency"],
            "efficiency_b": row["efficiency_b"],
        }
        for row in rows
    ]
