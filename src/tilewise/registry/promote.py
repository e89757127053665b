"""Promotion: publish a candidate, judge it against production on the same rows, move the aliases, keep a record.

Everything here may run again at any time: the same model, data and thresholds give the same aliases, no further run or
version, and the same bytes in ``promotion.json``. A registry that is new or was interrupted is brought to the state
that the record tells of.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tilewise.data.digest import table_hash
from tilewise.data.rows import is_of
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import ArtefactError, ConfigError, DataError, RegistryUnavailableError, UnknownTargetError
from tilewise.evaluate.holdout import evaluate
from tilewise.evaluate.result import Evaluation
from tilewise.files import write_text
from tilewise.model.artefact import TrainedModel, load_artefact
from tilewise.ops import OPS, Target
from tilewise.registry import versions
from tilewise.registry.gate import GateDecision, Thresholds, decide, rounded
from tilewise.registry.publish import open_run, publish
from tilewise.registry.tracking import guard
from tilewise.registry.versions import Version

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

Outcome = Literal["promoted", "refused", "already_production"]

RECORD = "promotion.json"
_RECORD_TAG, _HOLDOUT_TAG = "gate_record", "holdout_hash"
_ATTEMPTS = 5  # judgements before giving up, while others keep promoting


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
    frame: pd.DataFrame,
    thresholds: Thresholds,
    reports: str | Path,
    *,
    holdout_fraction: float,
    experiment: str | None = None,
) -> Promotion:
    """Publish the model in `model_dir` and let the gate decide whether it replaces ``@production``.

    Args:
        model_dir: the candidate's folder.
        frame: measurements; both models are judged, now, on the problems that the holdout rule keeps from training.
        thresholds: of the gate.
        reports: folder that gets ``promotion.json``, also when the answer is no.
        holdout_fraction: of the holdout rule, see :func:`tilewise.data.splits.holdout_mask`.
        experiment: MLflow experiment; None: named after the target.

    Raises:
        ArtefactError: the candidate is not sound.
        ConfigError: the candidate was trained on some of that holdout.
        DataError: there is no problem to judge by.
        RegistryUnavailableError: the registry went away, or others kept promoting.
    """
    candidate = load_artefact(Path(model_dir))
    version = publish(model_dir, experiment=experiment)
    path = Path(reports) / RECORD
    target = candidate.target.name
    for _ in range(_ATTEMPTS):
        production = versions.by_alias(target, versions.PRODUCTION)
        if production is not None and production.content_hash == version.content_hash:
            return _reconcile(version, candidate, path)
        judged = _judge(version, candidate, production, frame, thresholds, holdout_fraction)
        if versions.aliases(target).get(versions.PRODUCTION) == (production.number if production else None):
            return _carry_out(judged, production, path, experiment or target)
    raise RegistryUnavailableError(f"{target}: others promoted {_ATTEMPTS} times meanwhile; run it again")


def rollback(target: str, number: int | None = None, *, reason: str = "") -> tuple[Version, Version]:
    """Put an earlier version back into production. The one it replaces is not promoted again by itself.

    Args:
        target: name of the target.
        number: version; None: the one with alias ``previous``.
        reason: why, in words; kept with both versions.

    Returns:
        The version now in production, and the one that was.

    Raises:
        UnknownTargetError: nothing of the target is in production, or it has no such version.
        ConfigError: the version is in production already, or was itself rolled back.
        ArtefactError: the version's files are not sound.
    """
    reason = reason.strip() or "no reason given"
    current = versions.by_alias(target, versions.PRODUCTION)
    if current is None:
        raise UnknownTargetError(f"{target} has nothing in production to roll back from")
    goal = versions.by_number(target, number) if number is not None else versions.by_alias(target, versions.PREVIOUS)
    if goal is None:
        known = ", ".join(str(v.number) for v in versions.versions(target))
        raise UnknownTargetError(
            f"{target} has no {'previous version' if number is None else f'version {number}'}; it has {known}"
        )
    if goal.number == current.number:
        raise ConfigError(f"{goal} is in production already")
    if number is None and versions.ROLLED_BACK_TAG in goal.tags:
        raise ConfigError(f"{goal} was rolled back itself ({goal.tags[versions.ROLLED_BACK_TAG]}); name one: version=N")
    _load(goal)  # never a broken model into production
    versions.set_tag(current, versions.ROLLED_BACK_TAG, reason)
    versions.set_tag(goal, "rolled_back_to", f"from version {current.number}: {reason}")
    versions.delete_tag(goal, versions.ROLLED_BACK_TAG)
    versions.set_alias(current, versions.PREVIOUS)
    versions.set_alias(goal, versions.PRODUCTION)
    return goal, current


@dataclass(frozen=True)
class _Judgement:
    version: Version
    evaluation: Evaluation
    gate: GateDecision
    reasons: tuple[str, ...]
    outcome: Outcome
    holdout_hash: str
    record: Mapping[str, Any]


def _judge(
    version: Version,
    candidate: TrainedModel,
    production: Version | None,
    frame: pd.DataFrame,
    thresholds: Thresholds,
    fraction: float,
) -> _Judgement:
    """Evaluate both models and decide; touches neither registry nor disk."""
    incumbent, notes = _incumbent(production)
    if incumbent is not None:
        fraction, notes = _fair_fraction(incumbent, fraction)
    ours = evaluate(candidate, frame, fraction)
    holdout = _holdout_rows(frame, candidate.target, fraction)
    theirs = _evaluate_incumbent(incumbent, holdout, notes)
    problems, efficiency, baseline = _align(candidate.target.op, ours, theirs)
    gate = decide(problems, efficiency, baseline, thresholds)
    holdout_hash = table_hash(holdout)
    if incumbent is not None and production is not None:
        notes += _changes(candidate, incumbent)
        if production.tags.get(_HOLDOUT_TAG, holdout_hash) != holdout_hash:
            notes.append("the holdout rows differ from those that production was judged on; both are judged on these")
    rolled_back = version.tags.get(versions.ROLLED_BACK_TAG)
    reasons = gate.reasons
    if rolled_back is not None:
        veto = f"it was rolled back from production: {rolled_back}; to use it all the same: tilewise rollback version=N"
        reasons = (veto, *(() if gate.promote else gate.reasons))
    outcome: Outcome = "promoted" if gate.promote and rolled_back is None else "refused"
    record = {
        "target": candidate.target.name,
        "outcome": outcome,
        "reasons": list(reasons),
        "notes": notes,
        "candidate": _identity(candidate),
        "production": None if incumbent is None else _identity(incumbent),
        "holdout": {
            "hash": holdout_hash,
            "split_rule": ours.split_rule,
            "fraction": fraction,
            "noise_ceiling": rounded(dataclasses.asdict(ours.noise_ceiling)) if ours.noise_ceiling else None,
        },
        "gate": gate.to_dict(),
    }
    return _Judgement(version, ours, gate, reasons, outcome, holdout_hash, record)


def _incumbent(production: Version | None) -> tuple[TrainedModel | None, list[str]]:
    """The model in production; None, with a note, where its files can serve nobody any more."""
    if production is None:
        return None, []
    try:
        return _load(production), []
    except ArtefactError as e:
        # Without version numbers and paths: they differ from registry to registry.
        reason = (
            f"production ({production.content_hash[:12]}) cannot be loaded, so the floors apply: {type(e).__name__}"
        )
        return None, [reason]


def _load(version: Version) -> TrainedModel:
    with tempfile.TemporaryDirectory() as scratch:
        return versions.load_verified(version, versions.download(version, scratch))


def _holdout_rows(frame: pd.DataFrame, target: Target, fraction: float) -> pd.DataFrame:
    rows = frame[is_of(frame, target)]
    return rows[holdout_mask(target.op, group_keys(target.op, rows), fraction)].reset_index(drop=True)


def _evaluate_incumbent(incumbent: TrainedModel | None, holdout: pd.DataFrame, notes: list[str]) -> Evaluation | None:
    if incumbent is None:
        return None
    try:
        return evaluate(incumbent, holdout)
    except DataError:
        notes.append("no kernel of production's pool was measured on these problems, so the floors apply")
        return None


def _fair_fraction(incumbent: TrainedModel, fraction: float) -> tuple[float, list[str]]:
    """The fraction that neither model was trained on: a smaller holdout is part of a larger one."""
    trained = float(incumbent.manifest.get("holdout_fraction", fraction))
    if trained >= fraction:
        return fraction, []
    if trained > 0:
        return trained, [f"production was trained with a holdout of {trained:g}; both are judged on that one"]
    return fraction, ["production was trained on all problems, these included: the comparison favours it"]


def _align(
    op: str, ours: Evaluation, theirs: Evaluation | None
) -> tuple[list[dict[str, Any]], NDArray[np.float64], NDArray[np.float64] | None]:
    """Efficiencies of both models on the union of their problems; a model without any kernel for one scores 0."""
    key = list(OPS[op].column_names())
    mine = ours.per_problem.set_index(key)["efficiency"]
    other = None if theirs is None else theirs.per_problem.set_index(key)["efficiency"]
    index = (mine.index if other is None else mine.index.union(other.index)).sort_values()
    problems = [dict(zip(key, values, strict=True)) for values in index.to_frame().to_numpy(dtype=object).tolist()]
    efficiency = mine.reindex(index).fillna(0.0).to_numpy(dtype="float64")
    baseline = None if other is None else other.reindex(index).fillna(0.0).to_numpy(dtype="float64")
    return problems, efficiency, baseline


def _changes(candidate: TrainedModel, incumbent: TrainedModel) -> list[str]:
    """What makes the two models incomparable but for their picks, said in words."""
    notes = []
    ours, theirs = set(candidate.pool.names), set(incumbent.pool.names)
    if ours != theirs:
        notes.append(f"the pools differ: {len(ours - theirs)} kernels are new, {len(theirs - ours)} are gone")
    if candidate.features.schema_hash != incumbent.features.schema_hash:
        added = len(set(candidate.features.names) - set(incumbent.features.names))
        gone = len(set(incumbent.features.names) - set(candidate.features.names))
        notes.append(f"the feature schemas differ: {added} features are new, {gone} are gone")
    return notes


def _identity(model: TrainedModel) -> dict[str, Any]:
    return {
        "content_hash": model.content_hash,
        "data_hash": model.manifest.get("data_hash"),
        "git_revision": model.manifest.get("git_revision"),
        "label": model.label,
        "pool_size": len(model.pool),
    }


def _carry_out(judged: _Judgement, production: Version | None, path: Path, experiment: str) -> Promotion:
    """Record first, then aliases, then the file: whatever interrupts this, the next call completes it."""
    record = judged.record
    if judged.outcome == "promoted" and production is None:
        record = _earlier(path, judged.record) or judged.record
    text = _to_text(record)
    _log(judged, text, experiment)
    if judged.outcome == "promoted":
        if production is not None:
            versions.set_alias(production, versions.PREVIOUS)
        versions.set_alias(judged.version, versions.PRODUCTION)
    _write(path, text)
    return Promotion(judged.outcome, judged.version, judged.reasons, judged.gate, record, path)


def _reconcile(version: Version, candidate: TrainedModel, path: Path) -> Promotion:
    """The candidate's content is in production: mend what may be missing, and leave the record of how it got there."""
    versions.set_alias(version, versions.PRODUCTION)  # another number only where the old one lost its files
    for text in (_read(path), _logged(version)):
        record = _parse(text)
        if text and record and record["outcome"] == "promoted" and record["candidate"] == _identity(candidate):
            break
    else:
        record = {
            "target": candidate.target.name,
            "outcome": "already_production",
            "reasons": ["this content is in production already, put there without the gate (rollback or by hand)"],
            "candidate": _identity(candidate),
        }
        text = _to_text(record)
    _write(path, text)
    reasons = ("this content is in production already",)
    return Promotion("already_production", version, reasons, None, record, path)


