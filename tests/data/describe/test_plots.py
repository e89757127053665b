"""Plots of every op: their files, their sizes, and equal bytes for equal data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from synthetic import CONV, measurements
from tilewise.data.describe import write_plots
from tilewise.data.describe._description import Description, describe
from tilewise.data.describe._description_plots import _CELL as CELL
from tilewise.data.describe._description_plots import FIGURES, _regions
from tilewise.ops import Target

CK = "grouped_conv_bwd_data_bf16_gfx950"
GEMM = "gemm_universal_fp8_sm90"


def described(name: str, repeats: int) -> Description:
    return describe(measurements(name, 40, 10, repeats=repeats), Target.parse(name), 0.2)


@pytest.fixture(scope="module")
def plots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("plots")
    return write_plots([described(CONV, 10), described(CK, 0), described(GEMM, 0)], folder)


@pytest.mark.long
def test_a_file_for_each_figure_op_and_arch_that_has_something_to_show(plots: list[Path]) -> None:
    found = {p.stem for p in plots}
    assert {f"{name}_grouped_conv_sm90" for name in FIGURES} <= found
    for group, absent in (("gemm_sm90", {"repeat", "failures"}), ("grouped_conv_gfx950", {"repeat", "failures"})):
        drawn = {name for name in FIGURES if f"{name}_{group}" in found}
        assert FIGURES.keys() - drawn <= absent  # not repeated, or nothing failed


@pytest.mark.long
def test_files_are_small_and_hold_no_time_or_version(plots: list[Path]) -> None:
    for path in plots:
        assert path.stat().st_size < 80_000
        with Image.open(path) as image:
            assert image.info.keys() <= {"transparency"}


@pytest.mark.long
def test_the_ink_is_readable_on_light_and_on_dark_pages(plots: list[Path]) -> None:
    for path in plots:
        with Image.open(path) as image:
            *colours, alpha = np.asarray(image.convert("RGBA")).reshape(-1, 4).T.astype(float)
        assert (alpha == 0).mean() > 0.3  # no background
        luminance = np.array([0.2126, 0.7152, 0.0722]) @ np.array(colours)[:, alpha > 200] / 255
        assert len(luminance)  # not blank
        assert luminance.min() > 0.1
        assert luminance.max() < 0.9


def test_a_region_shows_the_shares_of_its_winners() -> None:
    d = described(CONV, 0)
    figure = Figure()
    axes = figure.add_subplot()
    _regions(axes, d, [d])
    cells: dict[tuple[float, int], float] = {}
    for bar in axes.patches:
        assert isinstance(bar, Rectangle)
        cell = (bar.get_x(), int(bar.get_y() // CELL))
        cells[cell] = cells.get(cell, 0) + bar.get_height()
    assert list(cells.values()) == pytest.approx([0.9 * CELL] * len(cells))


@pytest.mark.long
def test_the_same_data_gives_the_same_bytes(plots: list[Path], tmp_path: Path) -> None:
    again = write_plots([described(GEMM, 0)], tmp_path)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in plots if p.stem.endswith("_gemm_sm90")]
