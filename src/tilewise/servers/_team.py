"""The roles of a team's members on its MLflow server, as grants that :mod:`tilewise.servers._roles` understands."""

from __future__ import annotations

from typing import Literal

import mlflow
from mlflow.exceptions import MlflowException
from mlflow.server.auth.client import AuthServiceClient

from tilewise.errors import UsageError
from tilewise.servers._roles import HISTORY_SUFFIX

Role = Literal["reader", "trainer", "promoter"]
_ROLES: dict[str, tuple[str | None, str | None, str | None]] = {  # of experiment, registered model, history
    "reader": (None, None, None),
    "trainer": ("EDIT", "EDIT", None),
    "promoter": ("EDIT", "MANAGE", "EDIT"),  # MLflow lets MANAGE remove a tag, as a rollback does
}


def grant_role(user: str, role: Role, target: str) -> None:
    """Give a user a role for a target in place of the one before, and prepare the target if it is new.

    The environment names the server and an administrator (``. build/servers/admin``).

    Args:
        user: Name of an existing user.
        role: ``reader``: select. ``trainer``: also train, and register candidates. ``promoter``: also promote and roll
            back.
        target: Name of the target.

    Raises:
        UsageError: There is no such role.
        mlflow.exceptions.MlflowException: The server refuses, or it knows no such user.
    """
    if role not in _ROLES:
        raise UsageError(f"a role is one of {', '.join(_ROLES)}, got {role!r}")
    client = AuthServiceClient(mlflow.get_tracking_uri())
    client.get_user(user)
    names = [_experiment(target), _model(target), _model(target + HISTORY_SUFFIX)]
    kinds = ["experiment", "registered_model", "registered_model"]
    for kind, name, permission in zip(kinds, names, _ROLES[role], strict=True):
        _revoke(client, user, kind, name)
        if permission:
            client.grant_user_permission(user, kind, name, permission)


def _experiment(name: str) -> str:
    client = mlflow.MlflowClient()
    found = client.get_experiment_by_name(name)
    return str(found.experiment_id if found else client.create_experiment(name))


def _model(name: str) -> str:
    try:
        mlflow.MlflowClient().create_registered_model(name)
    except MlflowException as e:
        if e.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    return name


def _revoke(client: AuthServiceClient, user: str, kind: str, name: str) -> None:
    try:
        client.revoke_user_permission(user, kind, name)
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
