"""Plots as PNG files, drawn without a display and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tilewise.evaluate._evaluation import NoiseCeiling
from tilewise.evaluate._slices import MIN_PROBLEMS_SHOWN, SliceFigures
from tilewise.metrics import Floats

TOP_FEATURES = 25
ROW_INCHES = 0.2  # height of a bar with a readable label


def plot_efficiency(series: Mapping[str, Floats], path: Path) -> Path:
    """Plot the share of problems at or below each efficiency, one curve for each of `series`."""
    figure, axes = new_figure()
    for name, efficiency in series.items():
        values = np.sort(efficiency)
        share = np.arange(1, len(values) + 1) / len(values)
        axes.step(100 * values, 100 * share, where="post", label=f"{name} ({len(values)} problems)")
    axes.set(xlabel="efficiency, % of the oracle", ylabel="problems, %", title="Efficiency of the selected kernels")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def plot_predictions(measured: Floats, predicted: Floats, path: Path) -> Path:
    """Plot predicted against measured TFLOPS of all rows, both logarithmic."""
    figure, axes = new_figure()
    axes.hexbin(measured, predicted, gridsize=80, xscale="log", yscale="log", mincnt=1, bins="log", cmap="viridis")
    ends = [float(min(measured.min(), predicted.min())), float(max(measured.max(), predicted.max()))]
    axes.plot(ends, ends, color="tab:red", linewidth=1, label="predicted = measured")
    axes.set(xlabel="measured TFLOPS", ylabel="predicted TFLOPS", title="Predicted and measured TFLOPS")
    axes.legend(loc="upper left")
    return save_figure(figure, path)


def plot_importances(importances: Mapping[str, float], path: Path) -> Path:
    """Plot the most important features by their share of the total gain."""
    figure, axes = new_figure()
    total = sum(importances.values()) or 1.0
    top = sorted(importances.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP_FEATURES]
    axes.barh([name for name, _ in reversed(top)], [100 * gain / total for _, gain in reversed(top)])
    axes.set(xlabel="share of the total gain, %", title=f"The {len(top)} most important features")
    axes.tick_params(axis="y", labelsize=7)
    return save_figure(figure, path)


def plot_slices(slices: Sequence[SliceFigures], path: Path) -> Path:
    """Plot mean efficiency (bars) and P10 (dots) of each group with enough problems.

    Args:
        slices: from :func:`tilewise.evaluate.sliced_metrics`.
        path: PNG file.
    """
    slices = [s for s in slices if s["n_problems"] >= MIN_PROBLEMS_SHOWN]
    figure, axes = new_figure(max(5.0, 1 + ROW_INCHES * len(slices)))
    labels = [f"{s['slice']} {s['value']} ({s['n_problems']})" for s in slices]
    means, tails = ([100 * s["mean_efficiency"] for s in slices], [100 * s["p10_efficiency"] for s in slices])
    colours = {name: f"C{i % 10}" for i, name in enumerate(dict.fromkeys(s["slice"] for s in slices))}
    axes.barh(range(len(slices)), means, color=[colours[s["slice"]] for s in slices], alpha=0.6, label="mean")
    axes.plot(tails, range(len(slices)), "o", color="black", markersize=3, label="P10")
    axes.set_yticks(range(len(slices)), labels, fontsize=7)
    axes.invert_yaxis()
    low = min([*tails, 90.0])
    axes.set(xlim=(low - 0.02 * (100 - low), 100), xlabel="efficiency, % of the oracle", title="Efficiency by slice")
    axes.margins(y=0.01)
    figure.legend(loc="outside lower center", ncols=2)
    axes.grid(alpha=0.3, axis="x")
    return save_figure(figure, path)


def plot_regret(regret: Sequence[Mapping[str, float]], ceiling: NoiseCeiling | None, path: Path) -> Path:
    """Plot the best of the top k, see :func:`tilewise.metrics.regret_curve`, and the noise ceiling's mean."""
    figure, axes = new_figure()
    k = [r["k"] for r in regret]
    for name, label in (("mean_efficiency", "mean"), ("p10_efficiency", "P10")):
        axes.plot(k, [100 * r[name] for r in regret], marker="o", label=label)
    if ceiling:
        axes.axhline(100 * ceiling.mean_efficiency, color="tab:red", linewidth=1, label="noise ceiling, mean")
    axes.set(xlabel="kernels measured", ylabel="efficiency, % of the oracle", title="Best of the top k, measured")
    axes.set_xticks(k)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    return save_figure(figure, path)


def new_figure(height: float = 5.0) -> tuple[Figure, Axes]:
    """Return a new figure, 8 inches wide, and its axes."""
    with matplotlib.rc_context({"figure.figsize": (8, height), "figure.dpi": 110}):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.add_subplot()


def save_figure(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, creating its folder, and return `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})  # without a version: equal figures give equal files
    return path