def _earlier(path: Path, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The record on disk, where a new registry has just confirmed it.

    The same candidate was promoted on the same rows under the same thresholds, over a production that this registry
    never had: that record tells more than the one of a first model.
    """
    earlier = _parse(_read(path))
    if earlier is None or earlier["outcome"] != "promoted" or earlier["candidate"] != record["candidate"]:
        return None
    same_rows = earlier.get("holdout") == record["holdout"]
    return earlier if same_rows and earlier.get("gate", {}).get("thresholds") == record["gate"]["thresholds"] else None


def _log(judged: _Judgement, text: str, experiment: str) -> None:
    """The decision's numbers and record, on the candidate's run and version; once for each different decision."""
    import mlflow
    from mlflow.entities import Metric, RunTag

    from tilewise.evaluate.report import write_plots  # matplotlib: not where nothing is drawn

    version, digest = judged.version, hashlib.sha256(text.encode()).hexdigest()
    if version.tags.get(_RECORD_TAG) == digest:
        return
    client = mlflow.MlflowClient()
    with guard(f"the gate's decision on {version} cannot be logged"):
        run_id = open_run(version, experiment)
        now = int(client.get_run(run_id).info.start_time)
        figures = {f"gate/{c.name}_change_points": c.change_points for c in judged.gate.checks}
        figures |= {f"holdout/{k}": float(v) for k, v in judged.evaluation.metrics.items()}
        finite = {k: v for k, v in figures.items() if abs(v) < float("inf")}
        client.log_batch(
            run_id,
            metrics=[Metric(k, v, now, 0) for k, v in finite.items()],
            tags=[RunTag(versions.DECISION_TAG, judged.outcome)],
        )
        client.log_text(run_id, text, f"promotion/{RECORD}")
        with tempfile.TemporaryDirectory() as scratch:
            for plot in write_plots(Path(scratch), judged.evaluation):
                client.log_artifact(run_id, str(plot), "plots/holdout")
    versions.set_tag(version, versions.DECISION_TAG, f"{judged.outcome}: {'; '.join(judged.reasons)}"[:1000])
    versions.set_tag(version, _HOLDOUT_TAG, judged.holdout_hash)
    versions.set_tag(version, _RECORD_TAG, digest)


def _logged(version: Version) -> str:
    """The record that the registry keeps of a version's last decision, or ""."""
    import mlflow

    if version.run_id is None or _RECORD_TAG not in version.tags:
        return ""
    try:
        return str(mlflow.artifacts.load_text(f"runs:/{version.run_id}/promotion/{RECORD}"))
    except (mlflow.exceptions.MlflowException, OSError):
        return ""


def _to_text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def _parse(text: str) -> dict[str, Any] | None:
    """A record, or None where the text is none."""
    try:
        record = json.loads(text)
        return record if {"outcome", "candidate"} <= set(record) else None
    except (ValueError, TypeError):
        return None


def _write(path: Path, text: str) -> None:
    if _read(path) != text:
        write_text(path, text)
