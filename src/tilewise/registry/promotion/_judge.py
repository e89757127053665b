"""The judgement of a candidate: it and production are evaluated now, on the same holdout rows, in the same process.

Judging uses no logged figures, and it changes neither the registry nor the disk.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tilewise.data import TargetTable, table_hash
from tilewise.errors import ArtefactError, DataError
from tilewise.evaluate import Evaluation, evaluate, problem_groups, slice_names
from tilewise.gate import (
    Evidence,
    GateDecision,
    HoldoutEfficiencies,
    Observations,
    OverrideEntry,
    PromotionDecision,
    Slice,
    decide_promotion,
    gather_evidence,
    round_figures,
)
from tilewise.model import TrainedModel
from tilewise.ops import OPS
from tilewise.registry._gate_standing import find_withdrawal, gate_standing
from tilewise.registry._versions import HOLDOUT_TAG, Version, load_version
from tilewise.registry.promotion._holdout_problems import (
    HoldoutProblems,
    RecordedHoldout,
    recorded_holdout,
    require_problems,
    waived_holdout,
)
from tilewise.registry.promotion._judgement import (
    Judgement,
    Outcome,
    PromotionRules,
    override_in_words,
)
from tilewise.registry.promotion._override import Override, waived_limits
from tilewise.registry.promotion._recorded_rates import waived_rates
from tilewise.registry.promotion._selection_time import selection_time_ratio
from tilewise.registry.promotion._standing import model_identity

_WAIVE_PRODUCTION = "gate.override.production=true"


@dataclass(frozen=True)
class _Comparison:
    """Both models, evaluated on the same rows.

    Attributes:
        candidate, incumbent: The models. Without a production to compare with there is no `incumbent`.
        ours, theirs: Their evaluations. If the floors apply, there is no `theirs`.
        both: The problems judged on; see :attr:`Judgement.both`.
        recorded: Positions in `both` of the problems that production was judged on; None if that is not known.
        time_ratio: The candidate's time to select / the incumbent's; None if not compared.
        fraction: The holdout fraction.
        problems: The holdout problems.
        holdout_hash: Hash of the holdout rows.
        notes: Remarks for the reader of the decision.
        waived: The rules that the override waived, in words.
    """

    candidate: TrainedModel
    incumbent: TrainedModel | None
    ours: Evaluation
    theirs: Evaluation | None
    both: pd.DataFrame
    recorded: np.ndarray | None
    time_ratio: float | None
    fraction: float
    problems: HoldoutProblems
    holdout_hash: str
    notes: list[str]
    waived: list[str]


def judge(
    version: Version,
    candidate: TrainedModel,
    production: Version | None,
    frame: pd.DataFrame,
    rules: PromotionRules,
    waived: Sequence[str] = (),
) -> Judgement:
    """Evaluate the `candidate`, registered as `version`, and `production` on the holdout of `frame`, and decide.

    Args:
        version: The candidate's version.
        candidate: The candidate's model.
        production: The version to compare with; None if the floors of a first model apply.
        frame: Measurements.
        rules: The rules to judge by.
        waived: The rules that the override has waived already, in words.

    Raises:
        ArtefactError: Production cannot be loaded.
        ConfigError: The candidate was trained on some of that holdout, the holdout lacks problems of production's, or
            the limits are weaker than the shipped ones; unless an override waives the rule.
        DataError: There are too few problems to judge by, or no kernel of production's pool was measured on them.
        RegistryUnavailableError: A model cannot be fetched now.
    """
    compared = _compare(candidate, production, frame, rules)
    compared.waived[:0] = waived
    gate = _decide(version, compared, rules)
    outcome, reasons = _outcome(version, gate, "canary" if rules.canary else "promoted")
    override: OverrideEntry = {"reason": rules.override.reason, "waived": compared.waived}
    if compared.waived:
        reasons = (*reasons, override_in_words(override))
    decision = _decision(compared, gate, outcome, reasons)
    if compared.waived:
        decision["override"] = override
    return Judgement(
        version=version,
        model=candidate,
        ours=compared.ours,
        theirs=compared.theirs,
        both=compared.both,
        gate=gate,
        reasons=reasons,
        outcome=outcome,
        holdout_hash=compared.holdout_hash,
        holdout=compared.problems,
        selection_time_ratio=compared.time_ratio,
        decision=decision,
    )


def _decision(
    compared: _Comparison, gate: GateDecision, outcome: Outcome, reasons: tuple[str, ...]
) -> PromotionDecision:
    """Return the content of ``promotion.json``."""
    ours, incumbent = compared.ours, compared.incumbent
    ceiling = ours.noise_ceiling
    return {
        "target": compared.candidate.target.name,
        "outcome": outcome,
        "reasons": list(reasons),
        "notes": compared.notes,
        "candidate": model_identity(compared.candidate),
        "production": None if incumbent is None else model_identity(incumbent),
        "holdout": {
            "hash": compared.holdout_hash,
            "split_rule": ours.split_rule,
            "fraction": compared.fraction,
            "noise_ceiling": round_figures(dataclasses.asdict(ceiling)) if ceiling else None,
            "n_problems": len(compared.problems.kernels),
            "problems": compared.problems.digest,
        },
        "gate": gate.to_dict(),
    }


def _compare(
    candidate: TrainedModel, production: Version | None, frame: pd.DataFrame, rules: PromotionRules
) -> _Comparison:
    """Evaluate both models on the same rows, which must be fit to judge by."""
    target, override = candidate.target, rules.override
    waived = waived_limits(rules.thresholds, target, override)
    incumbent = _load_incumbent(production, override, waived)
    fraction, notes = rules.holdout_fraction, list[str]()
    if incumbent is not None:
        fraction, notes = fair_fraction(incumbent, fraction)
    table = TargetTable.of(frame, target).holdout(fraction)
    problems = HoldoutProblems.of(table)
    ours = evaluate(candidate, frame, fraction)
    require_problems(problems, rules.thresholds.min_problems)
    record = recorded_holdout(target.name, production)
    waived += waived_holdout(problems, record, override)
    waived += waived_rates(problems, candidate, incumbent, record, override)
    holdout = table.rows.reset_index(drop=True)
    holdout_hash = table_hash(holdout)
    theirs = None if incumbent is None else _evaluate_incumbent(incumbent, holdout, override, waived)
    both = _align(target.op, problems, ours, theirs)
    recorded = None if record is None else _positions(target.op, both, problems, record)
    ratio = None
    if incumbent is not None and theirs is not None:
        ratio = selection_time_ratio(candidate, incumbent, both, allowed=rules.thresholds.selection_time_factor)
    if incumbent is not None and production is not None:
        notes += _differences(candidate, incumbent)
        if production.tags.get(HOLDOUT_TAG, holdout_hash) != holdout_hash:
            notes.append("the holdout rows differ from those that production was judged on; both are judged on these")
    return _Comparison(
        candidate, incumbent, ours, theirs, both, recorded, ratio, fraction, problems, holdout_hash, notes, waived
    )


def fair_fraction(incumbent: TrainedModel, fraction: float) -> tuple[float, list[str]]:
    """Return the holdout fraction that neither model was trained on, and notes about it.

    A smaller holdout is part of a larger one, so the smaller fraction is fair to both.
    """
    trained = float(incumbent.manifest.get("holdout_fraction", fraction))
    if trained >= fraction:
        return fraction, []
    if trained > 0:
        return trained, [f"production was trained with a holdout of {trained:g}; both are judged on that one"]
    return fraction, ["production was trained on all problems, these included: the comparison favours it"]


def _decide(version: Version, compared: _Comparison, rules: PromotionRules) -> GateDecision:
    """Ask the gate, and append notes about observations that do not count."""
    op, both = compared.candidate.target.op, compared.both
    evidence = None
    if rules.observations is not None:
        evidence = _evidence(rules.observations, compared.candidate, compared.incumbent, compared.notes)
    holdout = HoldoutEfficiencies(
        both[list(OPS[op].column_names())].to_dict("records"),
        both["efficiency"].to_numpy(dtype=float),
        None if compared.theirs is None else both["efficiency_production"].to_numpy(dtype=float),
        [Slice(label, value, members) for label, value, members in problem_groups(both, slice_names(op, both))],
        compared.recorded,
    )
    return decide_promotion(
        holdout,
        rules.thresholds,
        selection_time_ratio=compared.time_ratio,
        selftest_error=_selftest_error(version, compared.candidate),
        evidence=evidence,
    )


def _outcome(version: Version, gate: GateDecision, passed: Outcome) -> tuple[Outcome, tuple[str, ...]]:
    """Return the outcome with its reasons: a content that was rolled back is not promoted again by itself."""
    withdrawal = find_withdrawal(version)
    if withdrawal is None:
        return (passed if gate.promote else "refused"), gate.reasons
    fault, remedy = "it was rolled back from production", "to use it all the same: tilewise rollback version=N"
    if withdrawal.was_canary:
        fault = "it was a canary, which was ended"
        if gate_standing(version).kind != "rolled back":  # it was never in production, so no rollback leads to it
            remedy = "the same files stay refused: train another model"
    veto = f"{fault}: {withdrawal.reason}; {remedy}"
    return "refused", (veto, *(() if gate.promote else gate.reasons))


def _selftest_error(version: Version, candidate: TrainedModel) -> str | None:
    """Return why the registry's copy is not the sound copy of the judged candidate; None if it is."""
    try:
        stored = load_version(version)
    except ArtefactError as e:
        return str(e)
    return None if stored.content_hash == candidate.content_hash else "it holds other files than those judged"


