"""Plots are PNG files, equal for equal figures; what they show was looked at, not tested."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewise.evaluate.plots import plot_efficiency, plot_importances, plot_predictions

RNG = np.random.default_rng(0)
MEASURED = np.exp(RNG.normal(3, 2, 500))
PLOTS = {
    "efficiency": lambda path: plot_efficiency({"cv": RNG.uniform(0.5, 1, 50), "holdout": np.ones(1)}, path),
    "predictions": lambda path: plot_predictions(MEASURED, MEASURED * 1.1, path),
    "importances": lambda path: plot_importances({f"feature_{i}": float(i) for i in range(60)}, path),
    "no_gain": lambda path: plot_importances({"a": 0.0}, path),
}


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_a_png(tmp_path: Path, name: str) -> None:
    path = PLOTS[name](tmp_path / "new" / f"{name}.png")
    assert path.read_bytes().startswith(b"\x89PNG\r\n")
    assert path.stat().st_size > 5000


def test_equal_figures_make_equal_files(tmp_path: Path) -> None:
    a, b = (plot_predictions(MEASURED, MEASURED * 1.1, tmp_path / f"{n}.png").read_bytes() for n in "ab")
    assert a == b
