"""The page of a version is its model card, with the files behind it, within the database's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from small_model import write_model
from tilewise.model import TrainedModel, load_artefact
from tilewise.registry._version_description import MOST_CHARACTERS, describe_version

WEAK = "size tiny: P10 70.0 % of 12 problems"


@pytest.fixture
def model(tmp_path: Path) -> TrainedModel:
    return load_artefact(write_model(tmp_path / "model", trees=2))


def test_a_version_s_page_is_its_card(model: TrainedModel) -> None:
    text = describe_version(model, None, [WEAK], ["gfx90a68.HIP.fdb.txt.bz2"])
    assert "| mean | 90.00 % |" in text
    assert f"- **Weakest slices, holdout**: {WEAK}." in text
    assert "find database gfx90a68, (c) Advanced Micro Devices, MIT." in text
    assert f"pool `{model.pool.hash[:12]}`" in text


def test_a_long_page_is_cut_to_the_limit_of_the_database(model: TrainedModel) -> None:
    text = describe_version(model, None, [WEAK] * 400)
    assert len(text) == MOST_CHARACTERS
    assert text.endswith("…")
