"""A model folder: written atomically, with equal bytes for equal parts, and refused after any change of a file."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strategies import CONV_POOL, CONV_TARGET
from tilewise.arch import load_arch
from tilewise.errors import ArtefactError
from tilewise.features import CostModel, FeatureTable, Terms, feature_table, terms_of
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.triton import Kernel
from tilewise.model import (
    COST_MODEL_LABELS,
    LABELS,
    SCALED_LABELS,
    ArtefactParts,
    Ensemble,
    TrainedModel,
    load_artefact,
    ranked,
    read_parts,
    write_artefact,
)
from tilewise.model import _artefact as artefact
from tilewise.model import _artefact_files as files
from tilewise.model._artefact import parts_of
from tilewise.ops import GroupedConvProblem, Target
from tilewise.train.cost_model import calibrate

SM90 = load_arch("sm90")
TABLE = feature_table("grouped_conv")
POOL = Pool("grouped_conv", "forward", "bf16", CONV_POOL.kernels[::9])
LAYER = GroupedConvProblem(N=8, C=64, K=128, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
POINT = dataclasses.replace(LAYER, Y=1, X=1, pad_h=0, pad_w=0)
DEPTHWISE = dataclasses.replace(LAYER, G=64, K=64)
PROBLEMS = (LAYER, POINT, DEPTHWISE, dataclasses.replace(LAYER, C=3))


def matrix(table: FeatureTable, kernels: Any) -> np.ndarray:
    each = [table.matrix(p.to_dict(), kernels, variant="forward", dtype="bf16", arch=SM90) for p in PROBLEMS]
    return np.vstack(each)


def booster(x: np.ndarray, y: np.ndarray) -> str:
    params = {"verbose": -1, "num_threads": 1, "min_data_in_leaf": 1, "min_data_in_bin": 1, "num_leaves": 7}
    return str(lgb.train(params, lgb.Dataset(x, y), 20).model_to_string())


def calibrated() -> CostModel:
    """Return a cost model for the pool, calibrated on the clocks of the pipeline model for the problems."""
    rows = [TABLE.rows_of(p.to_dict(), POOL.columns, variant="forward", dtype="bf16", arch=SM90) for p in PROBLEMS]
    each = [terms_of(TABLE, r) for r in rows]
    terms = Terms(*(np.concatenate([getattr(t, n) for t in each]) for n in ("costs", "drivers", "program")))
    clocks = np.concatenate([np.broadcast_to(r.launch_clocks, r.n_rows) for r in rows])  # type: ignore[attr-defined]
    return calibrate(terms, np.tile(np.arange(len(POOL)), len(rows)), np.log(clocks), np.ones(len(clocks)), len(POOL))


def make_parts(label: str = "relative", table: FeatureTable = TABLE, **change: Any) -> ArtefactParts:
    x = matrix(table, POOL.columns)
    estimate = matrix(TABLE.select(["estimated_efficiency_log2"]), POOL.columns)[:, 0]
    best = np.array([40.0, 20.0, 2.0, 10.0])
    parts: dict[str, Any] = {
        "target": CONV_TARGET,
        "pool": POOL,
        "arch": SM90,
        "features": table,
        "label": label,
        "booster_text": booster(x, estimate if label == "relative" else np.exp2(estimate) * 4),
        "scale_text": booster(matrix(table.of_role("problem"), {}), np.log(best)) if label in SCALED_LABELS else None,
        "cv_metrics": {"mean_efficiency": 0.97},
        "feature_importances": {"tile_m": 1.0},
        "manifest": {"data_hash": "abc"},
        "selftest_problems": PROBLEMS[:3],
        "extra_boosters": {"latency": booster(x, -estimate)},
        "cost_model": calibrated() if label in COST_MODEL_LABELS else None,
    }
    return ArtefactParts(**(parts | change))


@pytest.fixture(scope="module")
def parts() -> ArtefactParts:
    return make_parts()


@pytest.fixture(scope="module")
def written(parts: ArtefactParts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / CONV_TARGET.name
    write_artefact(folder, parts)
    return folder


@pytest.fixture(scope="module")
def model(written: Path) -> TrainedModel:
    return load_artefact(written)


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """Return a copy to damage."""
    return Path(shutil.copytree(written, tmp_path / written.name))


# ---- contents -------------------------------------------------------------------------------------------------------


def test_the_folder_holds_the_promised_files(written: Path) -> None:
    assert {p.name for p in written.iterdir()} == {
        "model_tflops.lgbm.gz", "model_scale.lgbm.gz", "model_latency.lgbm.gz", "feature_spec.json", "pool.json",
        "cv_metrics_tflops.json", "feature_importances_tflops.json", "train_manifest.json", "selftest.json",
    }  # fmt: skip


def test_a_model_comes_back_as_it_was_written(model: TrainedModel, parts: ArtefactParts) -> None:
    assert (model.target, model.pool, model.arch, model.label) == (CONV_TARGET, POOL, SM90, "relative")
    assert model.features.names == TABLE.names
    assert model.manifest == parts.manifest
    assert model.cv_metrics == parts.cv_metrics


def test_equal_parts_give_equal_bytes(written: Path, parts: ArtefactParts, tmp_path: Path) -> None:
    write_artefact(tmp_path / "again", parts)
    for path in written.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()
    assert load_artefact(tmp_path / "again").content_hash == load_artefact(written).content_hash


@pytest.mark.parametrize("label", ["relative", "lambdarank"])
def test_parts_that_were_read_give_the_same_model_again(label: str, tmp_path: Path) -> None:
    change: dict[str, Any] = {} if label == "relative" else {"scale_text": None, "shortlist": 2}
    write_artefact(tmp_path / "a", make_parts(label, **change))
    write_artefact(tmp_path / "b", read_parts(tmp_path / "a"))
    assert files.read_files(tmp_path / "b") == files.read_files(tmp_path / "a")


def test_the_content_hash_follows_the_content_alone(folder: Path, model: TrainedModel) -> None:
    (folder / "notes.txt").write_text("no part of the model")
    assert load_artefact(folder).content_hash == files.folder_hash(folder) == model.content_hash
    other = make_parts(manifest={"data_hash": "abd"})
    write_artefact(folder, other)
    assert load_artefact(folder).content_hash != model.content_hash


def test_features_are_described_in_the_folder(written: Path) -> None:
    spec = json.loads((written / "feature_spec.json").read_text())
    assert [f["name"] for f in spec["features"]] == list(TABLE.names)
    for described, feature in zip(spec["features"], TABLE.features, strict=True):
        stated = {"name": feature.name, "unit": feature.unit, "role": feature.role, "meaning": feature.meaning}
        assert described == stated
    assert spec["arch"]["name"] == "sm90"


def test_writing_replaces_the_previous_folder(folder: Path) -> None:
    (folder / "leftover").touch()
    write_artefact(folder, make_parts("log1p", extra_boosters={}))
    assert "leftover" not in {p.name for p in folder.iterdir()}
    assert "model_scale.lgbm.gz" not in {p.name for p in folder.iterdir()}
    assert load_artefact(folder).label == "log1p"


# ---- predictions ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("label", LABELS)
def test_predictions_are_tflops(label: str, tmp_path: Path) -> None:
    parts = make_parts(label)
    write_artefact(tmp_path / "m", parts)
    model = load_artefact(tmp_path / "m")
    for problem in PROBLEMS:
        rows = TABLE.matrix(problem.to_dict(), POOL.columns, variant="forward", dtype="bf16", arch=SM90)
        scores = np.asarray(lgb.Booster(model_str=parts.booster_text).predict(rows, num_threads=1))
        if label in COST_MODEL_LABELS:
            inputs = TABLE.rows_of(problem.to_dict(), POOL.columns, variant="forward", dtype="bf16", arch=SM90)
            assert parts.cost_model is not None
            clocks = parts.cost_model.log_clocks(terms_of(TABLE, inputs), np.arange(len(POOL)))
            scores = np.log(problem.flops * 1980e6 / 1e12) - clocks + scores
        can = model.supported(problem)
        predicted = model.predict_tflops(problem)
        assert (predicted > 0).all()
        assert model.score(problem) == pytest.approx(np.where(can, scores, -np.inf))
        if label not in COST_MODEL_LABELS:
            assert model.score(problem).tobytes() == np.where(can, scores, -np.inf).tobytes()
        if label == "log1p":
            assert predicted[can] == pytest.approx(np.maximum(np.expm1(scores), 1e-9)[can])
            continue
        problem_rows = rows[:1, [i for i, f in enumerate(TABLE.features) if f.role == "problem"]]
        scale = 0.0
        if parts.scale_text is not None:
            scale = np.asarray(lgb.Booster(model_str=parts.scale_text).predict(problem_rows)).item()
        assert predicted[can] == pytest.approx(np.exp(scores + scale)[can])


def test_trees_score_the_shortlist_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_artefact(tmp_path / "m", make_parts("residual", shortlist=3))
    model, scored = load_artefact(tmp_path / "m"), list[int]()
    predict = Ensemble.predict

    def counted(trees: Ensemble, matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        scored.append(len(matrix))
        return predict(trees, matrix)

    monkeypatch.setattr(Ensemble, "predict", counted)
    can = np.flatnonzero(model.supported(LAYER))
    kernels = {n: column[can] for n, column in POOL.columns.items()}
    scores = model.score_candidates(np.zeros_like(can), LAYER.to_dict(), kernels)
    assert len(scores) == len(can) > 3
    assert scored == [3]


def test_extra_models_predict_their_own_quantity(model: TrainedModel) -> None:
    latency = model.predict_extra("latency", LAYER)
    assert latency.shape == (len(POOL),)
    assert (latency > 0).all()
    with pytest.raises(ArtefactError, match="trained without bandwidth"):
        model.predict_extra("bandwidth", LAYER)


@pytest.mark.long
@pytest.mark.parametrize(("label", "shortlist"), [("relative", 0), ("residual", 0), ("residual", 3)])
@pytest.mark.parametrize("core", ["c", "numpy"])
def test_whole_tables_score_as_single_problems(
    label: str, shortlist: int, core: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWISE_CORE", core)
    write_artefact(tmp_path / "m", make_parts(label, shortlist=shortlist))
    model = load_artefact(tmp_path / "m")
    rows = [(i, p, k) for i, p in enumerate(PROBLEMS) for k in np.flatnonzero(model.supported(p))]
    number = np.array([i for i, _, _ in rows])
    problems = {n: np.array([getattr(p, n) for _, p, _ in rows]) for n in GroupedConvProblem.column_names()}
    kernels = {n: np.array([getattr(POOL.kernels[k], n) for _, _, k in rows]) for n in Kernel.column_names()}
    each = [model.score(p) for p in PROBLEMS]
    expected = np.concatenate([scores[scores > -np.inf] for scores in each])
    assert model.score_candidates(number, problems, kernels).tobytes() == expected.tobytes()
    alone = model.score_rows(problems, kernels)
    assert (alone == expected).all() == (shortlist == 0)
    for p, scores in zip(PROBLEMS, each, strict=True):
        assert model.rank(p).tolist() == ranked(scores).tolist()
        assert set(model.rank(p)) == set(np.flatnonzero(model.supported(p)))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_ranking_holds_the_supported_kernels_best_first(model: TrainedModel, problem: GroupedConvProblem) -> None:
    rank, scores = model.rank(problem), model.score(problem)
    supported = {i for i, k in enumerate(POOL.kernels) if unsupported(k, problem, "forward", POOL.dtype) is None}
    assert set(rank.tolist()) == supported == set(np.flatnonzero(model.supported(problem)).tolist())
    assert 0 in rank  # the default
    order = [(-scores[i], i) for i in rank]
    assert order == sorted(order)  # ties in the pool's order
    assert model.rank(problem, 3).tolist() == rank[:3].tolist()
    assert model.rank(problem).tobytes() == rank.tobytes()


def test_a_problem_that_no_kernel_supports_has_an_empty_ranking(model: TrainedModel) -> None:
    assert len(model.rank(dataclasses.replace(LAYER, N=2**20))) == 0


def test_a_model_of_an_older_smaller_schema_still_loads(tmp_path: Path) -> None:
    old = TABLE.select([n for n in TABLE.names if not n.startswith(("hw_", "wave_", "estimated"))])
    write_artefact(tmp_path / "old", make_parts(table=old))
    model = load_artefact(tmp_path / "old")
    assert model.features.names == old.names
    assert len(model.rank(LAYER)) > 0


# ---- refusals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": "rank"}, "label must be one of residual, regret, lambdarank, relative, log1p, got 'rank'"),
        ({"scale_text": None}, "label 'relative' needs scale_text, only lambdarank, relative may have it"),
        ({"shortlist": 3}, "a shortlist needs a cost model; set shortlist=0"),
        ({"label": "log1p"}, "only lambdarank, relative may have it, got 'log1p'"),
        ({"extra_boosters": {"energy": ""}}, "extra boosters may be latency, bandwidth, got energy"),
        (
            {"arch": load_arch("gfx942")},
            "the hardware profile is of gfx942, but the model is of grouped_conv_forward_bf16_sm90",
        ),
        ({"features": feature_table("gemm")}, "the features are of gemm"),
        ({"target": Target.parse("grouped_conv_forward_fp16_sm90")}, "the pool is of grouped_conv forward bf16"),
    ],
)
def test_parts_that_do_not_belong_together(parts: ArtefactParts, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        dataclasses.replace(parts, **change)


def test_a_booster_of_other_features_is_not_written(parts: ArtefactParts, tmp_path: Path) -> None:
    foreign = dataclasses.replace(parts, features=TABLE.select(TABLE.names[:-1]))
    count = len(TABLE.names)
    with pytest.raises(
        ArtefactError, match=rf"model_tflops.* takes {count} features, feature_spec.json describes {count - 1}"
    ):
        write_artefact(tmp_path / "m", foreign)
    assert not (tmp_path / "m").exists()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtefactError, match="nowhere: no such folder; `tilewise train` writes one"):
        load_artefact(tmp_path / "nowhere")


@pytest.mark.parametrize("name", files.REQUIRED)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ArtefactError, match=f"{name}: missing, the model is incomplete; train or fetch it again"):
        load_artefact(folder)


def sign(folder: Path) -> None:
    """Record the digests of a folder's files in its self-test, so that the checks behind the digests are reached."""
    present = [p for p in folder.iterdir() if p.name in (*files.REQUIRED, *files.OPTIONAL) and p.name != files.SELFTEST]
    selftest = json.loads((folder / files.SELFTEST).read_bytes())
    selftest["files"] = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in present}
    (folder / files.SELFTEST).write_text(json.dumps(selftest))


