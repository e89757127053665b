"""Plots of the confidence: efficiency by distance to the training data, and bounds against observed losses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.evaluate._distance import BINS
from tilewise.plot_style import BLUE, INK, RED, axes_file

MIN_PROBLEMS = 5  # that a percentile needs to be drawn


def plot_distance(per_problem: pd.DataFrame, path: Path) -> Path:
    """Plot the efficiency of each problem by its distance to the training data, with mean and P10 per bin."""
    distance, e = (per_problem[n].to_numpy(dtype=np.float64) for n in ("nearest_octaves", "efficiency"))
    labels = per_problem["distance"].to_numpy()
    groups = [g for g in (labels == name for _, name in BINS) if g.sum() >= MIN_PROBLEMS]
    centres = [float(distance[g].mean()) for g in groups]
    with axes_file(path) as axes:
        axes.plot(distance, 100 * e, ".", color=INK, alpha=0.35, markersize=5, label="a problem")
        axes.plot(centres, [100 * float(e[g].mean()) for g in groups], color=BLUE, marker="o", label="mean")
        tails = [100 * float(np.percentile(e[g], 10)) for g in groups]
        axes.plot(centres, tails, color=RED, marker="s", label="P10")
        axes.set(xlabel="octaves to the nearest shape that was learnt from", ylabel="efficiency, % of the oracle")
        axes.set_title("Efficiency by distance to the training set")
        axes.legend(loc="lower right")
    return path


def plot_bounds(confidence: Mapping[str, Any], path: Path) -> Path:
    """Plot the bound of each risk bin beside the P90 of its losses; ticks show problems and coverage.

    Args:
        confidence: from :func:`tilewise.evaluate._confidence_coverage.confidence_metrics`.
        path: PNG file.
    """
    groups = [g for g in confidence["by_bound"] if g["n_problems"] >= MIN_PROBLEMS]
    places = np.arange(len(groups))
    with axes_file(path) as axes:
        bounds = [100 * g["bound"] for g in groups]
        axes.plot(places, bounds, marker="o", label=f"bound at {100 * confidence['level']:g} %")
        axes.plot(places, [100 * g["p90_loss"] for g in groups], marker="s", label="P90 of the losses")
        axes.set_xticks(places, [f"{g['n_problems']}\n{100 * g['coverage']:.0f} %" for g in groups])
        axes.set(xlabel="bins by bound: problems, and the share of them covered", ylabel="loss, % of the oracle")
        axes.set_title("Promised and observed losses")
        axes.legend(loc="upper left")
    return path
