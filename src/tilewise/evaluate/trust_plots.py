"""Plots of trust: efficiency by distance to the training set, and promised against observed losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.evaluate.distance import BINS
from tilewise.evaluate.plots import new_figure, save_figure

FEWEST = 5  # problems, for a percentile to be drawn


def plot_distance(per_problem: pd.DataFrame, path: Path) -> Path:
    """Efficiency of each problem by its distance to the training set; mean and P10 of each distance."""
    figure, axes = new_figure()
    octaves, e = (per_problem[n].to_numpy(dtype=np.float64) for n in ("nearest_octaves", "efficiency"))
    axes.plot(octaves, 100 * e, ".", color="tab:blue", alpha=0.35, markersize=5, label="a problem")
    labels = per_problem["distance"].to_numpy()
    groups = [g for g in (labels == name for _, name in BINS) if g.sum() >= FEWEST]
    centres = [float(octaves[g].mean()) for g in groups]
    for name, statistic in (("mean", np.mean), ("P10", lambda v: np.percentile(v, 10))):
        axes.plot(centres, [100 * float(statistic(e[g])) for g in groups], marker="o", label=name)
    axes.set(xlabel="octaves to the nearest shape that was learnt from", ylabel="efficiency, % of the oracle")
    axes.set_title("Efficiency by distance to the training set")
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def plot_bounds(trust: Mapping[str, Any], path: Path) -> Path:
    """The bound of each risk bin beside what nine in ten of its problems lost; bars: how many they are.

    Args:
        trust: from :func:`tilewise.evaluate.trust.trust_metrics`.
        path: PNG file.
    """
    figure, axes = new_figure()
    groups = [g for g in trust["by_bound"] if g["n_problems"] >= FEWEST]
    places = np.arange(len(groups))
    axes.plot(places, [100 * g["bound"] for g in groups], marker="o", label=f"bound at {100 * trust['level']:g} %")
    axes.plot(places, [100 * g["p90_loss"] for g in groups], marker="s", label="P90 of the losses")
    axes.set_xticks(places, [f"{g['n_problems']}\n{100 * g['coverage']:.0f} %" for g in groups])
    axes.set(xlabel="bins by bound: problems, and how many of them are covered", ylabel="loss, % of the oracle")
    axes.set_title("Promised and observed losses")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    return save_figure(figure, path)
