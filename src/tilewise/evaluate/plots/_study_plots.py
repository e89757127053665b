"""Plots of a tuning study: history, parameters, importances and Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewise.plot_style import BLUE, DENSITY, INK, RED, SMALL, axes_file, label_rows
from tilewise.train import TrialResult, TuningResult
from tilewise.train.tuning import LOWER_IS_BETTER, pareto_front

_COLOURS = {"complete": BLUE, "pruned": INK}
_FEWEST_TRIALS = 3  # two show neither a history nor a trade-off


def plot_study(tuning: TuningResult, folder: Path) -> list[Path]:
    """Write the plots for which the study has enough trials into `folder`, and return their paths."""
    seen = [t for t in tuning.trials if t.state in _COLOURS]
    if len(seen) < _FEWEST_TRIALS:
        return []
    paths = [plot_history(seen, folder / "tuning_history.png"), plot_parallel(seen, folder / "tuning_parameters.png")]
    if tuning.importances:
        paths.append(plot_parameter_importances(tuning.importances, folder / "tuning_importances.png"))
    others = list(seen[0].values)[1:]
    return paths + [plot_pareto(seen, other, tuning.chosen, folder / f"tuning_pareto_{other}.png") for other in others]


def plot_history(trials: Sequence[TrialResult], path: Path) -> Path:
    """Plot the first objective of each trial and the best complete one so far; pruned trials have fewer folds."""
    best = np.maximum.accumulate([t.value if t.state == "complete" else -np.inf for t in trials])
    known = np.isfinite(best)
    numbers = np.array([t.number for t in trials])
    with axes_file(path) as axes:
        for state, colour in _COLOURS.items():
            some = [t for t in trials if t.state == state]
            if some:
                axes.scatter([t.number for t in some], [100 * t.value for t in some], s=14, color=colour, label=state)
        axes.step(numbers[known], 100 * best[known], where="post", color=RED, label="best so far")
        axes.set(xlabel="trial", ylabel=_label(next(iter(trials[0].values))), title="Optimisation history")
        axes.legend(loc="lower right")
    return path


def plot_parameter_importances(importances: Mapping[str, float], path: Path) -> Path:
    """Plot the share of the objective's variation that each parameter explains."""
    names = sorted(importances, key=lambda name: -importances[name])
    with axes_file(path) as axes:
        axes.barh(range(len(names)), [100 * importances[name] for name in names])
        label_rows(axes, names)
        axes.set(xlabel="share, %", title="Importance of the parameters (PED-ANOVA)")
    return path


def plot_parallel(trials: Sequence[TrialResult], path: Path) -> Path:
    """Plot one line per trial through its parameters, scaled to the range tried; brighter trials are better."""
    names = list(trials[0].params)
    drawn = np.array([[float(t.params[name]) for name in names] for t in trials])
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    places = (drawn - low) / np.where(high > low, high - low, 1)
    order = np.argsort([t.value for t in trials], kind="stable")
    shade = np.linspace(0, 1, len(trials))
    with axes_file(path) as axes:
        for rank, i in enumerate(order):
            pruned = trials[i].state == "pruned"
            axes.plot(places[i], color=DENSITY(shade[rank]), alpha=0.35 if pruned else 1, linewidth=1)
        ranges = [f"{n}\n{a:.3g} .. {b:.3g}" for n, a, b in zip(names, low, high, strict=True)]
        axes.set_xticks(range(len(names)), ranges, fontsize=SMALL)
        axes.set_yticks([])
        axes.set(title="Parameters of the trials, worst to best: dark to bright; pruned ones pale")
    return path


def plot_pareto(trials: Sequence[TrialResult], other: str, chosen: TrialResult | None, path: Path) -> Path:
    """Plot the first objective against another one, with the Pareto front."""
    names = list(trials[0].values)
    front = pareto_front([t for t in trials if t.state == "complete"], names)

    def places(some: Sequence[TrialResult]) -> tuple[list[float], list[float]]:
        x, y = ([_shown(name, t.values[name]) for t in some] for name in (other, names[0]))
        return x, y

    with axes_file(path) as axes:
        axes.scatter(*places(trials), s=12, color=INK, label="trials")
        axes.scatter(*places(front), s=24, color=RED, label="Pareto front")
        if chosen:
            axes.scatter(*places([chosen]), s=90, facecolors="none", edgecolors=BLUE, label="chosen")
        axes.set(xlabel=_label(other), ylabel=_label(names[0]), title="Trials that no other beats in every objective")
        axes.legend()
    return path


def _shown(objective: str, value: float) -> float:
    return value if objective in LOWER_IS_BETTER else 100 * value


def _label(objective: str) -> str:
    return "tree nodes visited a selection, thousands" if objective in LOWER_IS_BETTER else f"{objective}, %"
