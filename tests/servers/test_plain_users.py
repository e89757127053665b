"""Users of an MLflow server with MLflow's own roles alone, by which whoever registers a model manages it."""

from __future__ import annotations

from pathlib import Path

import pytest

from extras import has_extra
from registry.server import own_server
from tilewise.registry import commit_change, list_aliases, registry_session, settle_history
from tilewise.registry._versions import create_version

if not has_extra("servers"):
    pytest.skip("needs the extra 'servers': pip install 'tilewise[servers]'", allow_module_level=True)

from mlflow.server.auth.client import AuthServiceClient

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("servers"), pytest.mark.long]
TARGET = "grouped_conv_forward_bf16_sm90"


def test_a_user_registers_and_promotes_a_new_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To register a version of a model that does not exist is refused there, as if it were another's."""
    ini = tmp_path / "auth.ini"
    ini.write_text(
        "[mlflow]\ndefault_permission = READ\nadmin_username = boss\nadmin_password = of-the-boss-1\n"
        f"database_uri = sqlite:///{tmp_path}/auth.db\n"
        "authorization_function = mlflow.server.auth:authenticate_request_basic_auth\n"
    )

    def log_in(name: str, password: str) -> None:
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", name)
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", password)

    settings = {"MLFLOW_AUTH_CONFIG_PATH": str(ini), "MLFLOW_FLASK_SERVER_SECRET_KEY": "of-a-session"}
    with own_server(tmp_path, options=["--app-name", "basic-auth"], **settings) as uri:
        log_in("boss", "of-the-boss-1")
        AuthServiceClient(uri).create_user("ada", "of-ada-12345")
        log_in("ada", "of-ada-12345")
        with registry_session(uri):
            version = create_version(TARGET, f"tilewise:/{TARGET}", None, None, {}, "")
            assert commit_change(settle_history(TARGET), version.number, "promoted", "first", previous=None)
            assert list_aliases(TARGET) == {"production": 1}
