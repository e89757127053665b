"""Promotion: publish a candidate, judge it against production on the same rows, move the aliases, keep a record.

Everything here may run again at any time: the same model, data and thresholds give the same aliases, no further run or
version, and the same bytes in ``promotion.json``. A registry that is new or was interrupted is brought to the state
that the record tells of. Many may promote at once: see :mod:`tilewise.registry.history`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewise.errors import RegistryUnavailableError
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.registry import history, versions
from tilewise.registry.gate import GateDecision
from tilewise.registry.history import Entry
from tilewise.registry.judge import Judgement, Outcome, identity, judge
from tilewise.registry.log_decision import log_decision, log_plots, logged_record
from tilewise.registry.observations import Observations
from tilewise.registry.publish import publish
from tilewise.registry.record import PAGE, RECORD, parse, read, to_text, write
from tilewise.registry.report import to_html
from tilewise.registry.thresholds import Thresholds
from tilewise.registry.versions import Version

if TYPE_CHECKING:
    import pandas as pd

_ATTEMPTS = 20  # judgements before giving up, while others keep promoting


@dataclass(frozen=True)
class Promotion:
    """What became of a candidate. `gate` is None where nothing had to be judged."""

    outcome: Outcome
    version: Version
    reasons: tuple[str, ...]
    gate: GateDecision | None
    record: Mapping[str, Any]
    path: Path

    @property
    def in_production(self) -> bool:
        """Whether the candidate is the model in production now."""
        return self.outcome != "refused"


def promote(
    model_dir: str | Path,
    frame: pd.DataFrame | Callable[[], pd.DataFrame],
    thresholds: Thresholds,
    reports: str | Path,
    *,
    holdout_fraction: float,
    experiment: str | None = None,
    observations: Observations | None = None,
) -> Promotion:
    """Publish the model in `model_dir` and let the gate decide whether it replaces ``@production``.

    Args:
        model_dir: the candidate's folder.
        frame: measurements, or what reads them, which takes longer than all else where nothing has to be judged; both
            models are judged, now, on the problems that the holdout rule keeps from training.
        thresholds: of the gate.
        reports: folder that gets ``promotion.json``, also when the answer is no, and ``promotion.html``.
        holdout_fraction: of the holdout rule, see :func:`tilewise.data.splits.holdout_mask`.
        experiment: MLflow experiment; None: named after the target.
        observations: of a shadow, which the gate judges as well; None: it does not.

    Raises:
        ArtefactError: the candidate is not sound.
        ConfigError: the candidate was trained on some of that holdout.
        DataError: there is no problem to judge by.
        RegistryUnavailableError: the registry went away, or others kept promoting.
    """
    candidate = load_artefact(Path(model_dir))
    version = publish(model_dir, experiment=experiment)
    folder = Path(reports)
    target = candidate.target.name
    for _ in range(_ATTEMPTS):
        head = history.settle(target)
        production = None if head.production is None else versions.by_number(target, head.production)
        if production is not None and production.content_hash == version.content_hash:
            if production.number == version.number or _mended(head, version):
                return _reconcile(version, candidate, folder)
            continue
        if callable(frame):
            frame = frame()
        judged = judge(version, candidate, production, frame, thresholds, holdout_fraction, observations)
        if history.settle(target) == head:
            promotion = _carry_out(judged, head, folder, experiment or target)
            if promotion:
                return promotion
        # somebody else was faster: what this was judged against is history
        version = versions.by_number(target, version.number) or version
    raise RegistryUnavailableError(f"{target}: others promoted {_ATTEMPTS} times meanwhile; run it again")


def _carry_out(judged: Judgement, head: Entry, folder: Path, experiment: str) -> Promotion | None:
    """The decision into the registry, then the aliases, then the files; None where another promotion was faster.

    Whatever interrupts this, the next call completes it.
    """
    record, path = judged.record, folder / RECORD
    if judged.outcome == "promoted" and head.production is None:
        record = _earlier(path, judged.record) or judged.record
    text = to_text(record)
    run_id, is_new = log_decision(judged, text, experiment)
    if judged.outcome == "promoted":
        reason = "; ".join(judged.reasons)
        number, replaced = judged.version.number, head.production
        if not history.commit(head, number, "promoted", reason, previous=replaced or head.previous, run_id=run_id):
            return None
    write(path, text)
    write(folder / PAGE, to_html(record))
    if is_new:
        log_plots(judged, run_id)
    return Promotion(judged.outcome, judged.version, judged.reasons, judged.gate, record, path)


def _mended(head: Entry, version: Version) -> bool:
    """Serve the same content from another version, where production's own files were lost."""
    reason = "the same files, published anew: those of the version before were lost"
    return bool(history.commit(head, version.number, "promoted", reason, previous=head.previous))


def _reconcile(version: Version, candidate: TrainedModel, folder: Path) -> Promotion:
    """The candidate's content is in production: mend what may be missing, and leave the record of how it got there."""
    path = folder / RECORD
    for text in (read(path), logged_record(version)):
        record = parse(text)
        if text and record and record["outcome"] == "promoted" and record["candidate"] == identity(candidate):
            break
    else:
        record = {
            "target": candidate.target.name,
            "outcome": "already_production",
            "reasons": ["this content is in production already, put there without the gate (rollback or by hand)"],
            "candidate": identity(candidate),
        }
        text = to_text(record)
    write(path, text)
    write(folder / PAGE, to_html(record))
    reasons = ("this content is in production already",)
    return Promotion("already_production", version, reasons, None, record, path)


def _earlier(path: Path, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record on disk, where a new registry has just confirmed it.

    The same candidate was promoted on the same rows under the same thresholds, over a production that this registry
    never had: that record tells more than the one of a first model.
    """
    earlier = parse(read(path))
    if earlier is None or earlier["outcome"] != "promoted" or earlier["candidate"] != record["candidate"]:
        return None
    same_rows = earlier.get("holdout") == record["holdout"]
    return earlier if same_rows and earlier.get("gate", {}).get("thresholds") == record["gate"]["thresholds"] else None
