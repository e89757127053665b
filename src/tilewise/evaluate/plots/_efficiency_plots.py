"""Plots of efficiencies, predictions and importances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewise.evaluate._evaluation import NoiseCeiling
from tilewise.evaluate._slices import MIN_PROBLEMS_SHOWN, SliceFigures
from tilewise.metrics import Floats
from tilewise.plot_style import INK, RED, ROW_INCHES, axes_file, draw_density, label_rows

TOP_FEATURES = 25
_CELLS = 80  # of predictions, along an axis: there are hundreds of thousands


def plot_efficiency(series: Mapping[str, Floats], path: Path) -> Path:
    """Plot the share of problems at or below each efficiency, one curve for each of `series`."""
    with axes_file(path) as axes:
        for name, efficiency in series.items():
            values = np.sort(efficiency)
            share = np.arange(1, len(values) + 1) / len(values)
            axes.step(100 * values, 100 * share, where="post", label=f"{name} ({len(values)} problems)")
        axes.set(xlabel="efficiency, % of the oracle", ylabel="problems, %", title="Efficiency of the selected kernels")
        axes.legend(loc="upper left")
    return path


def plot_predictions(measured: Floats, predicted: Floats, path: Path) -> Path:
    """Plot predicted against measured TFLOPS of all rows, both logarithmic."""
    with axes_file(path) as axes:
        draw_density(axes, measured, predicted, "rows", cells=_CELLS)
        ends = [float(min(measured.min(), predicted.min())), float(max(measured.max(), predicted.max()))]
        axes.plot(ends, ends, color=RED, linewidth=1, label="predicted = measured")
        axes.set(xlabel="measured TFLOPS", ylabel="predicted TFLOPS", title="Predicted and measured TFLOPS")
        axes.legend(loc="upper left")
    return path


def plot_importances(importances: Mapping[str, float], path: Path) -> Path:
    """Plot the most important features by their share of the total gain."""
    total = sum(importances.values()) or 1.0
    top = sorted(importances.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP_FEATURES]
    with axes_file(path) as axes:
        axes.barh(range(len(top)), [100 * gain / total for _, gain in top])
        label_rows(axes, [name for name, _ in top])
        axes.set(xlabel="share of the total gain, %", title=f"The {len(top)} most important features")
    return path


def plot_slices(slices: Sequence[SliceFigures], path: Path) -> Path:
    """Plot mean efficiency (bars) and P10 (dots) of each group with enough problems.

    Args:
        slices: from :func:`tilewise.evaluate.sliced_metrics`.
        path: PNG file.
    """
    slices = [s for s in slices if s["n_problems"] >= MIN_PROBLEMS_SHOWN]
    labels = [f"{s['slice']} {s['value']} ({s['n_problems']})" for s in slices]
    means, tails = ([100 * s["mean_efficiency"] for s in slices], [100 * s["p10_efficiency"] for s in slices])
    colours = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(s["slice"] for s in slices))}
    low = min([*tails, 90.0])
    with axes_file(path, max(5.0, 1 + ROW_INCHES * len(slices))) as axes:
        axes.barh(range(len(slices)), means, color=[colours[s["slice"]] for s in slices], label="mean")
        axes.plot(tails, range(len(slices)), "o", color=INK, markersize=4, markeredgecolor="white", label="P10")
        label_rows(axes, labels)
        axes.set(
            xlim=(low - 0.02 * (100 - low), 100), xlabel="efficiency, % of the oracle", title="Efficiency by slice"
        )
        axes.figure.legend(loc="outside lower center", ncols=2)
    return path


def plot_regret(regret: Sequence[Mapping[str, float]], ceiling: NoiseCeiling | None, path: Path) -> Path:
    """Plot the best of the top k, see :func:`tilewise.metrics.regret_curve`, and the noise ceiling's mean."""
    k = [r["k"] for r in regret]
    with axes_file(path) as axes:
        for name, label in (("mean_efficiency", "mean"), ("p10_efficiency", "P10")):
            axes.plot(k, [100 * r[name] for r in regret], marker="o", label=label)
        if ceiling:
            axes.axhline(100 * ceiling.mean_efficiency, color=INK, linestyle="--", label="noise ceiling, mean")
        axes.set(xlabel="kernels measured", ylabel="efficiency, % of the oracle", title="Best of the top k, measured")
        axes.set_xticks(k)
        axes.legend(loc="lower right")
    return path