def _load_incumbent(production: Version | None, override: Override, waived: list[str]) -> TrainedModel | None:
    """Load the model in production; return None without a production, or if a waived rule is appended.

    Raises:
        ArtefactError: Its files are unusable, and no override waives the rule.
    """
    if production is None:
        return None
    try:
        return load_version(production)
    except ArtefactError as e:
        rule = f"a candidate is judged against production, which cannot be loaded: {e}"
        remedy = (
            "put a sound version into production with 'tilewise rollback version=N', or restore its files in the "
            "registry"
        )
        override.waive(f"{rule}; {remedy}", _WAIVE_PRODUCTION, ArtefactError, requested=override.production)
        # No version number and no path: they differ between registries.
        waived.append(f"production cannot be loaded ({type(e).__name__}), so the floors of a first model apply")
        return None


def _evaluate_incumbent(
    incumbent: TrainedModel, holdout: pd.DataFrame, override: Override, waived: list[str]
) -> Evaluation | None:
    """Evaluate production on the holdout rows; return None if a waived rule is appended.

    Raises:
        DataError: No kernel of its pool was measured there, and no override waives the rule.
    """
    try:
        return evaluate(incumbent, holdout)
    except DataError:
        rule = "a candidate is judged against production, but no kernel of production's pool was measured on these rows"
        remedy = "add measurements of these kernels to data=, or go back with 'tilewise rollback version=N'"
        override.waive(f"{rule}; {remedy}", _WAIVE_PRODUCTION, DataError, requested=override.production)
        waived.append("no kernel of production's pool was measured on these rows, so the floors of a first model apply")
        return None


