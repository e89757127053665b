"""The registered models themselves: their names, pages and aliases. A target's registered model has its name.

All functions use the registry chosen by :func:`tilewise.registry.connect`, and all of them raise
``RegistryUnavailableError`` if it does not answer any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from tilewise.registry._tracking import client_in_use, plain_reader_in_use, translate_errors
from tilewise.registry._write_conflicts import retry_on_conflict

if TYPE_CHECKING:
    from mlflow.entities.model_registry import RegisteredModel
    from mlflow.exceptions import MlflowException

CANDIDATE, PRODUCTION, PREVIOUS, CANARY = "candidate", "production", "previous", "canary"
HISTORY_SUFFIX = ".history"  # of the registered model that holds a target's history
KIND_TAG = "tilewise.kind"  # of a registered model: ``model``, or ``history``


def list_targets() -> list[str]:
    """Return the names of all registered models but the histories, sorted."""
    return sorted(name for name in _list_names() if not name.endswith(HISTORY_SUFFIX))


def list_histories() -> list[str]:
    """Return the names of the targets that have a history, sorted; their models may have been deleted by hand."""
    return sorted(name.removesuffix(HISTORY_SUFFIX) for name in _list_names() if name.endswith(HISTORY_SUFFIX))


def _list_names() -> list[str]:
    if plain := plain_reader_in_use():
        return plain.models()
    with translate_errors("the registered models cannot be listed"):
        names: list[str] = []
        token = None
        while True:
            page = client_in_use().search_registered_models(max_results=500, page_token=token)
            names += [m.name for m in page]
            token = page.token
            if not token:
                return names


def list_aliases(target: str) -> dict[str, int]:
    """Return the version number of each alias; empty if the target is not registered."""
    if plain := plain_reader_in_use():
        return plain.aliases(target)
    with translate_errors(f"the aliases of {target} cannot be read"):
        model = _registered_model(target)
        return {} if model is None else {str(k): int(v) for k, v in model.aliases.items()}


def move_aliases(target: str, wanted: Mapping[str, int | None]) -> bool:
    """Point aliases at version numbers in this order, or delete them with None; return whether that changed anything.

    An alias stays as it is where the version was deleted by hand.
    """
    from mlflow.exceptions import MlflowException

    present, moved = list_aliases(target), False
    for alias, number in wanted.items():
        if present.get(alias) == number:
            continue
        with translate_errors(f"alias {alias} of {target} cannot be set"):
            try:
                _set_alias(target, alias, number)
                moved = True
            except MlflowException as e:
                if not is_missing(e):
                    raise
    return moved


def describe_model(name: str, text: str, tags: Mapping[str, str]) -> None:
    """Write text and tags on the page of a registered model that has no text; create the model if necessary."""
    with translate_errors(f"{name} cannot be described"):
        model = _registered_model(name) or create_model(name, text, tags)
        if model.description:
            return
        client = client_in_use()
        for key, value in tags.items():
            retry_on_conflict(partial(client.set_registered_model_tag, name, key, value))
        client.update_registered_model(name, text)


def create_model(target: str, text: str = "", tags: Mapping[str, str] | None = None) -> RegisteredModel:
    """Create a registered model, and return it, also if another process was faster."""
    from mlflow.exceptions import MlflowException

    try:
        return client_in_use().create_registered_model(target, dict(tags or {}), text)
    except MlflowException:
        found = _registered_model(target)
        if found is None:
            raise
        return found


def is_missing(error: MlflowException) -> bool:
    """Return whether MLflow says that what was asked for does not exist."""
    return bool(error.error_code == "RESOURCE_DOES_NOT_EXIST")


def _set_alias(target: str, alias: str, number: int | None) -> None:
    client = client_in_use()
    if number is None:
        client.delete_registered_model_alias(target, alias)
    else:
        retry_on_conflict(lambda: client.set_registered_model_alias(target, alias, str(number)))


def _registered_model(target: str) -> RegisteredModel | None:
    from mlflow.exceptions import MlflowException

    try:
        return client_in_use().get_registered_model(target)
    except MlflowException as e:
        if is_missing(e):
            return None
        raise
