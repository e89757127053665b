"""Roles and keys: a trainer registers candidates, a promoter decides, and the key of the data opens no model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import mlflow
import pytest
import requests

from extras import has_extra
from registry.stress import RULES
from servers.conftest import Running
from small_model import table, write_model
from synthetic import CONV
from tilewise.cli.main import EXIT_ERROR, main
from tilewise.errors import UsageError
from tilewise.registry import CANDIDATE, find_by_number, list_aliases, list_versions, read_history, registry_session
from tilewise.registry._registered_models import HISTORY_SUFFIX
from tilewise.registry._versions import load_version
from tilewise.registry.promotion import _promote as promotion
from tilewise.registry.promotion import promote, publish

if not has_extra("servers"):
    pytest.skip("needs the extra 'servers': pip install 'tilewise[servers]'", allow_module_level=True)

from botocore.exceptions import ClientError
from mlflow.server.auth.client import AuthServiceClient

from tilewise.servers import Role, _roles, grant_role, run_stack
from tilewise.servers._object_store import DATA, MODELS, s3_client
from tilewise.servers._roles import Call, find_refusal

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("servers"), pytest.mark.timeout(900), pytest.mark.long]

LogIn = Callable[[Role], AbstractContextManager[None]]
MLFLOW = "/api/2.0/mlflow"
ID = "m-" + "0" * 32


class Trainer:
    """The rights of a user who may promote the target p, where only the logged model ID is registered."""

    def may_promote(self, target: str) -> bool:
        return target == "p"

    def is_registered(self, logged_model: str) -> bool:
        return logged_model == ID


@pytest.mark.parametrize(
    ("method", "path", "body", "may"),
    [
        ("POST", f"{MLFLOW}/model-versions/create", {"name": "t"}, True),
        ("POST", f"{MLFLOW}/registered-models/get-latest-versions", {"name": "t"}, True),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "t", "alias": "candidate"}, True),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "t", "alias": "production"}, False),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "t", "alias": "previous"}, False),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "t", "alias": "x", "Alias": "candidate"}, False),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "p", "alias": "production"}, True),
        ("POST", f"{MLFLOW}/registered-models/alias", {"name": "t", "NAME": "p", "alias": "production"}, False),
        ("POST", f"{MLFLOW}/registered-models/alias", {}, False),
        ("POST", f"{MLFLOW}/registered-models/alias", None, False),
        ("POST", "/ajax-api/2.0/mlflow/registered-models/alias", {"name": "t", "alias": "production"}, False),
        ("POST", "/api/2.0/preview/mlflow/registered-models/alias", {"name": "t", "alias": "production"}, False),
        ("DELETE", f"{MLFLOW}/registered-models/alias", {"name": "t", "alias": "candidate"}, False),
        ("POST", f"{MLFLOW}/registered-models/create", {"name": "p"}, False),
        ("POST", f"{MLFLOW}/registered-models/rename", {"name": "p", "new_name": "t"}, False),
        ("DELETE", f"{MLFLOW}/registered-models/delete", {"name": "t"}, False),
        ("POST", f"{MLFLOW}/registered-models/permissions/create", {"name": "t"}, False),
        ("POST", f"{MLFLOW}/model-versions/set-tag", {"name": "t", "key": "content_hash"}, False),
        ("POST", f"{MLFLOW}/model-versions/set-tag", {"name": "p", "key": "content_hash"}, True),
        ("POST", f"{MLFLOW}/model-versions/set-tag", {"name": "p.history", "key": "applied"}, True),
        ("PATCH", f"{MLFLOW}/model-versions/update", {"name": "t"}, False),
        ("POST", f"{MLFLOW}/model-versions/a-new-route", {"name": "t"}, False),
        ("PUT", f"/api/2.0/mlflow-artifacts/artifacts/1/models/{ID}/artifacts/x", None, False),
        ("DELETE", f"/api/2.0/mlflow-artifacts/artifacts/1/models/{ID}", None, False),
        ("POST", f"/api/2.0/mlflow-artifacts/mpu/create/1/models/{ID}/artifacts/x", None, False),
        ("DELETE", f"{MLFLOW}/logged-models/{ID}", None, False),
        ("POST", f"{MLFLOW}/artifacts/presigned-upload-url", {"model_id": ID, "path": "x"}, False),
        ("PUT", f"/api/2.0/mlflow-artifacts/artifacts/1/models/{ID.replace('0', '1')}/artifacts/x", None, True),
        ("POST", f"{MLFLOW}/experiments/create", {"name": "e"}, True),
        ("POST", f"{MLFLOW}/experiments/create", {"name": "e", "artifact_location": "s3://tilewise"}, False),
        ("POST", f"{MLFLOW}/experiments/create", {"name": "e", "artifactLocation": "s3://tilewise"}, False),
        ("POST", f"{MLFLOW}/experiments/create", None, False),
        ("POST", f"{MLFLOW}/runs/create", {"experiment_id": "1"}, True),
    ],
)  # fmt: skip
def test_what_a_trainer_may_ask_for(method: str, path: str, body: dict[str, object] | None, may: bool) -> None:
    assert (find_refusal(Call(method, path, {}, body), Trainer()) is None) == may


def test_the_address_counts_like_the_body() -> None:
    call = Call("DELETE", f"{MLFLOW}/registered-models/alias", {"name": "t"}, {"name": "p", "alias": "production"})
    assert find_refusal(call, Trainer()) == "only who may promote p and t may do this; ask one of them"


def test_percent_signs_hide_no_path() -> None:
    assert _roles._decoded("/models/%256d-0/a%2Fb") == "/models/m-0/a/b"


def test_words_agree_with_the_registry() -> None:
    assert (_roles.HISTORY_SUFFIX, _roles.CANDIDATE) == (HISTORY_SUFFIX, CANDIDATE)


def test_an_unknown_role() -> None:
    with pytest.raises(UsageError, match="a role is one of reader, trainer, promoter, got 'boss'"):
        grant_role("ada", "boss", CONV)  # type: ignore[arg-type]


class TestTeam:
    """On running servers, where a model is in production and a user has a role."""

    @pytest.fixture(autouse=True)
    def _no_plots(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(promotion, "log_plots", lambda *_: None)

    @pytest.fixture
    def served(self, admin: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Running:
        table().to_parquet(tmp_path / "data.parquet")
        with registry_session():
            promote(write_model(tmp_path / "first"), table(), RULES, tmp_path / "reports")
        monkeypatch.chdir(tmp_path)
        return admin

    @pytest.fixture
    def log_in(self, served: Running, user: tuple[str, str]) -> LogIn:
        """Return a context in which the user has a role."""

        @contextmanager
        def as_user(role: Role) -> Iterator[None]:
            with registry_session():
                grant_role(user[0], role, CONV)
            before = {name: os.environ[name] for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")}
            os.environ.update(zip(before, user, strict=True))
            try:
                yield
            finally:
                os.environ.update(before)

        return as_user

    def _state(self) -> object:
        with registry_session():
            production = find_by_number(CONV, list_aliases(CONV)["production"])
            assert production
            return (
                list_aliases(CONV)["production"],
                read_history(CONV),
                production,
                load_version(production).content_hash,
            )

    def _promote(self, model: Path) -> int:
        rules = ["gate.selection_time_factor=100", "gate.slices.n_resamples=200", "gate.min_problems=1"]
        return main(["promote", f"model_dir={model}", "data=data.parquet", *rules, "gate.override.reason=test"])

    def test_a_trainer_registers_and_a_promoter_promotes(
        self, served: Running, log_in: LogIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model = write_model(tmp_path / "mine", note=uuid.uuid4().hex)
        before = self._state()
        with log_in("trainer"), registry_session():
            version = publish(model)
            assert list_aliases(CONV)["candidate"] == version.number
        with log_in("trainer"):
            assert self._promote(model) == EXIT_ERROR
        err = capsys.readouterr().err
        assert "the MLflow server does not let you do this" in err
        told = f"{CONV} version {version.number} is registered, but the decision on it cannot be written; ask an"
        assert f"{told} administrator for a role that may" in err
        assert self._state() == before
        with log_in("promoter"):
            assert self._promote(model) == 0
            assert main(["rollback", f"target={CONV}", "reason=slow"]) == 0
        assert self._state() != before

    def test_a_trainer_cannot_change_what_is_served(
        self, served: Running, log_in: LogIn, user: tuple[str, str], tmp_path: Path
    ) -> None:
        with registry_session():
            version = publish(write_model(tmp_path / "mine", note=uuid.uuid4().hex))
            production = find_by_number(CONV, list_aliases(CONV)["production"])
            assert production
            model = re.fullmatch(r"models:/(m-\w+)", production.source)
            assert model
            root = mlflow.get_logged_model(model[1]).artifact_location.removeprefix("mlflow-artifacts:/")
        before, number = self._state(), str(version.number)
        file = f"mlflow-artifacts/artifacts/{root.strip('/')}/data/model/manifest.json"
        upload = {"model_id": model[1], "path": "data/model/manifest.json"}
        attacks: list[tuple[str, str, dict[str, str | int]]] = [
            ("POST", "mlflow/registered-models/alias", {"name": CONV, "alias": "production", "version": number}),
            ("POST", "mlflow/registered-models/alias", {"name": CONV, "alias": "previous", "version": number}),
            ("DELETE", "mlflow/registered-models/alias", {"name": CONV, "alias": "production"}),
            ("POST", "mlflow/registered-models/rename", {"name": CONV, "new_name": "other"}),
            ("DELETE", "mlflow/registered-models/delete", {"name": CONV}),
            ("POST", "mlflow/registered-models/create", {"name": "new.history"}),
            ("POST", "mlflow/model-versions/create", {"name": CONV + HISTORY_SUFFIX, "source": production.source}),
            ("POST", "mlflow/model-versions/set-tag",
             {"name": CONV, "version": str(production.number), "key": "content_hash", "value": version.content_hash}),
            ("PATCH", "mlflow/model-versions/update", {"name": CONV, "version": number, "description": "good"}),
            ("DELETE", "mlflow/model-versions/delete", {"name": CONV, "version": str(production.number)}),
            ("PUT", file, {}),
            ("PUT", file.replace("/data/", "/%2564ata/").replace("/m-", "/%256d-"), {}),
            ("DELETE", file, {}),
            ("POST", file.replace("artifacts/artifacts", "artifacts/mpu/create", 1), {"path": "x", "num_parts": 1}),
            ("POST", "mlflow/artifacts/presigned-upload-url", upload),
            ("POST", "mlflow/experiments/create", {"name": "x", "artifact_location": f"s3://{MODELS.bucket}/mlflow"}),
            ("POST", "mlflow/users/permissions/grant",
             {"username": user[0], "resource_type": "registered_model", "resource_id": CONV, "permission": "MANAGE"}),
        ]  # fmt: skip
        with log_in("trainer"):
            for method, route, body in attacks:
                for prefix in ("api", "ajax-api"):
                    url = f"{served.uri}/{prefix}/2.0/{route}"
                    answer = requests.request(method, url, json=body, auth=user, timeout=60)
                    assert answer.status_code == 403, (method, url, answer.status_code, answer.text)
        assert self._state() == before

    def test_a_role_replaces_the_one_before(self, served: Running, log_in: LogIn, user: tuple[str, str]) -> None:
        with registry_session():
            experiment = mlflow.get_experiment_by_name(CONV)
        assert experiment
        kinds = {"experiment": experiment.experiment_id, "registered_model": CONV}

        def rights() -> list[str]:
            client = AuthServiceClient(served.uri)
            names = [*kinds.items(), ("registered_model", CONV + HISTORY_SUFFIX)]
            return [client.get_user_permission(user[0], kind, name).permission for kind, name in names]

        found = {}
        roles: list[Role] = ["promoter", "trainer", "reader"]
        for role in roles:
            with log_in(role):
                pass
            found[role] = rights()
        assert found["promoter"] == ["EDIT", "MANAGE", "EDIT"]
        assert found["trainer"] == ["EDIT", "EDIT", "READ"]
        assert found["reader"] == ["READ", "READ", "READ"]

    def test_a_new_target_is_prepared_by_the_administrator(
        self, admin: Running, user: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And its first model promoted by a promoter, who may create neither experiments of others nor models."""
        target = CONV.replace("bf16", "fp16")
        with registry_session():
            grant_role(user[0], "promoter", target)
            assert (list_aliases(target), list_versions(target), read_history(target)) == ({}, [], [])
        assert main(["registry"]) == 0
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user[0])
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", user[1])
        with registry_session():
            done = promote(write_model(tmp_path / "m", target=target), table(target), RULES, tmp_path / "reports")
        assert done.in_production, done.reasons

    def test_nobody_without_a_user(self, served: Running) -> None:
        url = f"{served.uri}/api/2.0/mlflow/registered-models/search"
        assert requests.get(url, timeout=60).status_code == 401


