"""The registered models: versions, their content hashes and aliases. A target's name is its registered model's name.

All functions speak to the registry that :func:`tilewise.registry.tracking.connect` chose.

Raises, all of them:
    RegistryUnavailableError: the registry cannot be reached any more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.errors import ArtefactError
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.registry.overtaken import again_if_overtaken
from tilewise.registry.tracking import client_in_use, guard

CANDIDATE, PRODUCTION, PREVIOUS = "candidate", "production", "previous"
HISTORY = ".history"  # ends the name of a target's log, see tilewise.registry.history

HASH_TAG = "content_hash"
DECISION_TAG = "gate_decision"
HOLDOUT_TAG = "holdout_hash"
ROLLED_BACK_TAG = "rolled_back"

_ATTEMPTS = 10


@dataclass(frozen=True)
class Version:
    """One version of a registered model. `content_hash` is "" for a version that tilewise did not publish."""

    target: str
    number: int
    run_id: str | None
    source: str
    tags: Mapping[str, str]
    created_ms: int

    @property
    def content_hash(self) -> str:
        """Identity of the model's files; see ``TrainedModel.content_hash``."""
        return self.tags.get(HASH_TAG, "")

    def __str__(self) -> str:
        return f"{self.target} version {self.number} ({self.content_hash[:12] or 'no content hash'})"


def targets() -> list[str]:
    """Names of all registered models, sorted."""
    with guard("the registered models cannot be listed"):
        found, token = [], None
        while True:
            page = client_in_use().search_registered_models(max_results=500, page_token=token)
            found += [m.name for m in page]
            token = page.token
            if not token:
                return sorted(name for name in found if not name.endswith(HISTORY))


def aliases(target: str) -> dict[str, int]:
    """Version number of each alias; empty where the target is not registered."""
    with guard(f"the aliases of {target} cannot be read"):
        model = _registered(target)
        return {} if model is None else {str(k): int(v) for k, v in model.aliases.items()}


def by_alias(target: str, alias: str) -> Version | None:
    """The version that an alias names, or None."""
    number = aliases(target).get(alias)
    return None if number is None else by_number(target, number)


def by_number(target: str, number: int) -> Version | None:
    """One version, or None."""
    from mlflow.exceptions import MlflowException

    with guard(f"{target} version {number} cannot be read"):
        try:
            return _version(client_in_use().get_model_version(target, str(number)))
        except MlflowException as e:
            if _missing(e):
                return None
            raise


def by_hash(target: str, content_hash: str) -> list[Version]:
    """The versions with these very files, oldest first."""
    return [v for v in versions(target, f"tags.`{HASH_TAG}` = '{content_hash}'") if v.content_hash == content_hash]


def versions(target: str, condition: str = "") -> list[Version]:
    """All versions of a target, oldest first."""
    query = f"name = '{target}'" + (f" and {condition}" if condition else "")
    with guard(f"the versions of {target} cannot be listed"):
        found: list[Version] = []
        token = None
        while True:
            page = client_in_use().search_model_versions(query, max_results=1000, page_token=token)
            found += [_version(v) for v in page]
            token = page.token
            if not token:
                return sorted(found, key=lambda v: v.number)


def create(
    target: str, source: str, run_id: str | None, model_id: str | None, tags: Mapping[str, str], description: str
) -> Version:
    """A new version, with its tags from the first moment on; the registered model is made where needed."""
    from mlflow.exceptions import MlflowException

    with guard(f"{target} cannot be registered"):
        client = client_in_use()
        if _registered(target) is None:
            try:
                client.create_registered_model(target)
            except MlflowException:
                if _registered(target) is None:  # else another process was faster
                    raise
        for attempt in range(_ATTEMPTS):
            try:
                made = client.create_model_version(
                    target, source, run_id, tags=dict(tags), description=description, model_id=model_id
                )
                break
            except MlflowException as e:
                if "Giving up" not in str(e) or attempt == _ATTEMPTS - 1:  # others took the number, three times
                    raise
        return _version(made)


def delete(version: Version) -> None:
    """Remove a version that nobody refers to."""
    with guard(f"{version} cannot be removed"):
        client_in_use().delete_model_version(version.target, str(version.number))


def set_alias(version: Version, alias: str) -> bool:
    """Point an alias at a version; says whether that changed anything."""
    return point(version.target, alias, version.number)


