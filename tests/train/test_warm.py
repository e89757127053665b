"""A continued model keeps the base model's trees and adds new ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.data import group_keys
from tilewise.errors import ArtefactError, ConfigError
from tilewise.evaluate import evaluate
from tilewise.model import load_artefact, read_parts, write_artefact
from tilewise.ops import Target
from tilewise.train import (
    BaseModel,
    ModelSettings,
    TrainingResult,
    TrainSettings,
    TuneSettings,
    continue_training,
    pool_of,
    train,
)
from tilewise.train._warm_start import append_trees

TARGET, SM90 = Target.parse(CONV), load_arch("sm90")
SETTINGS = TrainSettings(
    ModelSettings(n_estimators=60, num_leaves=15, learning_rate=0.15, warm_estimators=12),
    TuneSettings(n_trials=0),
    n_splits=3,
    threads=1,
)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return measurements(n_problems=90, n_kernels=16, seed=5)


@pytest.fixture(scope="module")
def fresh(frame: pd.DataFrame) -> np.ndarray:
    """Rows of a third of the problems."""
    chosen: np.ndarray = (
        np.unique(group_keys("grouped_conv", frame), axis=0, return_inverse=True)[1].reshape(-1) % 3 == 0
    )
    return chosen


@pytest.fixture(scope="module")
def folder(frame: pd.DataFrame, fresh: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = train(frame[~fresh], TARGET, pool_of(frame, TARGET), SM90, SETTINGS)
    path = tmp_path_factory.mktemp("base") / "m"
    write_artefact(path, result.parts)
    return path


@pytest.fixture(scope="module")
def continued(frame: pd.DataFrame, fresh: np.ndarray, folder: Path) -> TrainingResult:
    return continue_training(frame[fresh], TARGET, BaseModel.load(folder), SETTINGS)


@pytest.mark.long
def test_trees_are_added_and_the_rest_stays(continued: TrainingResult, folder: Path, tmp_path: Path) -> None:
    base = load_artefact(folder)
    write_artefact(tmp_path / "m", continued.parts)
    model = load_artefact(tmp_path / "m")
    assert model.scores.n_trees == base.scores.n_trees + 12
    assert model.features.schema_hash == base.features.schema_hash
    assert model.pool.hash == base.pool.hash
    assert model.scores.value[: model.scores.roots[base.scores.n_trees]].tolist() == base.scores.value.tolist()
    assert model.manifest["warm_start"] == [
        {
            "base": base.content_hash,
            "base_data_hash": base.manifest["data_hash"],
            "trees": 12,
            "data_hash": continued.data_hash,
        }
    ]
    assert "may have seen" in continued.split_rule


@pytest.mark.long
def test_it_is_not_worse_on_the_old_holdout(
    continued: TrainingResult, frame: pd.DataFrame, folder: Path, tmp_path: Path
) -> None:
    write_artefact(tmp_path / "m", continued.parts)
    before, after = (evaluate(load_artefact(f), frame, 0.18).metrics for f in (folder, tmp_path / "m"))
    assert after["mean_efficiency"] >= before["mean_efficiency"] - 0.005  # the gate's tolerances
    assert after["median_efficiency"] >= before["median_efficiency"] - 0.005
    assert after["p10_efficiency"] >= before["p10_efficiency"] - 0.02


@pytest.mark.long
def test_a_second_step_remembers_the_first(continued: TrainingResult, frame: pd.DataFrame, tmp_path: Path) -> None:
    write_artefact(tmp_path / "m", continued.parts)
    again = continue_training(frame, TARGET, BaseModel.load(tmp_path / "m"), SETTINGS)
    lineage = again.parts.manifest["warm_start"]
    assert lineage[:1] == continued.parts.manifest["warm_start"]
    assert lineage[1]["base"] == load_artefact(tmp_path / "m").content_hash


@pytest.mark.long
def test_parts_are_read_as_they_were_written(folder: Path, tmp_path: Path) -> None:
    write_artefact(tmp_path / "m", read_parts(folder))
    assert load_artefact(tmp_path / "m").content_hash == load_artefact(folder).content_hash


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": ModelSettings(label="log1p")},
            f"model.label must be that of the continued model, {ModelSettings().label}, got log1p",
        ),
        ({"holdout_fraction": 0.3}, "holdout.fraction must be at most 0.18"),
    ],
)
def test_what_cannot_be_continued(change: dict[str, object], message: str, frame: pd.DataFrame, folder: Path) -> None:
    settings = dataclasses.replace(SETTINGS, **change)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        continue_training(frame, TARGET, BaseModel.load(folder), settings)


@pytest.mark.long
def test_added_models_score_the_sum() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 4))
    params = {"verbosity": -1, "num_threads": 1}
    first, second = (lgb.train(params, lgb.Dataset(x, x[:, i] ** 2), 5 + i) for i in (0, 1))
    text = append_trees(first.model_to_string(), second.model_to_string())
    both = lgb.Booster(model_str=text)
    assert both.num_trees() == 11
    assert both.predict(x) == pytest.approx(first.predict(x) + second.predict(x))
    other = lgb.train(params, lgb.Dataset(x[:, :3], x[:, 0]), 2).model_to_string()
    with pytest.raises(ArtefactError, match="different features"):
        append_trees(text, other)
    with pytest.raises(ArtefactError, match="not a complete LightGBM text model"):
        append_trees("nonsense", text)


@pytest.mark.long
def test_trees_of_extra_labels_are_continued_or_dropped(frame: pd.DataFrame, fresh: np.ndarray, tmp_path: Path) -> None:
    both = dataclasses.replace(
        SETTINGS, model=dataclasses.replace(SETTINGS.model, extra_labels=("latency", "bandwidth"))
    )
    write_artefact(tmp_path / "base", train(frame[~fresh], TARGET, pool_of(frame, TARGET), SM90, both).parts)
    base = BaseModel.load(tmp_path / "base")
    one = dataclasses.replace(SETTINGS, model=dataclasses.replace(SETTINGS.model, extra_labels=("latency",)))
    write_artefact(tmp_path / "next", continue_training(frame, TARGET, base, one).parts)
    renewed = load_artefact(tmp_path / "next")
    assert set(renewed.extras) == {"latency"}
    before, after = (evaluate(m, frame[fresh]).extras["latency"]["median_error"] for m in (base.model, renewed))
    assert after < before  # it has learnt the rows that are new
    assert not load_artefact_extras(continue_training(frame, TARGET, base, SETTINGS), tmp_path)
    with pytest.raises(ConfigError, match="the continued model has no trees for bandwidth"):
        continue_training(frame, TARGET, BaseModel.load(tmp_path / "next"), both)


def load_artefact_extras(result: TrainingResult, folder: Path) -> list[str]:
    write_artefact(folder / "without", result.parts)
    return list(load_artefact(folder / "without").extras)
