"""Other targets teach: their rows are learnt with less weight, never judged, and nothing of the holdout comes back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from benchmarks.learning import teachers as benchmark

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.data import held_out
from tilewise.errors import ConfigError, DataError
from tilewise.features import feature_table
from tilewise.kernels import Pool
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.train import (
    ModelSettings,
    Table,
    TrainSettings,
    TuneSettings,
    build_table,
    make_folds,
    make_labels,
    pool_of,
    train,
    with_teachers,
)
from tilewise.train.cost_model import Baselines

ACROSS = {f.name for f in feature_table("grouped_conv").features if f.across_archs}
TARGET, TEACHER = Target.parse(CONV), Target.parse(CONV.replace("bf16", "fp16"))
SM90 = load_arch("sm90")
SETTINGS = TrainSettings(
    ModelSettings(label="relative", n_estimators=30, num_leaves=15, min_child_samples=5),
    TuneSettings(n_trials=0),
    n_splits=3,
    teachers=(TEACHER,),
)


@pytest.fixture(scope="module")
def own() -> pd.DataFrame:
    return measurements(n_problems=30, n_kernels=12, seed=5)


@pytest.fixture(scope="module")
def taught() -> pd.DataFrame:
    """More problems than the target has, its own among them."""
    frame = measurements(n_problems=60, n_kernels=14, seed=5)
    return frame.assign(dtype="fp16", kernel_name=frame["kernel_name"].str.replace("bf16", "fp16"))


def table_of(frame: pd.DataFrame, target: Target) -> Table:
    return build_table(frame, target, pool_of(frame, target), SM90, 0.18, feature_table("grouped_conv"))


@pytest.fixture(scope="module")
def joined(own: pd.DataFrame, taught: pd.DataFrame) -> Table:
    return with_teachers(table_of(own, TARGET), [table_of(taught, TEACHER)], 0.18)


def test_only_the_target_judges_and_its_rows_stay(own: pd.DataFrame, joined: Table) -> None:
    alone = table_of(own, TARGET)
    rows = joined.rows_of(np.flatnonzero(joined.is_own))
    assert joined.problems[: len(alone.problems)] == alone.problems
    assert (joined.tflops[rows] == alone.tflops).all()
    assert (joined.kernel[rows] == alone.kernel).all()
    assert not joined.judges[~joined.is_own].any()
    assert (~joined.is_own).sum() > len(alone.problems)


def test_a_shape_is_on_one_side_of_every_fold_and_never_held_out(joined: Table) -> None:
    keys = joined.group_keys
    assert not held_out(TARGET, keys, 0.18).any()
    for fold in make_folds(joined, 3, 0):
        assert joined.is_own[fold.test].all()
        assert not {tuple(k) for k in keys[fold.train]} & {tuple(k) for k in keys[fold.test]}


def test_kernels_are_those_of_the_target(taught: pd.DataFrame, joined: Table) -> None:
    teacher = table_of(taught, TEACHER)
    assert joined.kernel.max() < len(joined.pool) < len(teacher.pool)
    theirs = joined.take(joined.rows_of(np.flatnonzero(~joined.is_own)))
    rate = {
        (teacher.problems[p], teacher.pool.kernels[k]): t
        for p, k, t in zip(teacher.problem, teacher.kernel, teacher.tflops, strict=True)
    }
    for p, k, t in zip(theirs.problem, theirs.kernel, theirs.tflops, strict=True):
        assert rate[theirs.problems[p], joined.pool.kernels[k]] == t


def test_rows_of_teachers_weigh_less(joined: Table) -> None:
    plain = replace(SETTINGS.model, top_weight=0.0, teacher_weight=0.25)
    weight = make_labels(joined, plain, np.zeros(len(joined.problem))).weight
    assert weight is not None
    own = joined.is_own[joined.problem]
    assert set(weight[own]) == {1.0}
    assert set(weight[~own]) == {0.25}


def test_the_model_selects_for_the_target_and_names_its_teachers(
    own: pd.DataFrame, taught: pd.DataFrame, tmp_path: Path
) -> None:
    frame = pd.concat([own, taught], ignore_index=True)
    result = train(frame, TARGET, pool_of(frame, TARGET), SM90, SETTINGS)
    alone = table_of(own, TARGET)
    assert result.n_problems == len(alone.problems)
    assert result.n_rows == len(alone.problem)
    assert len(result.out_of_fold.efficiency) == len(alone.problems)
    write_artefact(tmp_path / "model", result.parts)
    model = load_artefact(tmp_path / "model")
    assert model.target == TARGET
    assert model.manifest["teachers"] == [TEACHER.name]
    assert len(model.rank(alone.problems[0])) > 0


def test_hardware_tells_the_targets_apart(own: pd.DataFrame, taught: pd.DataFrame, joined: Table) -> None:
    older = replace(SM90, compute_units=SM90.compute_units // 2)
    pool = pool_of(taught, TEACHER)
    teacher = build_table(taught, TEACHER, pool, older, 0.18, feature_table("grouped_conv"))
    assert "hw_compute_units" not in joined.features.names
    assert "hw_compute_units" in with_teachers(table_of(own, TARGET), [teacher], 0.18).features.names
    assert not ACROSS & {*joined.features.names}


def test_a_teacher_of_another_arch_brings_its_chiplets_and_caches(own: pd.DataFrame, tmp_path: Path) -> None:
    """The saved profile then has their figures, and C code computes the features as well."""
    other = replace(TARGET, arch="gfx942")
    frame = pd.concat([own, own.assign(arch=other.arch, latency_ms=own["latency_ms"] * 2, tflops=own["tflops"] / 2)])
    settings = replace(SETTINGS, teachers=(other,))
    result = train(frame, TARGET, pool_of(frame, TARGET), SM90, settings)
    assert ACROSS - {*result.parts.features.names} == {"hw_simds"}  # four on every arch
    write_artefact(tmp_path / "model", result.parts)
    model = load_artefact(tmp_path / "model")
    assert model.arch.to_dict(with_later=True) == SM90.to_dict(with_later=True)
    problem = build_table(own, TARGET, pool_of(own, TARGET), SM90, 0.18).problems[0]
    assert len(model.rank(problem)) > 1


def test_a_target_learnt_alone_keeps_its_features_and_profile(own: pd.DataFrame) -> None:
    table = build_table(own, TARGET, pool_of(own, TARGET), SM90, 0.18)
    assert not ACROSS & {*table.features.names}
    assert not table.features.across_archs


@pytest.mark.parametrize(
    ("teacher", "message"),
    [(TARGET.name, "must be other targets of grouped_conv"), ("gemm_universal_bf16_sm90", "got gemm_universal_bf16")],
)
def test_strangers_are_refused(own: pd.DataFrame, teacher: str, message: str) -> None:
    settings = replace(SETTINGS, teachers=(Target.parse(teacher),))
    with pytest.raises(ConfigError, match=message):
        train(own, TARGET, pool_of(own, TARGET), SM90, settings)


def test_a_teacher_without_a_common_kernel_is_refused(own: pd.DataFrame, taught: pd.DataFrame) -> None:
    table, teacher = table_of(own, TARGET), table_of(taught, TEACHER)
    others = tuple(k for k in teacher.pool.kernels if k not in table.pool.kernels)
    apart = teacher.with_pool(Pool(teacher.pool.op, teacher.pool.variant, teacher.pool.dtype, others))
    with pytest.raises(DataError, match=r"has no kernel of .* leave it out"):
        with_teachers(table, [apart], 0.18)


def test_the_cost_model_learns_from_another_dtype(own: pd.DataFrame, joined: Table) -> None:
    """By the weight of its rows: without weight it is as if they were not there."""

    def factors(table: Table, weight: float) -> bytes:
        baselines = Baselines(table, ModelSettings(label="lambdarank", teacher_weight=weight), seed=0)
        cost_model = baselines.of_all().cost_model
        assert cost_model is not None
        return cost_model.factors.tobytes()

    assert factors(joined, 0.0) == factors(table_of(own, TARGET), 0.4)
    assert factors(joined, 0.4) != factors(joined, 0.0)


@pytest.mark.long
def test_a_ranking_is_taught(own: pd.DataFrame, taught: pd.DataFrame) -> None:
    frame = pd.concat([own, taught], ignore_index=True)
    ranked = replace(SETTINGS, model=replace(SETTINGS.model, label="lambdarank"))
    model = train(frame, TARGET, pool_of(frame, TARGET), SM90, ranked)
    assert model.cv_metrics["n_problems"] == len(table_of(own, TARGET).problems)


def test_a_ranking_takes_no_teacher_of_another_arch(own: pd.DataFrame) -> None:
    other = replace(TARGET, arch="gfx942")
    settings = TrainSettings(teachers=(other,))
    with pytest.raises(ConfigError, match=rf"{other.name}: .* leave out teachers that are not of sm90, or set model"):
        train(own, TARGET, pool_of(own, TARGET), SM90, settings)


def test_the_benchmark_compares_on_the_same_problems(joined: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "COUNTS", (0, 8))
    points = list(benchmark.taught_curve(joined, SETTINGS.model, 2))
    whole = points[-1].problems
    assert [(p.method, p.problems) for p in points] == [
        ("taught", 0), ("alone", 8), ("taught", 8), ("alone", whole), ("taught", whole)
    ]  # fmt: skip
    assert whole > 8
    assert len({p.judged for p in points}) == 1
    assert all(0 < p.p10_efficiency <= p.mean_efficiency <= 1 for p in points)
