"""Plots of a tuning study as PNG files: history, parameters, importances and Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

from tilewise.evaluate.plots._efficiency_plots import new_figure, save_figure
from tilewise.train import TrialResult, TuningResult
from tilewise.train.tuning import LOWER_IS_BETTER, pareto_front

_COLOURS = {"complete": "tab:blue", "pruned": "tab:gray"}
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
    figure, axes = new_figure()
    for state, colour in _COLOURS.items():
        some = [t for t in trials if t.state == state]
        if some:
            axes.scatter([t.number for t in some], [100 * t.value for t in some], s=14, color=colour, label=state)
    best = np.maximum.accumulate([t.value if t.state == "complete" else -np.inf for t in trials])
    known = np.isfinite(best)
    numbers = np.array([t.number for t in trials])
    axes.step(numbers[known], 100 * best[known], where="post", color="tab:red", label="best so far")
    axes.set(xlabel="trial", ylabel=_label(next(iter(trials[0].values))), title="Optimisation history")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def plot_parameter_importances(importances: Mapping[str, float], path: Path) -> Path:
    """Plot the share of the objective's variation that each parameter explains."""
    figure, axes = new_figure()
    names = sorted(importances, key=lambda name: importances[name])
    axes.barh(names, [100 * importances[name] for name in names])
    axes.set(xlabel="share, %", title="Importance of the parameters (PED-ANOVA)")
    return save_figure(figure, path)


def plot_parallel(trials: Sequence[TrialResult], path: Path) -> Path:
    """Plot one line per trial through its parameters, scaled to the range tried; brighter trials are better."""
    figure, axes = new_figure()
    names = list(trials[0].params)
    drawn = np.array([[float(t.params[name]) for name in names] for t in trials])
    low, high = drawn.min(axis=0), drawn.max(axis=0)
    places = (drawn - low) / np.where(high > low, high - low, 1)
    order = np.argsort([t.value for t in trials], kind="stable")
    shade, colours = np.linspace(0, 1, len(trials)), matplotlib.colormaps["viridis"]
    for rank, i in enumerate(order):
        pruned = trials[i].state == "pruned"
        axes.plot(places[i], color=colours(shade[rank]), alpha=0.35 if pruned else 1, linewidth=1)
    axes.set_xticks(range(len(names)), [f"{n}\n{a:.3g} .. {b:.3g}" for n, a, b in zip(names, low, high, strict=True)])
    axes.set_yticks([])
    axes.set(title="Parameters of the trials, worst to best: dark to bright; pruned ones pale")
    axes.tick_params(axis="x", labelsize=7)
    return save_figure(figure, path)


def plot_pareto(trials: Sequence[TrialResult], other: str, chosen: TrialResult | None, path: Path) -> Path:
    """Plot the first objective against another one, with the Pareto front."""
    names = list(trials[0].values)
    front = pareto_front([t for t in trials if t.state == "complete"], names)
    figure, axes = new_figure()

    def places(some: Sequence[TrialResult]) -> tuple[list[float], list[float]]:
        x, y = ([_shown(name, t.values[name]) for t in some] for name in (other, names[0]))
        return x, y

    axes.scatter(*places(trials), s=12, color="tab:gray", label="trials")
    axes.scatter(*places(front), s=24, color="tab:red", label="Pareto front")
    if chosen:
        axes.scatter(*places([chosen]), s=90, facecolors="none", edgecolors="black", label="chosen")
    axes.set(xlabel=_label(other), ylabel=_label(names[0]), title="What nothing beats in every objective")
    axes.grid(alpha=0.3)
    axes.legend()
    return save_figure(figure, path)


def _shown(objective: str, value: float) -> float:
    return value if objective in LOWER_IS_BETTER else 100 * value


def _label(objective: str) -> str:
    return "tree nodes visited a selection, thousands" if objective in LOWER_IS_BETTER else f"{objective}, %"
