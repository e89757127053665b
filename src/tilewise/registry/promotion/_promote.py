"""The promotion: publish a candidate, judge it against production on the same rows, move the aliases, write files.

Everything here may run again at any time: the same model, data and rules give the same aliases, no further run or
version, and the same bytes in ``promotion.json``. A new or interrupted registry is brought to the state that the
decision describes. Concurrent promotions are safe; see :mod:`tilewise.registry._history`.
"""

from __future__ import annotations

import errno
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from tilewise.errors import ArtefactError, ConfigError, RegistryUnavailableError
from tilewise.gate import (
    DECISION_FILE,
    DECISION_PAGE,
    OUTCOME_FILE,
    GateDecision,
    ModelIdentity,
    PromotionDecision,
    decision_to_html,
    decision_to_json,
    outcome_to_json,
    parse_decision,
    read_decision_text,
    write_decision_text,
)
from tilewise.model import TrainedModel, load_artefact
from tilewise.publish import explorer_page
from tilewise.registry._gate_standing import gate_standing, published_content
from tilewise.registry._history import HistoryEntry, commit_canary, commit_change, last_production, settle_history
from tilewise.registry._versions import HASH_TAG, HISTORY_TAG, Version, find_by_number, load_version, set_tag
from tilewise.registry.promotion._judge import judge
from tilewise.registry.promotion._judgement import Judgement, Outcome, PromotionRules
from tilewise.registry.promotion._log_decision import log_decision, log_plots
from tilewise.registry.promotion._logged_files import logged_decision
from tilewise.registry.promotion._override import waived_limits
from tilewise.registry.promotion._publish import publish
from tilewise.registry.promotion._standing import model_identity

if TYPE_CHECKING:
    import pandas as pd

_ATTEMPTS = 20  # judgements before giving up, while other processes keep promoting
_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # no mistake of the caller


@dataclass(frozen=True)
class Promotion:
    """The result of a promotion.

    Attributes:
        outcome: The result in one word.
        version: The candidate.
        reasons: The reasons for the outcome.
        gate: The gate's answer; None if there was nothing to judge.
        decision: The content of ``promotion.json``.
        path: The file ``promotion.json``; a warning tells if it cannot be written any more.
    """

    outcome: Outcome
    version: Version
    reasons: tuple[str, ...]
    gate: GateDecision | None
    decision: PromotionDecision
    path: Path

    @property
    def in_production(self) -> bool:
        """Return whether the candidate is in production now."""
        return self.outcome in ("promoted", "already_production")


class _Log(NamedTuple):
    """The experiment of a new run, and a function that returns the explorer's page for it."""

    experiment: str
    explorer: Callable[[], str]