def test_a_missing_scale_is_named(folder: Path) -> None:
    (folder / "model_scale.lgbm.gz").unlink()
    with pytest.raises(ArtefactError, match=r"model_scale\.lgbm\.gz is not the file that was written with this model"):
        load_artefact(folder)
    sign(folder)
    with pytest.raises(
        ArtefactError, match=r"label 'relative' is unknown, or model_scale\.lgbm\.gz is missing or superfluous"
    ):
        load_artefact(folder)


def _gzip(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda data: gzip.compress(change(gzip.decompress(data)), mtime=0)


def _json(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def edit(data: bytes) -> bytes:
        value = json.loads(data)
        change(value)
        return json.dumps(value).encode()

    return edit


DAMAGES: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("model_tflops.lgbm.gz", lambda b: b[: len(b) // 2], "model_tflops.lgbm.gz: cut off; fetch it again"),
    ("model_tflops.lgbm.gz", lambda b: b"", "model_tflops.lgbm.gz: cut off"),
    ("model_tflops.lgbm.gz", lambda b: b"not gzip at all", "model_tflops.lgbm.gz: damaged"),
    ("model_tflops.lgbm.gz", lambda b: b[:200] + b"x" + b[201:], "model_tflops.lgbm.gz: damaged"),
    ("model_tflops.lgbm.gz", _gzip(lambda b: b"\xff\xfe"), "model_tflops.lgbm.gz: damaged"),
    ("model_tflops.lgbm.gz", _gzip(lambda b: b[:-1] + b" "), "model_tflops.lgbm.gz is not the file that was written"),
    ("model_scale.lgbm.gz", lambda b: b[:-3], "model_scale.lgbm.gz: cut off"),
    ("model_latency.lgbm.gz", lambda b: b[:-3], "model_latency.lgbm.gz: cut off"),
    ("feature_spec.json", lambda b: b[:-9], "feature_spec.json is not valid JSON"),
    ("feature_spec.json", lambda b: b"[]", "feature_spec.json must be a JSON object, got list"),
    ("feature_spec.json", lambda b: b"{}", "feature_spec.json: target is missing; fetch the model again"),
    ("feature_spec.json", _json(lambda v: v.update(schema_hash="0")), r"feature_spec.json: .*schema hash '0', here"),
    ("feature_spec.json", _json(lambda v: v["features"].reverse()), "are defined differently in this library"),
    ("feature_spec.json", _json(lambda v: v["features"][0].update(name="n")), "no feature of grouped_conv: n"),
    ("feature_spec.json", _json(lambda v: v.update(shortlist=3)), "shortlist of 3 kernels is invalid for label 'rela"),
    ("feature_spec.json", _json(lambda v: v.update(shortlist="all")), "shortlist must be a whole number"),
    ("feature_spec.json", _json(lambda v: v["target"].update(op="x")), r"feature_spec\.json: .*op 'x' is unknown"),
    ("feature_spec.json", _json(lambda v: v["target"].update(dtype="fp16")), "the pool is of grouped_conv forward"),
    ("feature_spec.json", _json(lambda v: v["arch"].update(l2_bytes=-1)), "arch.l2_bytes must be a whole number"),
    ("feature_spec.json", _json(lambda v: v["arch"].update(peak_tflops="x")), "arch.peak_tflops must be an object"),
    ("feature_spec.json", _json(lambda v: v["arch"].update(clock_mhz=1981)), "feature_spec.json is not the file"),
    ("feature_spec.json", _json(lambda v: v.update(label="log1p")), "label 'log1p' is unknown, or model_scale"),
    ("pool.json", lambda b: b"nothing", "pool.json is not valid JSON"),
    ("pool.json", _json(lambda v: v["kernels"].pop()), "pool.json: the pool's names or hash do not match its kernels"),
    ("pool.json", _json(lambda v: v.update(Pool("grouped_conv", "forward", "bf16", POOL.kernels[1:]).to_dict())),
     "selftest.json: pool.json is not the file that was written with this model"),
    ("train_manifest.json", _json(lambda v: v.update(data_hash="other")), "train_manifest.json is not the file"),
    ("cv_metrics_tflops.json", lambda b: b"\x00", "cv_metrics_tflops.json is not valid JSON"),
    ("feature_importances_tflops.json", lambda b: b"[" * 100_000, "feature_importances_tflops.json is not valid JSON"),
    ("selftest.json", lambda b: b"{}", "selftest.json: schema_hash is missing; fetch the model"),
    ("selftest.json", _json(lambda v: v.pop("problems")), "selftest.json: problems is missing; fetch the model"),
    ("selftest.json", _json(lambda v: v.update(files=[])), "selftest.json: files must be an object, got "),
    ("selftest.json", _json(lambda v: v.update(pool_hash="0")), "selftest.json: pool_hash is '0', the model has"),
    ("selftest.json", _json(lambda v: v.update(schema_hash="0")), "selftest.json: schema_hash is '0', the model has"),
    ("selftest.json", _json(lambda v: v["problems"][1]["problem"].update(N=-1)), "selftest.json: N: must be at least"),
    ("selftest.json", _json(lambda v: v["problems"][1]["ranking"].reverse()), "problem 1: the ranking differs"),
    ("selftest.json", _json(lambda v: v["problems"][2]["scores"].append(0.0)), "selftest.json is damaged"),
    ("selftest.json", _json(lambda v: v["problems"][2]["scores"].sort(reverse=True)), "problem 2: scores differ"),
    ("selftest.json", _json(lambda v: v["problems"][0]["features"].clear()),
     "problem 0: .* ranks among the best, but did not in training; this library's formulas differ .*; train again"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "message"), DAMAGES)
def test_damage_is_named(folder: Path, name: str, damage: Callable[[bytes], bytes], message: str) -> None:
    path = folder / name
    path.write_bytes(damage(path.read_bytes()))
    if name != files.SELFTEST:
        unsigned = rf"selftest\.json: {name} is not the file that was written with this model; fetch it again"
        with pytest.raises(ArtefactError, match=unsigned):
            load_artefact(folder)
        if "is not the file" in message:
            return
        sign(folder)
    with pytest.raises(ArtefactError, match=message) as e:
        load_artefact(folder)
    assert str(e.value).count(str(folder)) == 1


def test_a_pool_need_not_name_its_default(folder: Path) -> None:
    path = folder / "pool.json"
    path.write_bytes(_json(lambda v: v.pop("default"))(path.read_bytes()))
    sign(folder)
    assert load_artefact(folder).pool == POOL


@pytest.mark.parametrize("label", [*COST_MODEL_LABELS, "log1p"])
def test_labels_with_a_cost_model_are_named(label: str) -> None:
    other = None if label in COST_MODEL_LABELS else calibrated()
    with pytest.raises(ArtefactError, match=f"labels {', '.join(COST_MODEL_LABELS)} need a cost model"):
        make_parts(label, cost_model=other)


def test_parts_of_a_damaged_folder_name_it(folder: Path) -> None:
    unverified = load_artefact(folder, verify=False)
    (folder / files.SELFTEST).write_text("[]")
    damaged = load_artefact(folder, verify=False)
    assert parts_of(unverified).selftest_problems == list(PROBLEMS[:3])
    with pytest.raises(ArtefactError) as e:
        parts_of(damaged)
    assert str(e.value).startswith(f"{folder}: {files.SELFTEST} must be a JSON object, got list")


def test_nothing_is_parsed_before_its_digest_is_checked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []

    def read(_: Any, name: str, __: str) -> None:
        parsed.append(name)

    monkeypatch.setattr(artefact, "read_json", read)
    (folder / "feature_importances_tflops.json").write_text(json.dumps({f"feature {i}": 1.0 for i in range(100)}))
    with pytest.raises(ArtefactError, match=r"feature_importances_tflops\.json is not the file that was written"):
        load_artefact(folder)
    assert parsed == []


def test_a_bomb_does_not_unpack(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_MODEL_BYTES", 1 << 20)
    (folder / "model_tflops.lgbm.gz").write_bytes(gzip.compress(b"0" * (1 << 23)))
    sign(folder)
    with pytest.raises(ArtefactError, match=r"model_tflops\.lgbm\.gz: unpacks to more than 1048576 bytes"):
        load_artefact(folder)


@pytest.mark.long
@pytest.mark.parametrize("name", ["model_tflops.lgbm.gz", "model_latency.lgbm.gz", "estimate.json.gz", "trust.json.gz"])
def test_a_file_that_unpacks_to_far_more_is_refused(tmp_path: Path, name: str) -> None:
    """A text of 260 kB packed may unpack to 256 MB, and take gigabytes when it is parsed."""
    folder = tmp_path / "m"
    write_artefact(folder, make_parts("residual"))
    (folder / name).write_bytes(gzip.compress(b"[" + b"[]," * (20 << 20) + b"[]]"))
    sign(folder)
    with pytest.raises(ArtefactError, match=rf"{name}: unpacks to more than \d+ bytes, so it was not written by tilew"):
        load_artefact(folder)


def test_a_text_of_exactly_the_limit_unpacks() -> None:
    assert files.unpack_text(files.pack_text("x" * 1000), 1000) == "x" * 1000
    with pytest.raises(ArtefactError, match="unpacks to more than 999 bytes"):
        files.unpack_text(files.pack_text("x" * 1000), 999)


@pytest.mark.long
@pytest.mark.parametrize("name", ["feature_importances_tflops.json", "cv_metrics_tflops.json", "train_manifest.json"])
def test_a_large_json_file_is_refused(folder: Path, name: str) -> None:
    (folder / name).write_text(json.dumps({str(i): 1.0 for i in range(400_000)}))
    sign(folder)
    with pytest.raises(ArtefactError, match=f"{name}: larger than 4194304 bytes"):
        load_artefact(folder)


@pytest.mark.long
def test_a_cost_model_of_countless_programs_is_refused(tmp_path: Path) -> None:
    """Its weights would take an array of programs times kernels."""
    write_artefact(tmp_path / "m", make_parts("residual"))
    path = tmp_path / "m" / "estimate.json.gz"
    damage = _gzip(_json(lambda v: v.update(programs=[0] * 1_000_000)))
    path.write_bytes(damage(path.read_bytes()))
    sign(tmp_path / "m")
    with pytest.raises(ArtefactError, match=r"estimate.json.gz: the cost model may have at most 4096 programs"):
        load_artefact(tmp_path / "m")


def test_a_huge_file_is_not_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_FILE_BYTES", 1000)
    with pytest.raises(ArtefactError, match="larger than 1000 bytes"):
        load_artefact(folder)


def test_a_folder_in_a_files_place_is_named(folder: Path) -> None:
    (folder / "pool.json").unlink()
    (folder / "pool.json").mkdir()
    with pytest.raises(ArtefactError, match=r"pool\.json: cannot be read: Is a directory"):
        load_artefact(folder)


@pytest.mark.parametrize(("what", "message"), [("run_bytes", "problem 0: feature run_bytes of"), ("N", "feature N of")])
def test_a_feature_that_means_something_else_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, what: str, message: str
) -> None:
    """The names agree and the values differ, which no hash of names can detect."""

    def changed(op: str) -> FeatureTable:
        wrong = [dataclasses.replace(f, compute=lambda i: 77) if f.name == what else f for f in TABLE.features]
        return FeatureTable(op, tuple(wrong), TABLE.inputs)

    monkeypatch.setattr(artefact, "feature_table", changed)
    with pytest.raises(ArtefactError, match=message):
        load_artefact(folder)
    assert load_artefact(folder, verify=False)


@given(st.data())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_never_goes_unseen(folder: Path, model: TrainedModel, data: st.DataObject) -> None:
    path = folder / data.draw(st.sampled_from(sorted(p.name for p in folder.iterdir())))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([data.draw(st.integers(0, 255))]) + whole[at + 1 :])
    try:
        loaded = load_artefact(folder)
    except ArtefactError:
        pass
    else:  # the same byte, or one of the self-test that means the same
        assert loaded.rank(LAYER).tobytes() == model.rank(LAYER).tobytes()
        assert loaded.pool == model.pool
    finally:
        path.write_bytes(whole)


def test_loading_needs_numpy_alone(written: Path) -> None:
    """Cold start counts: no lightgbm, pandas, mlflow or yaml on the way to a ranking."""
    code = (
        "import sys; from tilewise.model import load_artefact; from tilewise.ops import GroupedConvProblem; "
        f"m = load_artefact({str(written)!r}); "
        "print(len(m.rank(GroupedConvProblem(N=1, C=8, K=8, G=1, Hi=8, Wi=8, Y=1, X=1)))); "
        "heavy = {'lightgbm', 'pandas', 'mlflow', 'yaml', 'optuna', 'hydra', 'sklearn', 'torch', 'triton', 'pyarrow'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    env = {"PYTHONPATH": ":".join(sys.path), "PATH": ""}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    ranked, heavy = out.stdout.split("\n")[:2]
    assert int(ranked) > 0
    assert heavy == "[]"
