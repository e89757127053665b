"""The versions of registered models: their content hashes, tags and files.

All functions use the registry chosen by :func:`tilewise.registry.connect`, and all of them raise
``RegistryUnavailableError`` if it does not answer any more.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.errors import ArtefactError
from tilewise.model import TrainedModel, folder_hash, load_artefact, write_files
from tilewise.registry._plain_reader import Row
from tilewise.registry._registered_models import create_model, is_missing, list_aliases, move_aliases
from tilewise.registry._tracking import (
    client_in_use,
    plain_reader_in_use,
    quiet_mlflow,
    translate_errors,
    translate_store_errors,
    uri_in_use,
)
from tilewise.registry._write_conflicts import retry_on_conflict

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

HASH_TAG = "content_hash"
DECISION_TAG = "gate_decision"
HOLDOUT_TAG = "holdout_hash"
OVERRIDE_TAG = "gate_override"
ROLLED_BACK_TAG = "rolled_back"
HISTORY_TAG = "history_entry"  # number of the entry that put the version into production

_VERSIONS_TAG = "mlflow.modelVersions"  # by which a logged model's page finds its versions
_ATTEMPTS = 10
_DATA = "data"  # the folder that MLflow stores a model's own files in


@dataclass(frozen=True)
class Version:
    """One version of a registered model.

    Attributes:
        target: The registered model.
        number: Its number.
        run_id: The run that logged it; None if unknown.
        source: MLflow's URI of the model.
        tags: Its tags.
        created_ms: The time of its registration, in ms since 1970.
        files: The folder of its files on this machine, where a plain reader knows it; "" elsewhere.
    """

    target: str
    number: int
    run_id: str | None
    source: str
    tags: Mapping[str, str]
    created_ms: int
    files: str = field(default="", compare=False)

    @property
    def content_hash(self) -> str:
        """Return the identity of the model's files; "" for a version that tilewise did not publish."""
        return self.tags.get(HASH_TAG, "")

    @property
    def model_id(self) -> str | None:
        """Return MLflow's id of the logged model that the version consists of; None if it is no logged model."""
        name = self.source.removeprefix("models:/")
        return name if name.startswith("m-") and name != self.source else None

    def __str__(self) -> str:
        return f"{self.target} version {self.number} ({self.content_hash[:12] or 'no content hash'})"


def list_versions(target: str, content_hash: str = "") -> list[Version]:
    """Return the versions of a target, oldest first.

    Args:
        target: Name of the target.
        content_hash: Of the versions to return; "" for all versions.
    """
    if plain := plain_reader_in_use():
        found = [_read_plainly(row) for row in plain.versions(target)]
        return sorted((v for v in found if content_hash in ("", v.content_hash)), key=lambda v: v.number)
    query = f"name = '{target}'" + (f" and tags.`{HASH_TAG}` = '{content_hash}'" if content_hash else "")
    with translate_errors(f"the versions of {target} cannot be listed"):
        versions: list[Version] = []
        token = None
        while True:
            page = client_in_use().search_model_versions(query, max_results=1000, page_token=token)
            versions += [_version(v) for v in page]
            token = page.token
            if not token:
                return sorted(versions, key=lambda v: v.number)


def find_by_alias(target: str, alias: str) -> Version | None:
    """Return the version that an alias names, or None."""
    if plain := plain_reader_in_use():
        row = plain.aliased(target, alias)
        return None if row is None else _read_plainly(row)
    number = list_aliases(target).get(alias)
    return None if number is None else find_by_number(target, number)


def find_by_number(target: str, number: int) -> Version | None:
    """Return one version, or None."""
    if plain := plain_reader_in_use():
        row = plain.version(target, number)
        return None if row is None else _read_plainly(row)
    from mlflow.exceptions import MlflowException

    with translate_errors(f"{target} version {number} cannot be read"):
        try:
            return _version(client_in_use().get_model_version(target, str(number)))
        except MlflowException as e:
            if is_missing(e):
                return None
            raise


def find_by_hash(target: str, content_hash: str) -> list[Version]:
    """Return the versions with exactly these files, oldest first."""
    return [v for v in list_versions(target, content_hash) if v.content_hash == content_hash]


def create_version(
    target: str, source: str, run_id: str | None, model_id: str | None, tags: Mapping[str, str], description: str
) -> Version:
    """Create a version together with its tags, and the registered model if necessary."""
    from mlflow.exceptions import MlflowException

    with translate_errors(f"{target} cannot be registered"):
        client = client_in_use()
        for attempt in range(_ATTEMPTS):
            try:
                created = client.create_model_version(
                    target, source, run_id, tags=dict(tags), description=description, model_id=model_id
                )
                break
            except MlflowException as e:
                if attempt == 0 and (is_missing(e) or e.error_code == "PERMISSION_DENIED"):  # some do not tell which
                    create_model(target)
                elif "Giving up" not in str(e) or attempt == _ATTEMPTS - 1:  # others took the number three times
                    raise
        if model_id is not None:  # a server does so by itself
            link = json.dumps([{"name": target, "version": str(created.version)}])
            client.set_logged_model_tags(model_id, {_VERSIONS_TAG: link})
        return _version(created)


def delete_version(version: Version) -> None:
    """Delete a version. No alias may name it."""
    with translate_errors(f"{version} cannot be removed"):
        client_in_use().delete_model_version(version.target, str(version.number))


def set_alias(version: Version, alias: str) -> bool:
    """Point an alias at a version, and return whether that changed anything."""
    return move_aliases(version.target, {alias: version.number})


