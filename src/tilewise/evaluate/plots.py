"""Plots as PNG files, drawn without a display and without matplotlib's global state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tilewise.metrics import Floats

TOP_FEATURES = 25


def plot_efficiency(series: Mapping[str, Floats], path: Path) -> Path:
    """The share of problems that reach at most an efficiency, one curve for each of `series`."""
    figure, axes = _figure()
    for name, efficiency in series.items():
        values = np.sort(efficiency)
        share = np.arange(1, len(values) + 1) / len(values)
        axes.step(100 * values, 100 * share, where="post", label=f"{name} ({len(values)} problems)")
    axes.set(xlabel="efficiency, % of the oracle", ylabel="problems, %", title="Efficiency of the selected kernels")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    return _save(figure, path)


def plot_predictions(measured: Floats, predicted: Floats, path: Path) -> Path:
    """Predicted against measured TFLOPS of every row, both logarithmic."""
    figure, axes = _figure()
    axes.hexbin(measured, predicted, gridsize=80, xscale="log", yscale="log", mincnt=1, bins="log", cmap="viridis")
    ends = [float(min(measured.min(), predicted.min())), float(max(measured.max(), predicted.max()))]
    axes.plot(ends, ends, color="tab:red", linewidth=1, label="predicted = measured")
    axes.set(xlabel="measured TFLOPS", ylabel="predicted TFLOPS", title="Predicted and measured TFLOPS")
    axes.legend(loc="upper left")
    return _save(figure, path)


def plot_importances(importances: Mapping[str, float], path: Path) -> Path:
    """The most important features by their share of the total gain."""
    figure, axes = _figure()
    total = sum(importances.values()) or 1.0
    top = sorted(importances.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP_FEATURES]
    axes.barh([name for name, _ in reversed(top)], [100 * gain / total for _, gain in reversed(top)])
    axes.set(xlabel="share of the total gain, %", title=f"The {len(top)} most important features")
    axes.tick_params(axis="y", labelsize=7)
    return _save(figure, path)


def _figure() -> tuple[Figure, Axes]:
    with matplotlib.rc_context({"figure.figsize": (8, 5), "figure.dpi": 110}):
        figure = Figure(layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.add_subplot()


def _save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", metadata={"Software": None})  # no version: equal figures make equal files
    return path
