"""The log of a training in MLflow: one run with everything worth comparing, and a child run per trial."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import pytest

from logged import log_training
from small_model import table
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.registry.promotion import publish
from tilewise.registry.training_runs import open_experiment
from tilewise.train import ModelSettings, TrainingResult, TrainSettings, TuneSettings, pool_of, train


class TestLogTraining:
    @pytest.fixture(scope="class")
    @staticmethod
    def result() -> TrainingResult:
        settings = TrainSettings(
            model=ModelSettings(n_estimators=8, num_leaves=7),
            tune=TuneSettings(n_trials=2, n_estimators=4, n_folds=2, space={"num_leaves": (4, 8)}),
            n_splits=2,
            threads=1,
        )
        target = Target.parse(CONV)
        return train(table(), target, pool_of(table(), target), load_arch(target.arch), settings)

    @pytest.fixture
    def model_dir(self, result: TrainingResult, tmp_path: Path) -> Path:
        write_artefact(tmp_path / "model", result.parts)
        return tmp_path / "model"

    @pytest.mark.long
    def test_everything_worth_comparing_is_logged(
        self, registry: str, result: TrainingResult, model_dir: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "curve.png").write_bytes(b"png")
        run_id = log_training(result, model_dir, [tmp_path / "curve.png"])
        client = mlflow.MlflowClient()
        run = client.get_run(run_id)
        assert client.get_experiment(run.info.experiment_id).name == CONV
        assert run.info.status == "FINISHED"
        assert run.data.params["n_splits"] == "2"
        assert run.data.params["pool_size"] == "24"
        assert run.data.metrics["cv/mean_efficiency"] == pytest.approx(result.cv_metrics["mean_efficiency"])
        for fold in result.folds:
            assert run.data.metrics[f"fold_{fold.fold}/mean_efficiency"] == fold.metrics["mean_efficiency"]
        for by, points in (("by_problems", result.by_problems), ("by_trees", result.by_trees)):
            curve = client.get_metric_history(run_id, f"{by}/p10_efficiency")
            assert {m.step: m.value for m in curve} == {p.n: p.p10_efficiency for p in points}
        assert run.data.tags["tilewise.data_hash"] == result.data_hash
        assert run.inputs is not None
        (used,) = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == (CONV, result.data_hash[:32])
        assert [t.value for t in used.tags] == ["training"]
        columns = json.loads(str(used.dataset.schema))["mlflow_colspec"]
        assert {"type": "double", "name": "latency_ms", "required": False} in columns
        assert {"type": "long", "name": "tile_m", "required": True} in columns
        assert run.data.tags["tilewise.content_hash"] == load_artefact(model_dir).content_hash
        assert run.data.tags["tilewise.git_revision"]
        files = {f.path for folder in ("plots", "model_files") for f in client.list_artifacts(run_id, folder)}
        assert {"plots/curve.png", "model_files/model_tflops.lgbm.gz"} <= files
        importances = mlflow.artifacts.load_dict(f"runs:/{run_id}/feature_importances.json")
        assert [row[0] for row in importances["data"]] == list(result.feature_importances)

    def test_the_experiment_has_a_view_of_its_own(self, registry: str) -> None:
        client = mlflow.MlflowClient()
        number = open_experiment("new")
        view = json.loads(client.get_experiment(number).tags["mlflow.sharedViewState.tilewise"])
        assert {"metrics.`cv/p10_efficiency`", "tags.`gate_decision`"} <= set(view["selectedColumns"])
        assert {"BAR", "LINE", "PARALLEL"} == {chart["type"] for chart in view["compareRunCharts"]}
        assert f"#/experiments/{number}/runs?" in client.get_experiment(number).tags["mlflow.note.content"]

    def test_an_older_experiment_gets_the_view_and_keeps_its_note(self, registry: str) -> None:
        client = mlflow.MlflowClient()
        number = client.create_experiment("older", tags={"mlflow.note.content": "mine"})
        assert open_experiment("older") == number
        tags = client.get_experiment(number).tags
        assert "mlflow.sharedViewState.tilewise" in tags
        assert tags["mlflow.note.content"] == "mine"

    @pytest.mark.long
    def test_trials_are_child_runs(self, registry: str, result: TrainingResult, model_dir: Path) -> None:
        run_id = log_training(result, model_dir)
        runs = mlflow.search_runs(experiment_names=[CONV], output_format="list")
        children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == run_id]
        assert {c.info.run_name for c in children} == {f"trial {t.number}" for t in result.tuning.trials}
        assert all("num_leaves" in c.data.params and "objective" in c.data.metrics for c in children)

    @pytest.mark.long
    def test_publishing_joins_it(self, registry: str, result: TrainingResult, model_dir: Path) -> None:
        run_id = log_training(result, model_dir)
        assert publish(model_dir).run_id == run_id

    @pytest.mark.long
    def test_inside_mlflow_run_it_logs_to_that_run(
        self, registry: str, result: TrainingResult, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = mlflow.MlflowClient()
        given = client.create_run(open_experiment("mlflow run")).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", given)
        assert log_training(result, model_dir) == given
        assert "cv/mean_efficiency" in client.get_run(given).data.metrics
        assert log_training(result, model_dir) != given  # the second target of a multirun

    @pytest.mark.long
    def test_a_run_of_another_server_is_ignored(
        self, registry: str, result: TrainingResult, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
        assert log_training(result, model_dir) != "0" * 32
