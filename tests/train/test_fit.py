"""A training hands on a whole, honest and repeatable model."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements, with_few_kernels
from tilewise.arch import load_arch
from tilewise.data import Measurements, group_keys, holdout_mask, open_measurements, parquet_bytes
from tilewise.errors import DataError
from tilewise.metrics import METRICS
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.train import TrainingResult, TrainSettings, TuneSettings, pool_of, train

TARGET = Target.parse(CONV)
NO_TUNING = TuneSettings(n_trials=0)


def files(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


@pytest.mark.long
def test_the_result_has_all_that_is_logged(result: TrainingResult, settings: TrainSettings) -> None:
    assert tuple(result.cv_metrics) == METRICS
    assert len(result.folds) == settings.n_splits
    assert len(result.tuning.trials) == settings.tune.n_trials
    assert result.n_problems + result.n_holdout_problems == 45
    assert result.n_problems == result.cv_metrics["n_problems"]
    assert result.params["num_leaves"] in {t.params["num_leaves"] for t in result.tuning.trials}
    assert set(result.feature_importances) == set(result.parts.features.names)
    gains = list(result.feature_importances.values())
    assert gains == sorted(gains, reverse=True)
    assert len(result.out_of_fold.problem) == result.n_rows
    assert "holdout: 18%" in result.split_rule
    assert "3-fold GroupKFold" in result.split_rule


@pytest.mark.long
def test_a_table_that_is_read_in_chunks_gives_the_same_model(
    frame: pd.DataFrame, settings: TrainSettings, tmp_path: Path
) -> None:
    few = dataclasses.replace(settings, model=dataclasses.replace(settings.model, n_estimators=10), tune=NO_TUNING)
    (tmp_path / "table.parquet").write_bytes(parquet_bytes(frame))
    for name, chunk_rows in (("whole", len(frame)), ("chunks", 150)):
        rows = open_measurements(tmp_path / "table.parquet", TARGET, chunk_rows)
        assert isinstance(rows, Measurements) == (name == "chunks")
        write_artefact(tmp_path / name, train(rows, TARGET, pool_of(rows, TARGET), load_arch("sm90"), few).parts)
    assert files(tmp_path / "chunks") == files(tmp_path / "whole")


@pytest.mark.long
def test_it_learns(result: TrainingResult) -> None:
    assert result.cv_metrics["mean_efficiency"] > 0.85
    assert result.cv_metrics["r2"] > 0.2  # few problems tell little about the best TFLOPS of another


def test_the_written_model_ranks_as_it_was_trained(result: TrainingResult, frame: pd.DataFrame, tmp_path: Path) -> None:
    write_artefact(tmp_path / "m", result.parts)
    model = load_artefact(tmp_path / "m")
    valid = frame[frame["is_valid"] & (frame["run_id"] == "synthetic-1")].reset_index(drop=True)
    predicted = model.score_rows({n: valid[n] for n in valid}, {n: valid[n] for n in valid})
    problem = valid.groupby(["N", "C", "K", "G", "Hi", "Y", "stride_h"]).ngroup()
    efficiency = valid["tflops"] / valid.groupby(problem)["tflops"].transform("max")
    assert efficiency[pd.Series(predicted).groupby(problem).idxmax()].mean() > 0.93  # seen problems for the most part
    assert model.manifest["data_hash"] == result.data_hash
    assert model.cv_metrics["split_rule"] == result.split_rule
    assert [f["n_problems"] for f in model.cv_metrics["folds"]] == [f.metrics["n_problems"] for f in result.folds]


@pytest.mark.long
def test_equal_trainings_write_equal_files(
    result: TrainingResult, frame: pd.DataFrame, settings: TrainSettings, tmp_path: Path
) -> None:
    write_artefact(tmp_path / "a", result.parts)
    again = train(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), settings)
    write_artefact(tmp_path / "b", again.parts)
    assert files(tmp_path / "a") == files(tmp_path / "b")


@pytest.mark.long
def test_threads_make_no_difference_but_to_lambdarank(
    frame: pd.DataFrame, settings: TrainSettings, tmp_path: Path
) -> None:
    model = dataclasses.replace(settings.model, label="regret")
    for threads in (1, 2):
        made = dataclasses.replace(settings, model=model, threads=threads)
        result = train(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), made)
        write_artefact(tmp_path / str(threads), result.parts)
    assert files(tmp_path / "1") == files(tmp_path / "2")


@pytest.mark.long
def test_holdout_rows_change_nothing_but_the_data_hash(
    result: TrainingResult, frame: pd.DataFrame, settings: TrainSettings
) -> None:
    held = holdout_mask("grouped_conv", group_keys("grouped_conv", frame), settings.holdout_fraction)
    without = train(frame[~held], TARGET, pool_of(frame, TARGET), load_arch("sm90"), settings)
    assert without.parts.booster_text == result.parts.booster_text
    assert result.parts.cost_model is not None
    assert without.parts.cost_model is not None
    assert without.parts.cost_model.weights.tobytes() == result.parts.cost_model.weights.tobytes()
    assert without.cv_metrics == result.cv_metrics
    assert without.data_hash != result.data_hash


def test_log1p_and_extra_labels(frame: pd.DataFrame, settings: TrainSettings, tmp_path: Path) -> None:
    model = dataclasses.replace(settings.model, label="log1p", extra_labels=("latency", "bandwidth"))
    chosen = dataclasses.replace(settings, model=model, tune=NO_TUNING)
    result = train(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), chosen)
    assert result.parts.scale_text is None
    assert result.tuning.trials == ()
    write_artefact(tmp_path / "m", result.parts)
    loaded = load_artefact(tmp_path / "m")
    problem = result.parts.selftest_problems[0]
    tflops, latency = loaded.predict_tflops(problem), loaded.predict_extra("latency", problem)
    best = loaded.rank(problem)[0]
    assert problem.flops / latency[best] / 1e9 == pytest.approx(tflops[best], rel=0.7)
    assert (loaded.predict_extra("bandwidth", problem) > 0).all()


@pytest.mark.long
@pytest.mark.parametrize("name", ["grouped_conv_forward_bf16_gfx950", "grouped_conv_bwd_weight_fp16_gfx942"])
def test_tables_of_other_archs_train_as_well(name: str, settings: TrainSettings, tmp_path: Path) -> None:
    target, frame = Target.parse(name), measurements(name, n_problems=24, n_kernels=10, seed=1)
    result = train(
        frame, target, pool_of(frame, target), load_arch(target.arch), dataclasses.replace(settings, tune=NO_TUNING)
    )
    write_artefact(tmp_path / "m", result.parts)
    assert load_artefact(tmp_path / "m").target == target
    assert result.cv_metrics["mean_efficiency"] > 0.6


def test_the_manifest_has_no_times_and_names_its_sources(result: TrainingResult) -> None:
    manifest = dict(result.parts.manifest)
    assert manifest["warm_start"] == []
    assert manifest["parameters"]["label"] == "lambdarank"
    assert {"data_hash", "git_revision", "libraries", "seed", "holdout_fraction", "split_rule"} <= set(manifest)
    assert set(manifest["tuned"]) <= set(TuneSettings().space)
    assert "202" not in json.dumps(
        {k: v for k, v in manifest.items() if k not in ("data_hash", "git_revision", "libraries")}
    )


def test_too_small_a_table_is_refused(frame: pd.DataFrame, settings: TrainSettings) -> None:
    few = frame.head(2 * 16)
    with pytest.raises(DataError, match="2 distinct split keys cannot make 3 folds"):
        train(few, TARGET, pool_of(few, TARGET), load_arch("sm90"), dataclasses.replace(settings, holdout_fraction=0.0))


def test_selftest_problems_are_of_the_training(result: TrainingResult, frame: pd.DataFrame) -> None:
    held = holdout_mask("grouped_conv", [p.group_key for p in result.parts.selftest_problems], 0.18)
    assert len(held) == 5
    assert not np.any(held)


@pytest.mark.long
def test_problems_with_few_kernels_count_in_no_figure(frame: pd.DataFrame, settings: TrainSettings) -> None:
    """Three kernels of a problem hold its best by chance only: efficiency and trust would be too good."""
    partial, thin = with_few_kernels(frame, 0.5)
    result = train(partial, TARGET, pool_of(frame, TARGET), load_arch("sm90"), settings)
    learnt = group_keys("grouped_conv", frame[~holdout_mask("grouped_conv", group_keys("grouped_conv", frame), 0.18)])
    judges = len(set(map(tuple, learnt.tolist())) - thin)
    assert 0 < judges < result.n_problems
    assert result.cv_metrics["n_problems"] == len(result.out_of_fold.efficiency) == judges
    assert result.by_trees[-1].mean_efficiency == pytest.approx(result.cv_metrics["mean_efficiency"])
    assert result.parts.calibration is not None
    assert result.parts.calibration.counts.sum() == judges
