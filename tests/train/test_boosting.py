"""Bins made from features in batches are those of the whole matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest

from features.test_launches import TABLE, mixed
from tilewise.features import FeatureRows
from tilewise.train import Floats
from tilewise.train import _boosting as boosting


def binned(matrix: Floats | lgb.Sequence, path: Path) -> bytes:
    """Return the file of LightGBM's bins; with fewer samples than rows, as in a large table."""
    params = {"verbosity": -1, "bin_construct_sample_cnt": 1000, "feature_pre_filter": False}
    boosting._Dataset(matrix, label=np.zeros(len(matrix)), params=params).construct().save_binary(path)
    return path.read_bytes()


def test_bins_of_batches_are_those_of_the_matrix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launches, *_ = mixed(3000)
    monkeypatch.setattr(boosting._Batches, "batch_size", 700)
    rows = boosting._Batches(FeatureRows(launches, TABLE))
    assert binned(rows, tmp_path / "batches") == binned(launches.matrix(TABLE), tmp_path / "whole")


def test_bins_compute_the_sample_at_once_and_each_row_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    launches, *_ = mixed(3000)
    read = list[int]()

    class Counted(boosting._Batches):
        def __getitem__(self, index: Any) -> Floats:
            values = super().__getitem__(index)
            read.append(len(values))
            return values

    monkeypatch.setattr(boosting._Batches, "batch_size", 700)
    binned(Counted(FeatureRows(launches, TABLE)), tmp_path / "bins")
    assert read == [1000, 700, 700, 700, 700, 200]
