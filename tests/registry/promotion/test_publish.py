"""Publishing: plain files under the target's name, once per content, found again by every reader."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow.exceptions import MlflowException

from small_model import table, write_model
from synthetic import CONV
from tilewise.errors import ArtefactError
from tilewise.model import load_artefact, parts_of, write_artefact
from tilewise.ops import GroupedConvProblem
from tilewise.registry import (
    download_version,
    find_by_hash,
    has_files,
    list_aliases,
    list_targets,
    list_versions,
    load_downloaded,
)
from tilewise.registry.promotion import publish
from tilewise.registry.promotion._package_wheel import WHEELS
from tilewise.registry.training_runs import CONTENT_TAG


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def run_ids() -> set[str]:
    experiments = [e.experiment_id for e in mlflow.search_experiments()]
    return {r.info.run_id for r in mlflow.MlflowClient().search_runs(experiments)}


def test_a_first_version_is_candidate_and_says_what_it_is(registry: str, model_dir: Path) -> None:
    version = publish(model_dir)
    model = load_artefact(model_dir)
    assert (version.target, version.number, version.content_hash) == (CONV, 1, model.content_hash)
    of_model = {"content_hash": model.content_hash, "pool_hash": model.pool.hash, "label": "lambdarank"}
    assert version.tags == of_model | {"data_hash": "d" * 64, "git_revision": "unknown"}
    assert list_aliases(CONV) == {"candidate": 1}
    described = str(mlflow.MlflowClient().get_model_version(CONV, "1").description)
    assert "24 kernels" in described
    assert "| mean | 90.00 % |" in described
    assert version.run_id is not None
    run = mlflow.get_run(version.run_id)
    assert (run.info.run_name, run.data.tags["tilewise.target"]) == (f"publish {CONV}", CONV)


@pytest.mark.long
def test_the_logged_model_knows_its_version_and_figures(registry: str, model_dir: Path) -> None:
    version = publish(model_dir)
    assert version.model_id is not None
    logged = mlflow.get_logged_model(version.model_id)
    assert json.loads(logged.tags["mlflow.modelVersions"]) == [{"name": CONV, "version": "1"}]
    figures = {m.key: (m.value, m.dataset_name, m.dataset_digest) for m in logged.metrics or ()}
    assert figures["cv/mean_efficiency"] == (0.9, CONV, "d" * 32)
    folder = mlflow.artifacts.list_artifacts(artifact_uri=f"{logged.artifact_location}/{WHEELS}")
    assert [Path(entry.path).parent.name for entry in folder] == [WHEELS]


def test_a_model_without_parameters(registry: str, model_dir: Path, tmp_path: Path) -> None:
    write_artefact(tmp_path / "bare", replace(parts_of(load_artefact(model_dir)), manifest={}))
    assert publish(tmp_path / "bare").number == 1


def test_publishing_again_makes_no_version_and_no_run(registry: str, model_dir: Path, tmp_path: Path) -> None:
    first, runs = publish(model_dir), run_ids()
    assert publish(model_dir) == first
    assert publish(shutil.copytree(model_dir, tmp_path / "elsewhere")) == first
    assert [v.number for v in list_versions(CONV)] == [1]
    assert run_ids() == runs


@pytest.mark.long
def test_other_content_is_another_version(registry: str, model_dir: Path, tmp_path: Path) -> None:
    first = publish(model_dir)
    second = publish(write_model(tmp_path / "other", note="other"))
    assert (first.number, second.number) == (1, 2)
    assert list_aliases(CONV) == {"candidate": 2}
    publish(model_dir)
    assert list_aliases(CONV) == {"candidate": 1}
    assert find_by_hash(CONV, second.content_hash) == [second]


def test_it_joins_the_run_that_trained_it(registry: str, model_dir: Path) -> None:
    experiment = mlflow.create_experiment("mine", artifact_location=str(model_dir.parent / "runs"))
    with mlflow.start_run(experiment_id=experiment, tags={CONTENT_TAG: load_artefact(model_dir).content_hash}) as run:
        pass
    assert publish(model_dir, experiments=("mine",)).run_id == run.info.run_id
    assert run_ids() == {run.info.run_id}


@pytest.mark.long
def test_deleted_files_are_published_again(registry: str, model_dir: Path, tmp_path: Path) -> None:
    first = publish(model_dir)
    shutil.rmtree(tmp_path / "store" / "mlartifacts")
    assert not has_files(first)
    with pytest.raises(ArtefactError, match=r"version 1 .* has no files for it any more"):
        download_version(first, tmp_path / "copy")
    second = publish(model_dir)
    assert (second.number, second.content_hash) == (2, first.content_hash)
    assert has_files(second)


def test_only_the_models_own_text_and_gzip_files_are_stored(registry: str, model_dir: Path, tmp_path: Path) -> None:
    (model_dir / "extra.pkl").write_bytes(b"not ours")
    version = publish(model_dir)
    copy = download_version(version, tmp_path / "copy")
    assert copy.name == "model"
    assert {p.suffix for p in (tmp_path / "copy").rglob("*") if p.is_file()} <= {".json", ".gz"}
    assert load_artefact(copy).content_hash == version.content_hash


def test_a_damaged_folder_is_refused_and_nothing_is_registered(registry: str, model_dir: Path) -> None:
    file = model_dir / "model_tflops.lgbm.gz"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ArtefactError, match=r"model_tflops\.lgbm\.gz"):
        publish(model_dir)
    assert list_targets() == []


@pytest.mark.long
def test_files_changed_in_the_registry_are_refused(registry: str, model_dir: Path, tmp_path: Path) -> None:
    """Changed consistently: each file is sound, but they differ from the published ones."""
    version = publish(model_dir)
    stored = next((tmp_path / "store").rglob("selftest.json")).parent
    shutil.rmtree(stored)
    write_model(stored, note="tampered")
    copy = download_version(version, tmp_path / "copy")
    with pytest.raises(ArtefactError, match=r"version 1 .*they were changed or damaged after publishing"):
        load_downloaded(version, copy)


@pytest.mark.long
def test_nothing_is_parsed_of_files_that_were_not_published(
    registry: str, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = publish(model_dir)
    copy = download_version(version, tmp_path / "copy")
    write_model(copy, note="tampered")
    monkeypatch.setattr("tilewise.registry._versions.load_artefact", lambda _: pytest.fail("parsed"))
    with pytest.raises(ArtefactError, match="changed or damaged after publishing"):
        load_downloaded(version, copy)


class TestLoadedByMlflow:
    """The model behind ``mlflow models serve``."""

    def test_it_selects_as_the_model_ranks(self, registry: str, model_dir: Path) -> None:
        publish(model_dir)
        problems = table()[list(GroupedConvProblem.column_names())].drop_duplicates().head(4)
        answer = mlflow.pyfunc.load_model(f"models:/{CONV}@candidate").predict(problems)
        model = load_artefact(model_dir)
        for (_, row), selected in zip(problems.iterrows(), answer.itertuples(), strict=True):
            problem = GroupedConvProblem(**row.to_dict())
            best = model.rank(problem)[0]
            assert selected.kernel_name == model.pool.names[best]
            assert selected.predicted_tflops == model.predict_tflops(problem)[best]

    def test_optional_dimensions_may_be_left_out_or_empty(self, model_dir: Path) -> None:
        from tilewise.registry.pyfunc import _load_pyfunc

        needed = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 1, "X": 1}
        model = _load_pyfunc(str(model_dir))
        alone = model.predict(pd.DataFrame([needed]))
        mixed = model.predict(pd.DataFrame([needed, {**needed, "stride_h": 2}]))
        assert mixed.iloc[0].equals(alone.iloc[0])

    def test_an_impossible_problem_is_named(self, model_dir: Path) -> None:
        from tilewise.registry.pyfunc import _load_pyfunc

        with pytest.raises(MlflowException, match=r"^row 0: C: must be divisible by G"):
            _load_pyfunc(str(model_dir)).predict(
                pd.DataFrame([{"N": 1, "C": 3, "K": 4, "G": 2, "Hi": 8, "Wi": 8, "Y": 1, "X": 1}])
            )
