"""Plots are PNG files, equal for equal figures; their looks were checked by eye."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewise.evaluate import NoiseCeiling
from tilewise.evaluate._slices import SliceFigures
from tilewise.evaluate.plots import (
    plot_by_problems,
    plot_by_trees,
    plot_efficiency,
    plot_importances,
    plot_predictions,
    plot_regret,
    plot_slices,
)
from tilewise.plot_style import axes_file
from tilewise.train import CurvePoint

RNG = np.random.default_rng(0)
MEASURED = np.exp(RNG.normal(3, 2, 500))
REGRET = [{"k": k, "mean_efficiency": 1 - 0.1 / k, "p10_efficiency": 1 - 0.3 / k} for k in range(1, 11)]
SLICES = [
    SliceFigures(
        slice="size",
        value=str(i),
        n_problems=20,
        mean_efficiency=0.9,
        median_efficiency=0.9,
        p10_efficiency=0.8,
        min_efficiency=0.7,
    )
    for i in range(9)
]
CURVE = [CurvePoint(n, 1 - 1 / n, 1 - 3 / n) for n in (10, 20, 39, 80)]
PLOTS = {
    "efficiency": lambda path: plot_efficiency({"cv": RNG.uniform(0.5, 1, 50), "holdout": np.ones(1)}, path),
    "predictions": lambda path: plot_predictions(MEASURED, MEASURED * 1.1, path),
    "importances": lambda path: plot_importances({f"feature_{i}": float(i) for i in range(60)}, path),
    "regret": lambda path: plot_regret(REGRET, NoiseCeiling(5, 0.99, 1.0, 0.97, 0.8), path),
    "regret_without_ceiling": lambda path: plot_regret(REGRET, None, path),
    "slices": lambda path: plot_slices(SLICES, path),
    "no_slices": lambda path: plot_slices([], path),
    "by_problems": lambda path: plot_by_problems(CURVE, path),
    "by_trees": lambda path: plot_by_trees(CURVE[:1], path),
    "no_gain": lambda path: plot_importances({"a": 0.0}, path),
}


@pytest.mark.long
@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_a_png(tmp_path: Path, name: str) -> None:
    path = PLOTS[name](tmp_path / "new" / f"{name}.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    with axes_file(tmp_path / "empty.png"):
        pass
    assert path.stat().st_size > (tmp_path / "empty.png").stat().st_size


@pytest.mark.long
def test_equal_figures_make_equal_files(tmp_path: Path) -> None:
    a, b = (plot_predictions(MEASURED, MEASURED * 1.1, tmp_path / f"{n}.png").read_bytes() for n in "ab")
    assert a == b
