"""Recognising, without MLflow, that a promotion has nothing left to do: `dvc repro` asks each time.

Nothing is believed that :func:`tilewise.registry.promotion.promote` would not believe. The registry says what is in
production, its files are read and hashed, and the record on disk must be the one that the registry has.
"""

from __future__ import annotations

from pathlib import Path

from tilewise.errors import ArtefactError
from tilewise.gate import (
    DECISION_FILE,
    DECISION_PAGE,
    OUTCOME_FILE,
    ModelIdentity,
    Thresholds,
    decision_to_html,
    outcome_to_json,
    parse_decision,
    read_decision_text,
)
from tilewise.model import TrainedModel, load_artefact
from tilewise.registry._gate_standing import gate_standing
from tilewise.registry._history import read_history
from tilewise.registry._registered_models import CANDIDATE, PRODUCTION, list_aliases
from tilewise.registry._tracking import is_missing_store, plain_reader_in_use, registry_reader, resolve_tracking_uri
from tilewise.registry._versions import Version, find_by_number
from tilewise.registry.promotion._logged_files import RECORD_TAG, text_digest
from tilewise.registry.promotion._override import Override, waived_limits


def find_standing(
    candidate: TrainedModel, thresholds: Thresholds, override: Override, reports: str | Path, uri: str | None
) -> Version | None:
    """Return the version that has the candidate in production already, with its record in `reports`.

    Args:
        candidate: The model to promote.
        thresholds: The limits of the gate.
        override: The rules that may be waived.
        reports: The folder for ``promotion.json`` and ``promotion.html``.
        uri: See :func:`tilewise.registry.resolve_tracking_uri`.

    Returns:
        None if anything is missing, differs, or cannot be read without MLflow; then promote.

    Raises:
        ConfigError: The limits are weaker than the shipped ones.
        RegistryUnavailableError: The registry does not answer.
    """
    waived_limits(thresholds, candidate.target, override)
    resolved = resolve_tracking_uri(uri)
    if is_missing_store(resolved) or not _has_record(candidate, Path(reports)):
        return None
    target = candidate.target.name
    with registry_reader(resolved):
        if plain_reader_in_use() is None:
            return None
        aliases, log = list_aliases(target), read_history(target)
        if not log or not log[-1].applied or {aliases.get(PRODUCTION), aliases.get(CANDIDATE)} != {log[-1].production}:
            return None
        version = find_by_number(target, log[-1].production) if log[-1].production else None
        if version is None or not gate_standing(version).passed:
            return None
    record = text_digest(read_decision_text(Path(reports) / DECISION_FILE))
    return version if version.tags.get(RECORD_TAG) == record and _has_content(version, candidate) else None


def model_identity(model: TrainedModel) -> ModelIdentity:
    """Return the identity of a model in a decision."""
    return {
        "content_hash": model.content_hash,
        "data_hash": model.manifest.get("data_hash"),
        "git_revision": model.manifest.get("git_revision"),
        "label": model.label,
        "pool_size": len(model.pool),
    }


def _has_record(candidate: TrainedModel, reports: Path) -> bool:
    """Return whether all files of the record are there, of the decision that promoted the candidate."""
    decision = parse_decision(read_decision_text(reports / DECISION_FILE))
    if not decision or decision["outcome"] != "promoted" or decision["candidate"] != model_identity(candidate):
        return False
    expected = {DECISION_PAGE: decision_to_html(decision), OUTCOME_FILE: outcome_to_json(decision)}
    return all(read_decision_text(reports / name) == text for name, text in expected.items())


def _has_content(version: Version, candidate: TrainedModel) -> bool:
    """Return whether the version's files, in a folder of this machine, are the candidate's."""
    folder = Path(version.files) / "data" if version.files else None
    if version.content_hash != candidate.content_hash or folder is None or not folder.is_dir():
        return False
    try:
        found = [load_artefact(path).content_hash for path in folder.iterdir() if path.is_dir()]
    except ArtefactError:
        return False
    return found == [candidate.content_hash]
