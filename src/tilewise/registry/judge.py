"""Judging a candidate against production: both evaluated now, on the same holdout rows, in the same process.

Nothing here is taken from a log, and nothing is changed: neither the registry nor the disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from tilewise.data.digest import table_hash
from tilewise.data.rows import is_of
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import ArtefactError, DataError
from tilewise.evaluate.holdout import evaluate
from tilewise.evaluate.result import Evaluation
from tilewise.evaluate.slices import groups, slice_names
from tilewise.metrics import Floats
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Target
from tilewise.registry import versions
from tilewise.registry.gate import GateDecision, decide, rounded
from tilewise.registry.observations import Observations
from tilewise.registry.observed import Evidence, evidence
from tilewise.registry.selection_time import selection_time_ratio
from tilewise.registry.slices import Slice
from tilewise.registry.thresholds import Thresholds
from tilewise.registry.versions import HOLDOUT_TAG, Version

Outcome = Literal["promoted", "refused", "already_production"]


@dataclass(frozen=True)
class Judgement:
    """A decision and what it rests on.

    Attributes:
        version: the candidate.
        model: its files, loaded.
        ours: evaluation of the candidate.
        theirs: of production, on the same rows; None where there is none to compare with.
        both: a row a problem that either model can judge: problem columns, labels, `efficiency`, and, where there is
            a `theirs`, `efficiency_production`. A model without any kernel for a problem has 0.
        gate: what the gate says.
        reasons: the gate's, and what it cannot know.
        outcome: what is to happen.
        holdout_hash: of the rows that were judged on.
        selection_time_ratio: the candidate's time to select / production's; None: not compared.
        record: all of it as plain data, equal for equal decisions.
    """

    version: Version
    model: TrainedModel
    ours: Evaluation
    theirs: Evaluation | None
    both: pd.DataFrame
    gate: GateDecision
    reasons: tuple[str, ...]
    outcome: Outcome
    holdout_hash: str
    selection_time_ratio: float | None
    record: Mapping[str, Any]


def judge(
    version: Version,
    candidate: TrainedModel,
    production: Version | None,
    frame: pd.DataFrame,
    thresholds: Thresholds,
    fraction: float,
    observations: Observations | None = None,
) -> Judgement:
    """Evaluate both models and decide.

    Args:
        version: the candidate in the registry.
        candidate: its model.
        production: what it is to replace; None: nothing.
        frame: measurements.
        thresholds: of the gate.
        fraction: of the holdout rule, see :func:`tilewise.data.splits.holdout_mask`.
        observations: of a shadow; those of other models are left out.

    Raises:
        ConfigError: the candidate was trained on some of that holdout.
        DataError: there is no problem to judge by.
        RegistryUnavailableError: a model cannot be fetched now.
    """
    incumbent, notes = _incumbent(production)
    if incumbent is not None:
        fraction, notes = fair_fraction(incumbent, fraction)
    ours = evaluate(candidate, frame, fraction)
    holdout = _holdout_rows(frame, candidate.target, fraction)
    theirs = _evaluate_incumbent(incumbent, holdout, notes)
    both = _align(candidate.target.op, ours, theirs)
    ratio = None
    if incumbent is not None and theirs is not None:
        ratio = selection_time_ratio(candidate, incumbent, both, allowed=thresholds.selection_time_factor)
    observed = None
    if observations is not None:
        observed = _observed(observations, candidate, incumbent, notes)
    gate = decide(
        both[list(OPS[candidate.target.op].column_names())].to_dict("records"),
        both["efficiency"].to_numpy(dtype=np.float64),
        None if theirs is None else both["efficiency_production"].to_numpy(dtype=np.float64),
        thresholds,
        slices=_slices(candidate.target.op, both),
        selection_time_ratio=ratio,
        selftest_error=_selftest_error(version),
        observed=observed,
    )
    holdout_hash = table_hash(holdout)
    if incumbent is not None and production is not None:
        notes += _changes(candidate, incumbent)
        if production.tags.get(HOLDOUT_TAG, holdout_hash) != holdout_hash:
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
        "candidate": identity(candidate),
        "production": None if incumbent is None else identity(incumbent),
        "holdout": {
            "hash": holdout_hash,
            "split_rule": ours.split_rule,
            "fraction": fraction,
            "noise_ceiling": rounded(dataclasses.asdict(ours.noise_ceiling)) if ours.noise_ceiling else None,
        },
        "gate": gate.to_dict(),
    }
    return Judgement(version, candidate, ours, theirs, both, gate, reasons, outcome, holdout_hash, ratio, record)


def identity(model: TrainedModel) -> dict[str, Any]:
    """What a record knows a model by."""
    return {
        "content_hash": model.content_hash,
        "data_hash": model.manifest.get("data_hash"),
        "git_revision": model.manifest.get("git_revision"),
        "label": model.label,
        "pool_size": len(model.pool),
    }


def fair_fraction(incumbent: TrainedModel, fraction: float) -> tuple[float, list[str]]:
    """The fraction that neither model was trained on: a smaller holdout is part of a larger one."""
    trained = float(incumbent.manifest.get("holdout_fraction", fraction))
    if trained >= fraction:
        return fraction, []
    if trained > 0:
        return trained, [f"production was trained with a holdout of {trained:g}; both are judged on that one"]
    return fraction, ["production was trained on all problems, these included: the comparison favours it"]


def _selftest_error(version: Version) -> str | None:
    try:
        versions.load(version)
    except ArtefactError as e:
        return str(e)
    return None


def _incumbent(production: Version | None) -> tuple[TrainedModel | None, list[str]]:
    """The model in production; None, with a note, where its files can serve nobody any more."""
    if production is None:
        return None, []
    try:
        return versions.load(production), []
    except ArtefactError as e:
        # Without version numbers and paths: they differ from registry to registry.
        reason = (
            f"production ({production.content_hash[:12]}) cannot be loaded, so the floors apply: {type(e).__name__}"
        )
        return None, [reason]


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


def _align(op: str, ours: Evaluation, theirs: Evaluation | None) -> pd.DataFrame:
    """The union of both models' problems, sorted; see :attr:`Judgement.both`."""
    key = list(OPS[op].column_names())
    # A layout is key and label at once.
    keep = [*key, *(n for n in slice_names(op, ours.per_problem) if n not in key), "efficiency", "selected", "oracle"]
    mine = ours.per_problem[keep]
    if theirs is None:
        return mine.sort_values(key, kind="stable").reset_index(drop=True)
    other = theirs.per_problem.reindex(columns=keep)
    both = mine.merge(other, on=key, how="outer", suffixes=("", "_production"))
    for name in (n for n in keep if n not in (*key, "efficiency", "selected")):
        both[name] = both[name].fillna(both[f"{name}_production"])
    filled = {"efficiency": 0.0, "efficiency_production": 0.0, "selected": "none", "selected_production": "none"}
    both = both.fillna(filled)[[*keep, "efficiency_production", "selected_production"]]
    return both.sort_values(key, kind="stable").reset_index(drop=True)


def _slices(op: str, both: pd.DataFrame) -> list[Slice]:
    return [Slice(label, value, members) for label, value, members in groups(both, slice_names(op, both))]


def _observed(
    observations: Observations, candidate: TrainedModel, incumbent: TrainedModel | None, notes: list[str]
) -> Evidence | None:
    """What a shadow saw of exactly these two, with a note on what does not count."""
    if observations.damaged:
        notes.append(f"{observations.damaged} lines of the observations are damaged and left out")
    if incumbent is None:
        notes.append("what was observed does not count: there is no production to compare with")
        return None
    found = evidence(observations.found, candidate.content_hash, incumbent.content_hash)
    if found.others:
        notes.append(f"{found.others} observations are of other models and left out")
    if found.untimed:
        notes.append(f"{found.untimed} observed problems have two picks that were not timed, and are left out")
    return found


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


def efficiencies(judged: Judgement) -> dict[str, Floats]:
    """Each model's efficiencies, for plots."""
    found = {"candidate": judged.both["efficiency"].to_numpy(dtype=np.float64)}
    if judged.theirs is not None:
        found["production"] = judged.both["efficiency_production"].to_numpy(dtype=np.float64)
    return found