def _align(op: str, problems: HoldoutProblems, ours: Evaluation, theirs: Evaluation | None) -> pd.DataFrame:
    """Return one row per problem judged on, sorted; see :attr:`Judgement.both`."""
    key = list(OPS[op].column_names())
    # A layout is both a key column and a label.
    labels = [n for n in slice_names(op, ours.per_problem) if n not in key]
    keep = [*key, *labels, "efficiency", "selected", "oracle"]
    judged = pd.DataFrame([problem.to_dict() for problem in problems.problems.values()], columns=key)
    filled = {"efficiency": 0.0} | dict.fromkeys([*labels, "selected", "oracle"], "none")
    if theirs is None:
        both = judged.merge(ours.per_problem[keep], on=key, how="left").fillna(filled)
    else:
        other = theirs.per_problem.reindex(columns=keep)
        either = ours.per_problem[keep].merge(other, on=key, how="outer", suffixes=("", "_production"))
        for name in (*labels, "oracle"):
            either[name] = either[name].fillna(either[f"{name}_production"])
        filled |= {"efficiency_production": 0.0, "selected_production": "none"}
        both = judged.merge(either.fillna(filled)[[*keep, "efficiency_production", "selected_production"]], on=key)
    return both.sort_values(key, kind="stable").reset_index(drop=True)


def _positions(op: str, both: pd.DataFrame, problems: HoldoutProblems, record: RecordedHoldout) -> np.ndarray | None:
    """Return the rows of `both` whose problems are recorded; None if the list of these is not known."""
    if record.problems is None:
        return None
    recorded = {tuple(p.to_dict().values()) for key, p in problems.problems.items() if key in record.problems.kernels}
    rows = both[list(OPS[op].column_names())].itertuples(index=False, name=None)
    return np.flatnonzero([row in recorded for row in rows])


def _evidence(
    observations: Observations, candidate: TrainedModel, incumbent: TrainedModel | None, notes: list[str]
) -> Evidence | None:
    """Gather the evidence about exactly these two models, and append notes about observations that do not count."""
    if observations.damaged:
        notes.append(f"{observations.damaged} lines of the observations are damaged and left out")
    if incumbent is None:
        notes.append("what was observed does not count: there is no production to compare with")
        return None
    evidence = gather_evidence(observations.valid, candidate.content_hash, incumbent.content_hash)
    if evidence.n_other_models:
        notes.append(f"{evidence.n_other_models} observations are of other models and left out")
    if evidence.n_untimed:
        notes.append(f"{evidence.n_untimed} observed problems have two picks that were not timed, and are left out")
    return evidence


def _differences(candidate: TrainedModel, incumbent: TrainedModel) -> list[str]:
    """Describe differences of the models beyond their picks."""
    notes = []
    ours, theirs = set(candidate.pool.names), set(incumbent.pool.names)
    if ours != theirs:
        notes.append(f"the pools differ: {len(ours - theirs)} kernels are new, {len(theirs - ours)} are gone")
    if candidate.features.schema_hash != incumbent.features.schema_hash:
        added = len(set(candidate.features.names) - set(incumbent.features.names))
        gone = len(set(incumbent.features.names) - set(candidate.features.names))
        notes.append(f"the feature schemas differ: {added} features are new, {gone} are gone")
    return notes