class TestKeys:
    """DVC's key and MLflow's are of two accounts."""

    def test_the_key_of_the_data_opens_no_model(self, admin: Running) -> None:
        models, data = s3_client(admin.models), s3_client(admin.environment)
        models.put_object(Bucket=MODELS.bucket, Key="mlflow/model", Body=b"a model")
        attempts: list[Callable[[], object]] = [
            lambda: data.get_object(Bucket=MODELS.bucket, Key="mlflow/model"),
            lambda: data.list_objects_v2(Bucket=MODELS.bucket),
            lambda: data.put_object(Bucket=MODELS.bucket, Key="mlflow/model", Body=b"another"),
            lambda: data.delete_object(Bucket=MODELS.bucket, Key="mlflow/model"),
            lambda: data.delete_bucket(Bucket=MODELS.bucket),
            lambda: data.copy_object(
                Bucket=DATA.bucket, Key="stolen", CopySource={"Bucket": MODELS.bucket, "Key": "mlflow/model"}
            ),
        ]
        for attempt in attempts:
            with pytest.raises(ClientError, match=r"NoSuchBucket|AccessDenied|InvalidBucketName|403|404"):
                attempt()
        assert [b["Name"] for b in data.list_buckets()["Buckets"]] == [DATA.bucket]
        assert models.get_object(Bucket=MODELS.bucket, Key="mlflow/model")["Body"].read() == b"a model"

    def test_a_bucket_of_the_same_name_is_another(self, admin: Running) -> None:
        """Each account has names of its own."""
        data = s3_client(admin.environment)
        data.create_bucket(Bucket=MODELS.bucket)
        try:
            data.put_object(Bucket=MODELS.bucket, Key="mlflow/other", Body=b"not a model")
            with pytest.raises(ClientError, match="NoSuchKey"):
                s3_client(admin.models).get_object(Bucket=MODELS.bucket, Key="mlflow/other")
        finally:
            data.delete_object(Bucket=MODELS.bucket, Key="mlflow/other")
            data.delete_bucket(Bucket=MODELS.bucket)

    def test_swifts_own_interface_is_no_way_around(self, admin: Running) -> None:
        address, user = admin.environment["AWS_ENDPOINT_URL"], admin.environment["AWS_ACCESS_KEY_ID"]
        key = {"X-Auth-User": user, "X-Auth-Key": admin.environment["AWS_SECRET_ACCESS_KEY"]}
        token = requests.get(f"{address}/auth/v1.0", headers=key, timeout=60).headers.get("X-Auth-Token", "")
        url = f"{address}/v1/AUTH_{MODELS.account}/{MODELS.bucket}"
        for method in ("GET", "PUT", "DELETE", "POST"):
            for headers in ({}, {"X-Auth-Token": token}):
                answer = requests.request(method, f"{url}/mlflow/model", headers=headers, timeout=60)
                assert answer.status_code >= 400, (method, answer.status_code)

    def test_clients_have_no_key_of_the_models(self, admin: Running) -> None:
        secrets = json.loads((admin.folder / "settings.json").read_text())["secrets"]
        for name in ("environment", "admin"):
            assert secrets["s3-models"] not in (admin.folder / name).read_text()
        assert secrets["admin"] not in (admin.folder / "environment").read_text()

    def test_members_waive_no_rule_of_the_gate(self, admin: Running) -> None:
        assert admin.environment["TILEWISE_GATE_OVERRIDE"] == "off"
        assert "TILEWISE_GATE_OVERRIDE" not in admin.admin


def test_open_is_asked_for(tmp_path: Path) -> None:
    """MLflow asks for no user then; no file with an administrator's password remains."""
    (tmp_path / "admin").write_text("of an earlier start")
    with run_stack(tmp_path, open_to_all=True, workers=1) as stack:
        url = f"{stack.uri}/api/2.0/mlflow/registered-models/create"
        assert requests.post(url, json={"name": "anything"}, timeout=60).status_code == 200
        assert stack.admin_file is None
        assert not (tmp_path / "admin").exists()
    said = subprocess.run([sys.executable, "-m", "tilewise.servers", "--help"], capture_output=True, text=True).stdout
    assert "--open" in said
    assert "--auth" not in said
