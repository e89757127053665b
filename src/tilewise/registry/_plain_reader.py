"""Reading registered models without importing MLflow, which takes seconds: by SQL from its SQLite file, or by REST.

A server's files are read through the server, where it keeps them for its clients (``mlflow-artifacts:``).

It knows the ordinary cases only: a local SQLite file with the tables of this MLflow version, or a server that needs
at most a user and password or a token. In any other case :func:`open_reader` returns None, and MLflow's own client
serves. Nothing is ever written here.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import sqlite3
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from tilewise.errors import AccessDeniedError, RegistryUnavailableError
from tilewise.registry._artifact_paths import is_relative
from tilewise.registry._packed_model import PACKED, unpack

Row: TypeAlias = Mapping[str, Any]  # of a version: the fields of MLflow's REST API, with `tags` as a mapping

_NEEDED = {
    "registered_models": {"name", "workspace"},
    "registered_model_aliases": {"name", "alias", "version", "workspace"},
    "registered_model_tags": {"name", "key", "value", "workspace"},
    "model_versions": {"name", "version", "source", "storage_location", "run_id", "creation_time", "description"}
    | {"current_stage", "workspace"},
    "model_version_tags": {"name", "version", "key", "value", "workspace"},
    "params": {"run_uuid", "key", "value"},
}
_PROMPT_TAG = "mlflow.prompt.is_prompt"  # MLflow keeps prompts among the registered models
_DELETED = "Deleted_Internal"
_MISSING, _NO_ALIAS = "RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"  # the second for an alias that is not set
_HERE = "workspace = 'default'"
# Settings of MLflow's client that only the client itself understands.
_CLIENT_ONLY = (
    "MLFLOW_REGISTRY_URI",
    "MLFLOW_TRACKING_AUTH",
    "MLFLOW_TRACKING_AWS_SIGV4",
    "MLFLOW_TRACKING_CLIENT_CERT_PATH",
    "MLFLOW_TRACKING_INSECURE_TLS",
    "MLFLOW_TRACKING_SERVER_CERT_PATH",
    "MLFLOW_WORKSPACE",
    "NETRC",
)
_CLIENT_FILES = ("~/.mlflow/credentials", "~/.netrc")
_AUTHORITIES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")  # whom MLflow's client trusts; the first that is set counts
_TIMEOUT_S = 5.0
_PAGE = 200
_PROXIED = re.compile("mlflow-artifacts:/(?!/)")  # with two slashes it names a server, which may be another one
_ODD = (ValueError, KeyError, TypeError, AttributeError)  # JSON of another shape
_MAX_BYTES = 256 << 20  # of a packed model


class PlainReader(Protocol):
    """A reader of registered models that does without MLflow."""

    def models(self) -> list[str]:
        """Return the names of the registered models."""

    def aliases(self, name: str) -> dict[str, int]:
        """Return the version number of each alias; empty if there is no such model."""

    def versions(self, name: str) -> list[Row]:
        """Return all versions; empty if there is no such model."""

    def version(self, name: str, number: int) -> Row | None:
        """Return one version, or None."""

    def aliased(self, name: str, alias: str) -> Row | None:
        """Return the version that an alias names, or None."""

    def run_parameter(self, run_id: str, key: str) -> str | None:
        """Return a parameter of a run, or None."""

    def model_files(self, name: str, number: int) -> dict[str, bytes] | None:
        """Return the files of a version's model by name.

        None, where MLflow's client has to do it: it knows other stores and versions that have no packed model, repeats
        requests and tells what is wrong.
        """


@contextmanager
def open_reader(uri: str) -> Iterator[PlainReader | None]:
    """Yield a reader of the registry at `uri`, or None if only MLflow's client can read it."""
    parts = urllib.parse.urlsplit(uri)
    if any(os.environ.get(name) for name in _CLIENT_ONLY):
        yield None
    elif uri.startswith("sqlite:///") and not parts.query:
        with _open_file(Path(uri.removeprefix("sqlite:///"))) as reader:
            yield reader
    elif parts.scheme in ("http", "https") and "@" not in parts.netloc and not _has_client_file():
        yield _Server(uri.rstrip("/"))
    else:
        yield None


def _has_client_file() -> bool:
    return any(Path(name).expanduser().exists() for name in _CLIENT_FILES)


@contextmanager
def _open_file(path: Path) -> Iterator[PlainReader | None]:
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=_TIMEOUT_S, check_same_thread=False
        )
    except sqlite3.Error:
        yield None
        return
    with closing(connection):
        connection.row_factory = sqlite3.Row
        yield _File(connection, path) if _is_known(connection) else None


