"""The format of ``promotion.json`` as types. Keys and values are read by other tools, so they do not change."""

from __future__ import annotations

from typing import TypedDict


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
