"""The style of plots: readable on light and dark pages, with colours that the colour-blind can tell apart."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from tilewise.plot_style import INK, PALETTE, axes_file, draw_density, label_rows

# Linear RGB as seen without the cones of red, and of green (Machado and others, 2009, severity 1).
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PAGES = ("#ffffff", "#1e2129")  # of the site, light and dark


def linear(colour: str) -> np.ndarray:
    """Return linear RGB from a colour's sRGB."""
    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours by WCAG 2."""
    dark, light = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ linear(c)) for c in (a, b))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("page", PAGES)
def test_text_and_colours_stand_out_from_the_page(page: str) -> None:
    assert contrast(INK, page) > 3.9
    assert min(contrast(colour, page) for colour in PALETTE) > 1.6


@pytest.mark.parametrize("sight", [np.eye(3), PROTANOPIA, DEUTERANOPIA], ids=["all", "no red", "no green"])
def test_colours_differ_for_every_sight(sight: np.ndarray) -> None:
    seen = [np.cbrt(np.clip(np.array(sight) @ linear(colour), 0, 1)) for colour in PALETTE]
    assert min(float(np.abs(a - b).max()) for a, b in combinations(seen, 2)) > 0.12


def test_a_plot_has_no_background_and_no_black(tmp_path: Path) -> None:
    with axes_file(tmp_path / "new" / "plot.png") as axes:
        axes.barh(range(2), [1, 2], label="bars")
        label_rows(axes, ["one", "two"])
        axes.legend()
    with Image.open(tmp_path / "new" / "plot.png") as image:
        *colours, alpha = np.asarray(image.convert("RGBA")).reshape(-1, 4).T.astype(float)
    assert (alpha == 0).mean() > 0.3
    assert np.array(colours)[:, alpha > 200].max(axis=0).min() > 80


@pytest.mark.long
def test_equal_figures_make_equal_files_and_leave_the_settings(tmp_path: Path) -> None:
    before, measured = dict(matplotlib.rcParams), np.exp(np.random.default_rng(0).normal(3, 2, 500))
    for name in "ab":
        with axes_file(tmp_path / name) as axes:
            draw_density(axes, measured, 1.1 * measured, "rows")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_a_failed_drawing_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no figures"), axes_file(tmp_path / "plot.png"):
        raise ValueError("no figures")
    assert list(tmp_path.iterdir()) == []