def point(target: str, alias: str, number: int | None) -> bool:
    """Point an alias at a version, or, with None, at nothing; says whether that changed anything."""
    if aliases(target).get(alias) == number:
        return False
    with guard(f"alias {alias} of {target} cannot be set"):
        if number is None:
            client_in_use().delete_registered_model_alias(target, alias)
        else:
            again_if_overtaken(lambda: client_in_use().set_registered_model_alias(target, alias, str(number)))
    return True


def set_tag(version: Version, key: str, value: str) -> None:
    """Tag a version."""
    tag(version.target, version.number, key, value)


def tag(target: str, number: int, key: str, value: str) -> None:
    """Tag a version by its number."""
    with guard(f"{target} version {number} cannot be tagged"):
        again_if_overtaken(lambda: client_in_use().set_model_version_tag(target, str(number), key, value))


def description(version: Version) -> str:
    """The text on a version's page."""
    with guard(f"{version} cannot be read"):
        return str(client_in_use().get_model_version(version.target, str(version.number)).description or "")


def describe(target: str, number: int, text: str) -> None:
    """Replace a version's description."""
    with guard(f"{target} version {number} cannot be described"):
        client_in_use().update_model_version(target, str(number), text)


def delete_tag(version: Version, key: str) -> None:
    """Remove a tag of a version, if it is there."""
    if key in version.tags:
        with guard(f"{version} cannot be tagged"):
            client_in_use().delete_model_version_tag(version.target, str(version.number), key)


def is_stored(version: Version) -> bool:
    """Whether the registry still has the version's files (a folder may have been deleted by hand)."""
    import mlflow
    from mlflow.exceptions import MlflowException

    with guard(f"the files of {version} cannot be listed"):
        try:
            files = mlflow.artifacts.list_artifacts(artifact_uri=_uri(version))
        except OSError:
            return False
        except MlflowException as e:
            if _missing(e):
                return False
            raise  # the server went away: that says nothing of the files
    return any(f.path.split("/")[-1] == "MLmodel" for f in files)


def download(version: Version, folder: str | Path) -> Path:
    """Copy a version's files below `folder`.

    Returns:
        The model's folder therein, to be loaded with :func:`tilewise.model.artefact.load_artefact`.

    Raises:
        ArtefactError: the registry has no files for it, or they are not those of a tilewise model.
    """
    import mlflow

    if not is_stored(version):
        raise ArtefactError(f"{version}: the registry has no files for it any more")
    with guard(f"{version} cannot be downloaded"):
        root = Path(mlflow.artifacts.download_artifacts(artifact_uri=_uri(version), dst_path=str(folder)))
    data = root / "data"
    found = sorted(p for p in data.iterdir() if p.is_dir()) if data.is_dir() else []
    if len(found) != 1:
        raise ArtefactError(f"{version}: not a model that tilewise published (no single folder in its data)")
    return found[0]


def load(version: Version) -> TrainedModel:
    """The model that the registry would serve as this version; raises what :func:`load_verified` raises."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            return load_verified(version, download(version, scratch))
        except ArtefactError as e:  # where the copy stood tells nobody anything
            raise ArtefactError(str(e).replace(f"{scratch}/", "")) from e


def load_verified(version: Version, folder: Path) -> TrainedModel:
    """Load a downloaded version.

    Raises:
        ArtefactError: the files are not sound, are another target's, or are not those that were published.
    """
    model = load_artefact(folder)
    if model.target.name != version.target:
        raise ArtefactError(f"{version}: its files are a model of {model.target.name}")
    if version.content_hash and model.content_hash != version.content_hash:
        raise ArtefactError(
            f"{version}: its files have content hash {model.content_hash[:12]}; they were changed after publishing"
        )
    return model


def _uri(version: Version) -> str:
    return f"models:/{version.target}/{version.number}"


def _registered(target: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return client_in_use().get_registered_model(target)
    except MlflowException as e:
        if _missing(e):
            return None
        raise


def _missing(error: Any) -> bool:
    return bool(error.error_code == "RESOURCE_DOES_NOT_EXIST")


def _version(found: Any) -> Version:
    return Version(
        target=found.name,
        number=int(found.version),
        run_id=found.run_id or None,
        source=found.source,
        tags=dict(found.tags),
        created_ms=int(found.creation_timestamp),
    )