def promote(
    model_dir: str | Path,
    frame: pd.DataFrame | Callable[[], pd.DataFrame],
    rules: PromotionRules,
    reports: str | Path,
    *,
    experiments: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> Promotion:
    """Publish the model in `model_dir` and let the gate decide whether it replaces ``@production``, or is a canary.

    Args:
        model_dir: The candidate's folder.
        frame: Measurements, or a function that reads them, called only if there is something to judge. Both models are
            judged on the problems that the holdout rule keeps from training.
        rules: The gate's limits, the holdout fraction and observations.
        reports: The folder for ``promotion.json`` and ``promotion.html``, also for a refused candidate.
        experiments: MLflow experiments; see :func:`publish`.
        tags: Further tags of the version, if it is new.

    Raises:
        ArtefactError: The candidate or production is not sound, or the candidate's folder changes meanwhile.
        ConfigError: A canary without a production, a candidate trained on some of that holdout, a holdout that lacks
            production's problems, weaker limits than the shipped ones, production moved by hand, unusable `reports`.
        DataError: There are too few problems to judge by.
        RegistryUnavailableError: The registry does not answer any more, or other processes kept promoting.
    """
    candidate = load_artefact(Path(model_dir))
    waived_limits(rules.thresholds, candidate.target, rules.override)  # before anything is published
    folder, target = _writable(reports), candidate.target.name
    version = _same(publish(model_dir, experiments=experiments, tags=tags), candidate)
    for _ in range(_ATTEMPTS):
        head = settle_history(target)
        version = _read_again(version)  # it may have been rolled back since it was read
        production, waived = _find_production(head, rules)
        same = production is not None and _is_in_production(version, production)
        if same is None:
            if _repair(head, version):
                return _already_in_production(version, candidate, folder)
            continue
        if same and production is not None:
            return _already_in_production(production, candidate, folder)
        if callable(frame):
            frame = frame()
        judgement = judge(version, candidate, production, frame, rules, waived)
        log = _Log(next(iter(experiments), target), partial(explorer_page, candidate, frame, rules.holdout_fraction))
        if settle_history(target) == head and (promotion := _carry_out(judgement, head, folder, log)):
            return promotion
        # Another process changed production, so the judgement is out of date.
    raise RegistryUnavailableError(f"{target}: others promoted {_ATTEMPTS} times meanwhile; run the command again")


def _writable(reports: str | Path) -> Path:
    """Return the folder of the record if it can be made, and files written there; it is made with the first of them.

    Raises:
        ConfigError: It cannot.
        OSError: The disk is full or broken.
    """
    folder = Path(reports)
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as e:
        if e.errno in _DISK_FAULTS:
            raise
        raise ConfigError(
            "reports must be a folder that can be made and written, for the record of the decision, "
            f"got {str(folder)!r}: {e.strerror}; name another one with reports=FOLDER"
        ) from e
    return folder


def _read_again(version: Version) -> Version:
    """Return a version with its tags of now, but for the hash: that of the published model is not to be replaced."""
    found = find_by_number(version.target, version.number)
    return replace(found, tags={**found.tags, HASH_TAG: version.content_hash}) if found else version


def _same(version: Version, candidate: TrainedModel) -> Version:
    """Return the version, which was published from the folder that `candidate` was loaded from.

    Raises:
        ArtefactError: The folder holds another model by now.
    """
    if version.content_hash != candidate.content_hash:
        raise ArtefactError(f"{candidate.where}: the folder must not change during a promotion; run the command again")
    return version


def leave_unpublished(model_dir: str | Path, reports: str | Path, reason: str) -> Path:
    """Record that a model is not published, without a look at the registry; return the file ``promotion.json``.

    Args:
        model_dir: The model's folder.
        reports: The folder for ``promotion.json`` and ``promotion.html``.
        reason: The reason, with the command that publishes it.

    Raises:
        ArtefactError: The model is not sound.
    """
    model = load_artefact(Path(model_dir))
    decision: PromotionDecision = {
        "target": model.target.name,
        "outcome": "unpublished",
        "reasons": [reason],
        "candidate": model_identity(model),
    }
    _write_files(Path(reports), decision_to_json(decision), decision)
    return Path(reports) / DECISION_FILE


def _carry_out(judgement: Judgement, head: HistoryEntry, folder: Path, log: _Log) -> Promotion | None:
    """Log the decision, move the aliases, write the files; return None after a write conflict.

    The next call completes an interrupted one.
    """
    decision, path = judgement.decision, folder / DECISION_FILE
    if judgement.outcome == "promoted" and head.production is None:
        decision = _confirmed(path, decision) or decision
    text = decision_to_json(decision)
    run_id, is_new = log_decision(judgement, text, log.experiment)
    if judgement.outcome == "promoted":
        reason = "; ".join(judgement.reasons)
        number = judgement.version.number
        previous = head.previous if head.production in (None, number) else head.production
        entry = commit_change(head, number, "promoted", reason, previous=previous, run_id=run_id)
        if entry is None:
            return None
        set_tag(entry.target, number, HISTORY_TAG, str(entry.number))
    elif judgement.outcome == "canary" and not _start_canary(head, judgement):
        return None
    _write_or_warn(folder, text, decision, f"{judgement.version}: {judgement.outcome}")
    if is_new:
        log_plots(judgement, run_id, log.explorer)
    return Promotion(judgement.outcome, judgement.version, judgement.reasons, judgement.gate, decision, path)


def _start_canary(head: HistoryEntry, judgement: Judgement) -> bool:
    """Start the candidate as a canary unless it is one already; return False after a write conflict."""
    version = judgement.version
    if (head.canary, head.canary_content) == (version.number, version.content_hash):
        return True
    return commit_canary(head, version, "; ".join(judgement.reasons)) is not None


def _find_production(head: HistoryEntry, rules: PromotionRules) -> tuple[Version | None, list[str]]:
    """Return the version in production, and the waived rules in words.

    Without a production, for the first model of a target or by an override, it is missing.

    Raises:
        ConfigError: The target had a production, whose alias was moved or removed by hand, or a canary is asked for and
            the target has no production.
    """
    override = rules.override
    production = None if head.production is None else find_by_number(head.target, head.production)
    if production is None:
        last = last_production(head.target)
        if last is None and rules.canary:
            raise ConfigError(f"{head.target}: a canary serves beside production; promote a first model before")
        if last is None:
            return None, []
        fault = f"version {last} was removed from it by hand"
        remedy = "set the alias production to a sound version again"
    else:
        standing = gate_standing(production)
        if standing.passed:
            return production, []
        fault = f"version {production.number} is in it {standing.how}"
        remedy = "put back a version that passed with 'tilewise rollback version=N'"
    override.waive(
        f"{head.target}: a candidate is judged against production, but {fault}; {remedy}",
        "gate.override.production=true",
        ConfigError,
        requested=override.production,
    )
    return None, [f"{fault}, so the floors of a first model apply"]


def _is_in_production(version: Version, production: Version) -> bool | None:
    """Return whether production has the files of `version`; None if it was published with them and they are damaged.

    :func:`publish` has compared the files of `version` with the candidate's. Tags decide nothing, since a person can
    edit them: production's files are read, and if they are damaged the run's parameter is the witness, which MLflow
    does not let anybody change.
    """
    if production.number == version.number:
        return True
    published = published_content(production)
    if version.content_hash not in (production.content_hash, published):
        return False
    try:
        return load_version(production).content_hash == version.content_hash
    except ArtefactError:
        return None if published == version.content_hash else False


def _repair(head: HistoryEntry, version: Version) -> bool:
    """Serve the same content from another version, since production's own files are lost or damaged."""
    reason = "the same files, published again: those of the version before are lost or damaged"
    return bool(commit_change(head, version.number, "promoted", reason, previous=head.previous))


def _already_in_production(version: Version, candidate: TrainedModel, folder: Path) -> Promotion:
    """Restore missing files of a candidate in production, with the decision that put it there."""
    path, identity = folder / DECISION_FILE, model_identity(candidate)
    logged, on_disk = (parse_decision(t) for t in (logged_decision(version), read_decision_text(path)))
    if _promotes(logged, identity):
        decision = _confirmed(path, logged) or logged
    elif _promotes(on_disk, identity):
        decision = on_disk
    else:
        decision = {
            "target": candidate.target.name,
            "outcome": "already_production",
            "reasons": ["this content is in production already, and the record of its promotion is lost"],
            "candidate": identity,
        }
    _write_or_warn(folder, decision_to_json(decision), decision, f"{version}: already_production")
    reasons = ("this content is in production already",)
    return Promotion("already_production", version, reasons, None, decision, path)


def _promotes(decision: PromotionDecision | None, identity: ModelIdentity) -> TypeGuard[PromotionDecision]:
    return decision is not None and decision["outcome"] == "promoted" and decision["candidate"] == identity


def _write_or_warn(folder: Path, text: str, decision: PromotionDecision, done: str) -> None:
    """Write the record of a decision that is carried out: production may have changed, so failing is too late."""
    try:
        _write_files(folder, text, decision)
    except OSError as e:
        fault = f"{done}, but its record in {folder} cannot be written: {e.strerror or e}"
        warnings.warn(f"{fault}; MLflow has the record, and running the command again writes it", stacklevel=2)


def _write_files(folder: Path, text: str, decision: PromotionDecision) -> None:
    write_decision_text(folder / DECISION_FILE, text)
    write_decision_text(folder / DECISION_PAGE, decision_to_html(decision))
    write_decision_text(folder / OUTCOME_FILE, outcome_to_json(decision))


def _confirmed(path: Path, decision: PromotionDecision) -> PromotionDecision | None:
    """Return the decision on disk if it is of the same promotion as the registry's `decision`, else None.

    The same candidate was promoted with the same figures on the same rows, under the same thresholds and override, over
    a production that this registry never had. That decision says more than the one about a first model.
    """
    earlier = parse_decision(read_decision_text(path))
    if not _promotes(earlier, decision["candidate"]) or earlier.get("override") != decision.get("override"):
        return None
    recorded, now = ({**(d.get("holdout") or {})} for d in (earlier, decision))
    same_rows = bool(recorded) and all(now.get(key) == value for key, value in recorded.items())  # older: fewer keys
    before, gate = (d.get("gate") or {} for d in (earlier, decision))
    same_figures = all(before.get(key) == gate.get(key) for key in ("thresholds", "candidate"))
    return earlier if same_rows and same_figures else None
