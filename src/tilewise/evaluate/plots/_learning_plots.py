"""Learning curves, by number of training problems and by number of trees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import NullLocator

from tilewise.plot_style import axes_file
from tilewise.train import CurvePoint


def plot_by_problems(points: Sequence[CurvePoint], path: Path) -> Path:
    """Plot efficiency by the number of training problems, on a logarithmic axis."""
    title = "More problems: efficiency on one fold, a quarter of the trees"
    return _plot(points, "problems learnt from", title, path, logarithmic=True)


def plot_by_trees(points: Sequence[CurvePoint], path: Path) -> Path:
    """Plot the out-of-fold efficiency as trees grow."""
    return _plot(points, "trees", "More trees: efficiency out of fold", path)


def _plot(points: Sequence[CurvePoint], counted: str, title: str, path: Path, *, logarithmic: bool = False) -> Path:
    n = [p.n for p in points]
    with axes_file(path) as axes:
        axes.plot(n, [100 * p.mean_efficiency for p in points], marker="o", label="mean")
        axes.plot(n, [100 * p.p10_efficiency for p in points], marker="o", label="P10")
        axes.set(xlabel=counted, ylabel="efficiency, % of the oracle", title=title)
        if logarithmic:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(n, labels=[str(count) for count in n])
        axes.legend(loc="lower right")
    return path
