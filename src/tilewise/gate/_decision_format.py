"""The format of ``promotion.json`` as types. Keys and values are read by other tools, so they do not change."""

from __future__ import annotations

import types
from functools import cache
from typing import TypedDict, TypeGuard, get_args, get_origin, get_type_hints, is_typeddict

_MAX_FIGURE = 1e300


class ModelIdentity(TypedDict):
    """The origin of one model."""

    content_hash: str
    data_hash: str | None
    git_revision: str | None
    label: str
    pool_size: int


class HoldoutIdentity(TypedDict, total=False):
    """The rows that both models were evaluated on; data measured only once has no `noise_ceiling`.

    `n_problems` counts the problems whose kernels differ in speed, `problems` is their digest. Older files lack both.
    """

    hash: str
    split_rule: str
    fraction: float
    noise_ceiling: dict[str, float] | None
    n_problems: int
    problems: str


class OverrideEntry(TypedDict):
    """The rules that a person waived, in words, and the reason that the person gave."""

    reason: str
    waived: list[str]


class CheckEntry(TypedDict):
    """One criterion with figures; see :class:`tilewise.gate.Check`."""

    name: str
    candidate: float
    reference: float
    allowed_drop_points: float
    passed: bool
    reason: str
    change_points: float


class ConditionEntry(TypedDict):
    """One criterion without figures; see :class:`tilewise.gate.Condition`."""

    name: str
    passed: bool
    reason: str


class SliceEntry(TypedDict):
    """Both models within one slice; see :class:`tilewise.gate.SliceCheck`."""

    slice: str
    value: str
    n_problems: int
    candidate: dict[str, float]
    production: dict[str, float]
    at_best_points: dict[str, float]
    failed: list[str]


class RegressionEntry(TypedDict):
    """A holdout problem whose efficiency falls too far."""

    problem: dict[str, object]
    candidate: float
    production: float
    drop_points: float


class ProblemEntry(TypedDict):
    """A problem that dispatchers timed with both kernels; see :class:`tilewise.gate.ProblemEvidence`."""

    problem: dict[str, int | str]
    production: str
    candidate: str
    observations: int
    speed_up: float
    calls: int
    saved_ms: float


class EvidenceEntry(TypedDict):
    """The gate's verdict on shadow observations; `speed_up` holds the estimate and both ends of its interval."""

    passed: bool
    note: str
    n_problems: int
    n_differing: int
    n_observations: int
    candidate_right: int
    production_right: int
    speed_up: list[float] | None
    regressed: list[ProblemEntry]


class GateEntry(TypedDict, total=False):
    """The gate's answer with every number behind it. Older files lack some keys."""

    promote: bool
    reasons: list[str]
    n_problems: int
    candidate: dict[str, float]
    production: dict[str, float] | None
    checks: list[CheckEntry]
    conditions: list[ConditionEntry]
    slices: list[SliceEntry]
    regressed: list[RegressionEntry]
    observed: EvidenceEntry | None
    thresholds: dict[str, object]


class PromotionDecision(TypedDict, total=False):
    """The content of ``promotion.json``. `production`, `holdout`, `gate` and `notes` need a judged candidate.

    Only a decision under waived rules has an `override`.
    """

    target: str
    outcome: str
    reasons: list[str]
    notes: list[str]
    candidate: ModelIdentity
    production: ModelIdentity | None
    holdout: HoldoutIdentity
    gate: GateEntry
    override: OverrideEntry


def is_decision(value: object) -> TypeGuard[PromotionDecision]:
    """Return whether parsed JSON is a decision: all keys have their types, and outcome and candidate are there.

    The file lies where anybody may edit it. Keys that this version does not know may hold anything.
    """
    return _fits(value, PromotionDecision) and isinstance(value, dict) and {"outcome", "candidate"} <= value.keys()


def _fits(value: object, kind: object) -> bool:
    """Return whether a JSON value has a type; objects are checked key by key."""
    if isinstance(kind, type) and is_typeddict(kind):
        hints, required = _hints(kind), getattr(kind, "__required_keys__", ())
        if type(value) is not dict or not value.keys() >= set(required):
            return False
        return all(_fits(entry, hints[key]) for key, entry in value.items() if key in hints)
    if get_origin(kind) is types.UnionType:
        return any(_fits(value, option) for option in get_args(kind))
    if get_origin(kind) is list:
        return type(value) is list and all(_fits(entry, *get_args(kind)) for entry in value)
    if get_origin(kind) is dict:
        return type(value) is dict and all(_fits(entry, get_args(kind)[1]) for entry in value.values())
    if kind is float:
        return type(value) in (int, float) and abs(value) < _MAX_FIGURE  # type: ignore[arg-type]  # NaN compares false
    return kind is object or type(value) is kind


@cache
def _hints(kind: type) -> dict[str, object]:
    return get_type_hints(kind)
