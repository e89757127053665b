"""The rules of roles on a team's MLflow server. MLflow runs :func:`authenticate` on every request that needs a user.

With ``EDIT`` on a registered model, MLflow lets a user register a version and move an alias alike, and with ``EDIT`` on
an experiment rewrite the files of all its runs. So the rules here leave aliases, tags and descriptions to promoters,
and files of registered versions to administrators, who may do everything. Promoters are the users with ``EDIT`` on the
target's history, ``TARGET.history``. The routes of the registry are closed unless a rule opens them.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from mlflow import MlflowClient
from mlflow.server import auth
from mlflow.server.auth.permissions import RESOURCE_TYPE_REGISTERED_MODEL, GrantLoadKey
from mlflow.utils.workspace_utils import DEFAULT_WORKSPACE_NAME

if TYPE_CHECKING:
    from flask import Response
    from werkzeug.datastructures import Authorization

HISTORY_SUFFIX = ".history"  # these two as in tilewise.registry, which lies above this package
CANDIDATE = "candidate"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_REGISTRY = re.compile(r"/mlflow/(registered-models|model-versions)/(.+)")
_READ_BY_POST = frozenset({("registered-models", "get-latest-versions"), ("registered-models", "search")})
_NAMING = frozenset({("registered-models", "create"), ("registered-models", "rename")})
_CREATE_VERSION = ("model-versions", "create")
_ALIAS = ("registered-models", "alias")
_LOGGED_MODEL = re.compile(r"m-[0-9a-f]{32}")  # its id is part of the path of its files


@dataclass(frozen=True)
class Call:
    """A request that would change something.

    Attributes:
        method: The HTTP method.
        path: The path, decoded.
        query: The parameters in the address.
        body: The parameters in the body; None if it is no JSON object.
    """

    method: str
    path: str
    query: Mapping[str, object]
    body: Mapping[str, object] | None

    def values(self, field: str) -> set[object]:
        """Return the values of a field. MLflow may read the address or the body, and both spellings of a name."""
        wanted = field.replace("_", "")
        given = [*self.query.items(), *(self.body or {}).items()]
        return {str(value) for key, value in given if key.replace("_", "").lower() == wanted}


class Rights(Protocol):
    """The questions of the rules about the user and the registry."""

    def may_promote(self, target: str) -> bool:
        """Return whether the user is a promoter of a target."""

    def is_registered(self, logged_model: str) -> bool:
        """Return whether a registered version consists of a logged model's files."""


def find_refusal(call: Call, rights: Rights) -> str | None:
    """Return why a user who is no administrator may not do this, or None."""
    registry = _REGISTRY.search(call.path)
    if registry:
        return _registry_refusal((registry[1], registry[2].rstrip("/")), call, rights)
    if "artifact" in call.path or call.method == "DELETE":
        named = set(_LOGGED_MODEL.findall(f"{call.path} {json.dumps(call.body)}"))
        if any(map(rights.is_registered, sorted(named))):
            return "the files of a registered version stay as they are; register another version"
    if call.path.rstrip("/").endswith("/mlflow/experiments/create") and (
        call.body is None or call.values("artifact_location")
    ):
        return "the server chooses where an experiment's files are; leave artifact_location out"
    return None


def _registry_refusal(route: tuple[str, str], call: Call, rights: Rights) -> str | None:
    if route in _READ_BY_POST:
        return None
    if route in _NAMING:
        return "an administrator prepares new targets: tilewise.servers.grant_role"
    if route == _CREATE_VERSION:
        return None  # MLflow asks for EDIT, which trainers have
    if route == _ALIAS and call.method == "POST" and call.values("alias") == {CANDIDATE}:
        return None
    targets = {str(name).removesuffix(HISTORY_SUFFIX) for name in call.values("name")}
    if targets and all(map(rights.may_promote, sorted(targets))):
        return None
    return f"only who may promote {' and '.join(sorted(targets)) or 'a target'} may do this; ask one of them"


@dataclass(frozen=True)
class _UserRights:
    """The rights of one user of this server."""

    user: str

    def may_promote(self, target: str) -> bool:
        key = GrantLoadKey(RESOURCE_TYPE_REGISTERED_MODEL, target + HISTORY_SUFFIX)
        (granted,) = auth.resolve_permissions(self.user, DEFAULT_WORKSPACE_NAME, [key])
        return granted is not None and bool(granted.can_update)

    def is_registered(self, logged_model: str) -> bool:
        return bool(_registry().search_model_versions(f"source_path = 'models:/{logged_model}'", max_results=1))


@functools.cache
def _registry() -> MlflowClient:
    """Return a client that reads the server's own database, which asks for no user."""
    return MlflowClient(tracking_uri=os.environ["MLFLOW_BACKEND_STORE_URI"])


def authenticate() -> Authorization | Response:
    """Check user and password of Flask's current request, then the rules of roles.

    This is the ``authorization_function`` of MLflow's configuration.

    Returns:
        The user; or the response, 401 for a wrong password and 403 for a request against the rules.
    """
    from flask import Response, jsonify, request

    user = auth.authenticate_request_basic_auth()
    if isinstance(user, Response) or request.method in _READING:
        return user
    path = _decoded(request.path)
    # The body of an upload stays unread, since it can be read only once.
    body = None if "/mlflow-artifacts/" in path else request.get_json(force=True, silent=True)
    call = Call(request.method, path, request.args.to_dict(), body if isinstance(body, dict) else None)
    name = str(user.username)
    reason = find_refusal(call, _UserRights(name))
    if reason is None or auth.store.get_user(name).is_admin:
        return user
    response: Response = jsonify(error_code="PERMISSION_DENIED", message=reason)
    response.status_code = 403
    return response


def _decoded(path: str) -> str:
    """Return a path without any level of percent encoding, as MLflow decodes it."""
    while (decoded := unquote(path)) != path:
        path = decoded
    return path