def _is_known(connection: sqlite3.Connection) -> bool:
    try:
        return all(
            columns <= {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
            for table, columns in _NEEDED.items()
        )
    except sqlite3.Error:
        return False


class _File:
    """An MLflow database in a file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def _rows(self, query: str, *values: object) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as e:
            raise RegistryUnavailableError(f"the MLflow database cannot be read ({self._path}): {e}") from e

    def models(self) -> list[str]:
        prompts = f"SELECT name FROM registered_model_tags WHERE {_HERE} AND key = ? AND value = 'true'"
        found = self._rows(f"SELECT name FROM registered_models WHERE {_HERE} AND name NOT IN ({prompts})", _PROMPT_TAG)
        return [row["name"] for row in found]

    def aliases(self, name: str) -> dict[str, int]:
        found = self._rows(f"SELECT alias, version FROM registered_model_aliases WHERE {_HERE} AND name = ?", name)
        return {row["alias"]: int(row["version"]) for row in found}

    def versions(self, name: str) -> list[Row]:
        tags: dict[int, dict[str, str]] = {}
        for row in self._rows(f"SELECT version, key, value FROM model_version_tags WHERE {_HERE} AND name = ?", name):
            tags.setdefault(row["version"], {})[row["key"]] = row["value"]
        found = self._rows(
            "SELECT name, version, source, storage_location, run_id, description, creation_time AS creation_timestamp "
            f"FROM model_versions WHERE {_HERE} AND name = ? AND current_stage IS NOT ?",
            name,
            _DELETED,
        )
        places = [{"storage_location": self._absolute(row["storage_location"] or "")} for row in found]
        return [
            {**dict(row), **place, "tags": tags.get(row["version"], {})}
            for row, place in zip(found, places, strict=True)
        ]

    def _absolute(self, uri: str) -> str:
        return str(self._path.absolute().parent / uri.removeprefix("file:")) if is_relative(uri) else uri

    def version(self, name: str, number: int) -> Row | None:
        return next((row for row in self.versions(name) if row["version"] == number), None)

    def aliased(self, name: str, alias: str) -> Row | None:
        number = self.aliases(name).get(alias)
        return None if number is None else self.version(name, number)

    def run_parameter(self, run_id: str, key: str) -> str | None:
        found = self._rows("SELECT value FROM params WHERE run_uuid = ? AND key = ?", run_id, key)
        return found[0]["value"] if found else None

    def model_files(self, name: str, number: int) -> dict[str, bytes] | None:
        return None


class _Server:
    """An MLflow server, asked by REST."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def models(self) -> list[str]:
        found = self._pages("registered-models/search", "registered_models")
        return [m["name"] for m in found if _tags(m).get(_PROMPT_TAG) != "true"]

    def aliases(self, name: str) -> dict[str, int]:
        found = self._get("registered-models/get", {"name": name})
        entries = (found or {}).get("registered_model", {}).get("aliases", [])
        return {entry["alias"]: int(entry["version"]) for entry in entries}

    def versions(self, name: str) -> list[Row]:
        found = self._pages("model-versions/search", "model_versions", filter=f"name = '{name}'")
        return [{**row, "tags": _tags(row)} for row in found]

    def version(self, name: str, number: int) -> Row | None:
        return _row(self._get("model-versions/get", {"name": name, "version": str(number)}))

    def aliased(self, name: str, alias: str) -> Row | None:
        return _row(self._get("registered-models/alias", {"name": name, "alias": alias}, missing=_NO_ALIAS))

    def run_parameter(self, run_id: str, key: str) -> str | None:
        run = (self._get("runs/get", {"run_id": run_id}) or {}).get("run", {})
        return next((p["value"] for p in run.get("data", {}).get("params", []) if p["key"] == key), None)

    def model_files(self, name: str, number: int) -> dict[str, bytes] | None:
        try:
            found = self._get("model-versions/get-download-uri", {"name": name, "version": str(number)}) or {}
            root, is_proxied = _PROXIED.subn("", str(found.get("artifact_uri")), count=1)
            return unpack(self._read(f"{root}/{PACKED}")) if is_proxied else None
        except (*_ODD, OSError, http.client.HTTPException, RegistryUnavailableError):
            return None

    def _read(self, path: str) -> bytes:
        """Return a file of the artefact store.

        Raises:
            ValueError: It is too large.
        """
        url = f"{self._uri}/api/2.0/mlflow-artifacts/artifacts/{urllib.parse.quote(path)}"
        with _open(url) as answer:
            data: bytes = answer.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ValueError(f"{path}: must have at most {_MAX_BYTES} bytes")
        return data

    def _pages(self, path: str, key: str, **query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        token = ""
        while True:
            page = self._get(path, {"max_results": str(_PAGE), **query, **({"page_token": token} if token else {})})
            rows += (page or {}).get(key, [])
            token = (page or {}).get("next_page_token", "")
            if not token:
                return rows

    def _get(self, path: str, query: Mapping[str, str], missing: str = _MISSING) -> dict[str, Any] | None:
        """Return the answer to one request, or None if there is no such model or version.

        Args:
            path: below MLflow's API.
            query: the parameters.
            missing: a further code by which the server reports a missing one.
        """
        url = f"{self._uri}/api/2.0/mlflow/{path}?{urllib.parse.urlencode(query)}"
        try:
            with _open(url) as answer:
                values = json.load(answer)
            if not isinstance(values, dict):
                raise ValueError("the answer is not a JSON object")
        except urllib.error.HTTPError as e:
            refusal = self._refusal(e, missing)
            if refusal is None:
                return None
            raise refusal from e
        except (OSError, ValueError, http.client.HTTPException) as e:
            raise _unavailable(self._uri, getattr(e, "reason", e)) from e
        return values

    def _refusal(self, error: urllib.error.HTTPError, missing: str) -> RegistryUnavailableError | None:
        """Return the error that says why the server refuses, or None if it only lacks the model or version."""
        try:
            code = json.load(error).get("error_code", "")
        except (OSError, ValueError, AttributeError):
            code = ""
        user = os.environ.get("MLFLOW_TRACKING_USERNAME")
        who = f"{self._uri}, {f'user {user}' if user else 'no user named'}"
        if code in (_MISSING, missing):
            return None
        if error.code == 401:
            remedy = "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            return AccessDeniedError(f"the MLflow server does not know this user and password: {who}; {remedy}")
        if error.code == 403:
            remedy = "ask an administrator for the permission READ"
            return AccessDeniedError(f"the MLflow server does not let you do this: {who}; {remedy}")
        return RegistryUnavailableError(
            f"the MLflow tracking server does not answer as MLflow does ({self._uri}): HTTP status {error.code} {code}"
        )


def _unavailable(uri: str, reason: object) -> RegistryUnavailableError:
    """Return the error that says why there is no answer."""
    if isinstance(reason, ssl.SSLCertVerificationError):
        return RegistryUnavailableError(
            "the certificate of the MLflow tracking server is not trusted; name the file with its authority's "
            f"certificate in {_AUTHORITIES[0]} ({uri}): {reason}"
        )
    return RegistryUnavailableError(
        "the MLflow tracking server does not answer; start it, or set tracking.uri or MLFLOW_TRACKING_URI "
        f"({uri}): {reason}"
    )


def _open(url: str) -> Any:
    """Return the answer to a request, to be closed; the other errors are those of :func:`urllib.request.urlopen`.

    Raises:
        RegistryUnavailableError: The certificates to trust cannot be read.
    """
    timeout = float(os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT") or _TIMEOUT_S)
    request = urllib.request.Request(url, headers=_credentials())
    return urllib.request.urlopen(request, timeout=timeout, context=_trust(url))


def _trust(url: str) -> ssl.SSLContext | None:
    """Return whom to trust where the environment says so, as MLflow's client does; None: whom Python trusts.

    Raises:
        RegistryUnavailableError: The certificates cannot be read.
    """
    name = next((name for name in _AUTHORITIES if os.environ.get(name)), None)
    if name is None or not url.startswith("https:"):
        return None
    path = os.environ[name]
    try:
        is_folder = Path(path).is_dir()
        return ssl.create_default_context(cafile=None if is_folder else path, capath=path if is_folder else None)
    except OSError as e:
        raise RegistryUnavailableError(
            f"{name} must name a file or folder with certificates in PEM format, got {path!r}: {e}"
        ) from e


def _credentials() -> dict[str, str]:
    user, password = (os.environ.get(f"MLFLOW_TRACKING_{name}") for name in ("USERNAME", "PASSWORD"))
    if user and password:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _row(answer: Mapping[str, Any] | None) -> Row | None:
    """Return the version in an answer, or None without one."""
    return None if answer is None else {**answer["model_version"], "tags": _tags(answer["model_version"])}


def _tags(row: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag.get("value", "") for tag in row.get("tags", [])}
