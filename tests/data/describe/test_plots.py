"""Plots of every op: their files, their sizes, and equal bytes for equal data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from synthetic import CONV, measurements
from tilewise.data.describe import write_plots
from tilewise.data.describe._description import Description, describe
from tilewise.data.describe._description_plots import FIGURES
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
def test_a_file_for_each_figure_and_op_that_has_something_to_show(plots: list[Path]) -> None:
    conv = {f"{name}_grouped_conv" for name in FIGURES}
    gemm = {f"{name}_gemm" for name in FIGURES if name not in ("repeat",)}
    assert conv <= {p.stem for p in plots}
    assert {p.stem for p in plots} - conv <= gemm
    assert gemm - {p.stem for p in plots} <= {"failures_gemm"}  # where nothing failed


def test_files_are_small_and_hold_no_time_or_version(plots: list[Path]) -> None:
    for path in plots:
        assert path.stat().st_size < 80_000
        with Image.open(path) as image:
            assert image.info == {}
            assert len(np.unique(np.asarray(image.convert("L")))) > 10  # not blank


@pytest.mark.long
def test_the_same_data_gives_the_same_bytes(plots: list[Path], tmp_path: Path) -> None:
    again = write_plots([described(GEMM, 0)], tmp_path)
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in plots if p.stem.endswith("_gemm")]


def test_a_target_without_repeats_has_no_panel_among_them(plots: list[Path]) -> None:
    width = {p.stem: Image.open(p).width for p in plots}
    assert width["repeat_grouped_conv"] < width["coverage_grouped_conv"]