def set_tag(target: str, number: int, key: str, value: str) -> None:
    """Set a tag of a version."""
    with translate_errors(f"{target} version {number} cannot be tagged"):
        retry_on_conflict(lambda: client_in_use().set_model_version_tag(target, str(number), key, value))


def delete_tag(version: Version, key: str) -> None:
    """Delete a tag of a version, if the version has it."""
    if key in version.tags:
        with translate_errors(f"{version} cannot be tagged"):
            client_in_use().delete_model_version_tag(version.target, str(version.number), key)


def read_description(version: Version) -> str:
    """Return the text on a version's page."""
    if plain := plain_reader_in_use():
        return str((plain.version(version.target, version.number) or {}).get("description") or "")
    with translate_errors(f"{version} cannot be read"):
        return str(client_in_use().get_model_version(version.target, str(version.number)).description or "")


def write_description(target: str, number: int, text: str) -> None:
    """Replace the text on a version's page."""
    with translate_errors(f"{target} version {number} is registered, but the decision on it cannot be written"):
        client_in_use().update_model_version(target, str(number), text)


def list_stored(folder_uri: str) -> set[str]:
    """Return the names of the files and folders in a folder of the artefact store; none if there is no such folder.

    A failure of the store is an error of its library: see :func:`translate_store_errors`.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        found = mlflow.artifacts.list_artifacts(artifact_uri=folder_uri, tracking_uri=uri_in_use())
    except MlflowException as e:
        if is_missing(e):
            return set()
        raise  # an unreachable server is no evidence about the files
    return {str(f.path).split("/")[-1] for f in found}


def has_files(version: Version) -> bool:
    """Return whether the registry still has the version's files; a folder may have been deleted by hand."""
    return "MLmodel" in _file_names(version)


def download_version(version: Version, folder: str | Path) -> Path:
    """Copy a version's data below `folder`; the rest of its files serves MLflow only.

    Returns:
        The model's folder in the copy, for :func:`tilewise.model.load_artefact`.

    Raises:
        ArtefactError: The registry has no files for the version, or tilewise did not write them.
    """
    if (plain := plain_reader_in_use()) and (files := plain.model_files(version.target, version.number)):
        Path(folder).mkdir(parents=True, exist_ok=True)
        copy = Path(tempfile.mkdtemp(prefix="data-", dir=folder))
        write_files(copy, files)
        return copy
    quiet_mlflow()
    import mlflow

    names = _file_names(version)
    if "MLmodel" not in names:
        raise ArtefactError(f"{version}: the registry has no files for it any more; publish the model again")
    folders = []
    if _DATA in names:
        with translate_errors(f"{version} cannot be downloaded"):
            uri = f"{_files_uri(version)}/{_DATA}"
            data = Path(
                mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=str(folder), tracking_uri=uri_in_use())
            )
        folders = sorted(p for p in data.iterdir() if p.is_dir())
    if len(folders) != 1:
        raise ArtefactError(
            f"{version}: a model that tilewise published has one folder in its data, got {len(folders)}; "
            "publish it with tilewise promote"
        )
    return folders[0]


def load_version(version: Version) -> TrainedModel:
    """Load the model that the registry would serve as this version.

    Raises:
        ArtefactError: As :func:`download_version` and :func:`load_downloaded`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return load_downloaded(version, download_version(version, scratch))
        except ArtefactError as e:  # the copy's path would mislead: the copy is deleted
            raise ArtefactError(str(e).replace(f"{scratch}/", "")) from e


def load_downloaded(version: Version, folder: Path, keep: Path | None = None) -> TrainedModel:
    """Load a downloaded version, and verify before parsing that its files are those that were published.

    `keep` is as for :func:`tilewise.model.load_artefact`.

    Raises:
        ArtefactError: The files are damaged, belong to another target, or were changed after publishing.
    """
    if not version.content_hash:
        raise ArtefactError(
            f"{version}: its tag {HASH_TAG} is gone, so its files cannot be checked; publish the model again, or go "
            "back with 'tilewise rollback version=N'"
        )
    found = folder_hash(folder)
    if found != version.content_hash:
        raise ArtefactError(
            f"{version}: its files have content hash {found[:12]}; they were changed or damaged after publishing; "
            "publish the model again"
        )
    model = load_artefact(folder, keep=keep)
    if model.target.name != version.target:
        raise ArtefactError(
            f"{version}: its files must be a model of {version.target}, got a model of {model.target.name}; "
            "publish the model again"
        )
    return model


def _file_names(version: Version) -> set[str]:
    """Return the names of a version's files and folders; none if they are gone."""
    with translate_store_errors(f"the files of {version} cannot be listed"):
        return list_stored(_files_uri(version))


def _files_uri(version: Version) -> str:
    """Return where the registry keeps the files; MLflow would look up ``models:/`` in its own choice of registry."""
    return str(client_in_use().get_model_version_download_uri(version.target, str(version.number)))


def _read_plainly(row: Row) -> Version:
    return Version(
        target=row["name"],
        number=int(row["version"]),
        run_id=row.get("run_id") or None,
        source=row.get("source") or "",
        tags=dict(row["tags"]),
        created_ms=int(row.get("creation_timestamp") or 0),
        files=(row.get("storage_location") or "").removeprefix("file://"),
    )


def _version(found: ModelVersion) -> Version:
    return Version(
        target=found.name,
        number=int(found.version),
        run_id=found.run_id or None,
        source=found.source or "",
        tags=dict(found.tags),
        created_ms=int(found.creation_timestamp),
    )
