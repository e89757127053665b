"""Reaching MLflow: the choice of the URI, and clear, quick answers when nothing sound is there."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mlflow
import pytest

from small_model import table
from store import fresh_store
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.errors import ConfigError, RegistryUnavailableError
from tilewise.model.artefact import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.registry import tracking
from tilewise.registry.publish import publish
from tilewise.train import ModelSettings, TrainingResult, TrainSettings, TuneSettings, pool_of, train


class TestResolveUri:
    def test_given_before_environment_before_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert tracking.resolve_uri() == f"sqlite:///{tmp_path}/mlflow.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
        assert tracking.resolve_uri() == "http://elsewhere:5000"
        assert tracking.resolve_uri("sqlite:///here.db") == "sqlite:///here.db"

    def test_the_default_is_the_projects_also_from_a_folder_below(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "dvc.yaml").touch()
        (tmp_path / "docs" / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "docs" / "deep")
        assert tracking.resolve_uri() == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://user:secret@host:5000", "http://user:***@host:5000"),
        ("postgresql://user:se@cret@host/db", "postgresql://user:***@host/db"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_passwords_are_not_shown(uri: str, expected: str) -> None:
    assert tracking.shown(uri) == expected


def test_connect_makes_a_store_and_returns_its_uri(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new/folder/mlflow.db"
    assert tracking.is_missing(uri)
    with tracking.session(uri) as connected:
        assert connected == uri
        assert not tracking.is_missing(uri)
        experiment = mlflow.get_experiment(tracking.experiment_id("some"))
        assert experiment.artifact_location == f"{tmp_path}/new/folder/mlartifacts/some"


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """A server that answers every request with `answer`, or, with None, never."""
    if answer is None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer or b"")

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class TestUnreachable:
    """Each within seconds, and naming where."""

    @pytest.fixture(autouse=True)
    def _quick(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        assert time.monotonic() - start < 10

    def test_nobody_listens(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"does not answer.*http://127.0.0.1:9\).*refused"):
            tracking.connect("http://127.0.0.1:9")

    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        with listening(None) as uri, pytest.raises(RegistryUnavailableError, match=r"does not answer.*timed out"):
            tracking.connect(uri)

    def test_something_that_is_no_mlflow(self) -> None:
        with listening(b"<html>hello</html>") as uri, pytest.raises(RegistryUnavailableError, match="does not answer"):
            tracking.connect(uri)

    def test_passwords_stay_out_of_the_message(self) -> None:
        with pytest.raises(RegistryUnavailableError) as caught:
            tracking.connect("http://user:secret@127.0.0.1:9")
        assert "secret" not in str(caught.value)

    def test_a_database_server_that_is_away(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"database cannot be opened \(postgresql://u:\*\*\*@"):
            tracking.connect("postgresql://u:secret@127.0.0.1:9/mlflow")

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "mlflow.db").write_text("no database\n" * 100)
        with pytest.raises(RegistryUnavailableError, match=r"cannot be opened .*mlflow.db.*not a database"):
            tracking.connect(f"sqlite:///{tmp_path}/mlflow.db")

    def test_a_folder_that_cannot_be_made(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"cannot be opened \(sqlite:////proc/none/mlflow.db\)"):
            tracking.connect("sqlite:////proc/none/mlflow.db")

    @pytest.mark.parametrize("uri", ["ftp://host/path", "nonsense:x"])
    def test_a_uri_of_no_known_kind_is_the_callers_mistake(self, uri: str) -> None:
        with pytest.raises(ConfigError, match="is of no kind that MLflow knows"):
            tracking.connect(uri)


class TestOthersSettingsStay:
    def test_a_session_leaves_the_applications_server_alone(self, tmp_path: Path) -> None:
        own, ours = fresh_store(tmp_path / "own"), fresh_store(tmp_path / "ours")
        mlflow.set_tracking_uri(own)
        try:
            with tracking.session(ours):
                assert mlflow.get_tracking_uri() == ours
            assert mlflow.get_tracking_uri() == own
        finally:
            mlflow.set_tracking_uri(None)  # type: ignore[arg-type]

    def test_the_environment_is_not_changed_by_a_session(self, tmp_path: Path) -> None:
        before = dict(os.environ)
        with tracking.session(fresh_store(tmp_path)):
            pass
        changed = {k for k in before.keys() | os.environ.keys() if before.get(k) != os.environ.get(k)}
        assert not {k for k in changed if "HTTP" in k or "URI" in k}

    def test_patience_of_the_user_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "6")
        with tracking.session(fresh_store(tmp_path)):
            assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "6"


def test_an_experiment_that_was_deleted_comes_back(registry: str) -> None:
    first = tracking.experiment_id("some")
    mlflow.delete_experiment(first)
    assert tracking.experiment_id("some") == first
    assert mlflow.get_experiment(first).lifecycle_stage == "active"


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

    def test_everything_worth_comparing_is_logged(
        self, registry: str, result: TrainingResult, model_dir: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "curve.png").write_bytes(b"png")
        run_id = tracking.log_training(result, model_dir, [tmp_path / "curve.png"])
        client = mlflow.MlflowClient()
        run = client.get_run(run_id)
        assert client.get_experiment(run.info.experiment_id).name == CONV
        assert run.info.status == "FINISHED"
        assert run.data.params["n_splits"] == "2"
        assert run.data.params["pool_size"] == "24"
        assert run.data.metrics["cv/mean_efficiency"] == pytest.approx(result.cv_metrics["mean_efficiency"])
        folds = client.get_metric_history(run_id, "fold/mean_efficiency")
        assert [m.step for m in folds] == [0, 1]
        for by, points in (("by_problems", result.by_problems), ("by_trees", result.by_trees)):
            curve = client.get_metric_history(run_id, f"{by}/p10_efficiency")
            assert {m.step: m.value for m in curve} == {p.n: p.p10_efficiency for p in points}
        assert run.data.tags["data_hash"] == result.data_hash
        assert run.inputs is not None
        (used,) = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == (CONV, result.data_hash[:32])
        assert [t.value for t in used.tags] == ["training"]
        assert run.data.tags["content_hash"] == load_artefact(model_dir).content_hash
        assert run.data.tags["git_revision"]
        files = {f.path for folder in ("plots", "model_files") for f in client.list_artifacts(run_id, folder)}
        assert {"plots/curve.png", "model_files/model_tflops.lgbm.gz"} <= files
        importances = mlflow.artifacts.load_dict(f"runs:/{run_id}/feature_importances.json")
        assert [row[0] for row in importances["data"]] == list(result.feature_importances)

    def test_trials_are_child_runs(self, registry: str, result: TrainingResult, model_dir: Path) -> None:
        run_id = tracking.log_training(result, model_dir)
        runs = mlflow.search_runs(experiment_names=[CONV], output_format="list")
        children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == run_id]
        assert {c.info.run_name for c in children} == {f"trial {t.number}" for t in result.tuning.trials}
        assert all("num_leaves" in c.data.params and "objective" in c.data.metrics for c in children)

    def test_publishing_joins_it(self, registry: str, result: TrainingResult, model_dir: Path) -> None:
        run_id = tracking.log_training(result, model_dir)
        assert publish(model_dir).run_id == run_id

    def test_inside_mlflow_run_it_logs_to_that_run(
        self, registry: str, result: TrainingResult, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = mlflow.MlflowClient()
        given = client.create_run(tracking.experiment_id("mlflow run")).info.run_id
        monkeypatch.setenv("MLFLOW_RUN_ID", given)
        assert tracking.log_training(result, model_dir) == given
        assert "cv/mean_efficiency" in client.get_run(given).data.metrics
        assert tracking.log_training(result, model_dir) != given  # the second target of a multirun

    def test_a_run_of_another_server_is_ignored(
        self, registry: str, result: TrainingResult, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
        assert tracking.log_training(result, model_dir) != "0" * 32
