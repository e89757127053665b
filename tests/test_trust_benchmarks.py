"""docs/experiments.md equals its results, and the figures of leave_family_out are correct."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks.learning import leave_family_out, trust
from benchmarks.results import RESULTS

from synthetic import CONV, measurements
from tilewise.data import group_keys, holdout_mask
from tilewise.errors import DataError
from tilewise.kernels import load_pool
from tilewise.ops import Target

TARGET = Target.parse(CONV)


def test_the_page_is_filled_from_the_results() -> None:
    text = trust.PAGE.read_text()
    assert trust.page(text, RESULTS) == text, "run `python -m benchmarks.learning.trust`"


def test_its_plots_are_there() -> None:
    for line in trust.PAGE.read_text().splitlines():
        if line.startswith("!["):
            assert (trust.DOCS / line.partition("(")[2].rstrip(")")).exists()


def test_an_empty_folder_fills_a_page_too(tmp_path: Path) -> None:
    filled = trust.page(trust.PAGE.read_text(), tmp_path)
    assert filled.count("Not measured yet.") == 5


def test_a_report_without_trust_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.json").write_text(json.dumps({"target": "t", "trust": None}))
    with pytest.raises(DataError, match="no calibration; train and evaluate again"):
        trust.keep(tmp_path, tmp_path, tmp_path)


def test_families_are_pipelines_or_tiles() -> None:
    pool = load_pool(TARGET)
    by_pipeline = leave_family_out.families(pool, "pipeline")
    few = {p for p, n in Counter(k.pipeline for k in pool.kernels).items() if n < leave_family_out.FEWEST}
    assert {n for names in by_pipeline.values() for n in names} == {
        n for k, n in zip(pool.kernels, pool.names, strict=True) if k.pipeline not in few
    }
    for family, names in by_pipeline.items():
        assert {k.pipeline for k, n in zip(pool.kernels, pool.names, strict=True) if n in names} == {family}
    sizes = [len(names) for names in by_pipeline.values()]
    assert sizes == sorted(sizes, reverse=True)
    assert all(
        "x" in tile and len(n) >= leave_family_out.FEWEST for tile, n in leave_family_out.families(pool, "tile").items()
    )


def test_a_thinned_table_has_no_holdout_and_no_repeats() -> None:
    frame = measurements(CONV, 40, 6, repeats=10)
    thin = leave_family_out.thinned(frame, TARGET, 12)
    keys = group_keys(TARGET.op, thin)
    assert not holdout_mask(TARGET.op, keys, leave_family_out.HOLDOUT).any()
    assert len(np.unique(keys, axis=0)) == 12
    assert set(thin["run_id"]) == {"synthetic-1"}


def test_figures_by_hand() -> None:
    everything = pd.DataFrame({"oracle": ["new", "new", "old", "old"]})
    whole = pd.DataFrame({"selected": ["new", "old", "new", "old"], "efficiency": [1.0, 0.5, 0.7, 0.8]})
    known = pd.DataFrame({"selected": ["old"] * 4, "efficiency": [0.6, 0.5, 1.0, 0.8]})
    found = leave_family_out.figures(whole, known, everything, {"new"})
    assert (found["oracle_share"], found["selected_share"], found["hit_share"]) == (0.5, 0.5, 0.5)
    assert found["mean_efficiency"] == pytest.approx(0.75)
    assert found["mean_efficiency_known_pool"] == pytest.approx(0.725)
