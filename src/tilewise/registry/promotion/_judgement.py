"""The rules of a promotion, and the judgement of one candidate under them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from tilewise.checks import require
from tilewise.evaluate import Evaluation
from tilewise.gate import GateDecision, Observations, OverrideEntry, PromotionDecision, Thresholds
from tilewise.metrics import Floats
from tilewise.model import TrainedModel
from tilewise.registry._versions import Version
from tilewise.registry.promotion._holdout_problems import HoldoutProblems
from tilewise.registry.promotion._override import Override

Outcome = Literal["promoted", "canary", "refused", "already_production", "unpublished"]


@dataclass(frozen=True)
class PromotionRules:
    """The rules that a candidate is judged by.

    Attributes:
        thresholds: The limits of the gate.
        holdout_fraction: The fraction of the holdout rule; see :func:`tilewise.data.held_out`.
        observations: Shadow observations for the gate to judge as well; None to judge by measurements alone.
        override: The rules that may be waived; by default none.
        canary: True to let a candidate that passes serve a share of the hosts first, instead of production's place.

    Raises:
        ConfigError: The fraction is not between 0 and 1.
    """

    thresholds: Thresholds
    holdout_fraction: float
    observations: Observations | None = None
    override: Override = field(default_factory=Override)
    canary: bool = False

    def __post_init__(self) -> None:
        fraction = self.holdout_fraction
        require("holdout.fraction must lie between 0 and 1", 0 < fraction < 1, fraction)


@dataclass(frozen=True)
class Judgement:
    """A decision about a candidate, and the evaluations behind it.

    Attributes:
        version: The candidate.
        model: The candidate's model.
        ours: The candidate's evaluation.
        theirs: Production's evaluation on the same rows; None if there is no production to compare with.
        both: One row per problem of the holdout whose kernels differ in speed and, with a `theirs`, for which either
            model has a kernel: problem columns, labels, `efficiency` and, with a `theirs`, `efficiency_production`. A
            model without a kernel for a problem has efficiency 0.
        gate: The gate's answer.
        reasons: The gate's reasons, preceded by a veto if the candidate was rolled back, and followed by the override.
        outcome: The result of the judgement.
        holdout_hash: Hash of the rows judged on.
        holdout: The problems judged on.
        selection_time_ratio: The candidate's time to select / production's; None if not compared.
        decision: The content of ``promotion.json``, equal for equal judgements.
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
    holdout: HoldoutProblems
    selection_time_ratio: float | None
    decision: PromotionDecision

    @property
    def override(self) -> str | None:
        """Return the waived rules and the reason in words; None without an override."""
        entry = self.decision.get("override")
        return None if entry is None else override_in_words(entry)

    def efficiencies(self) -> dict[str, Floats]:
        """Return the efficiencies of each model by its role, shape (problems,)."""
        by_model = {"candidate": self.both["efficiency"].to_numpy(dtype=np.float64)}
        if self.theirs is not None:
            by_model["production"] = self.both["efficiency_production"].to_numpy(dtype=np.float64)
        return by_model


def override_in_words(entry: OverrideEntry) -> str:
    """Return an override in one line."""
    return f"OVERRIDE ({entry['reason']}): {'; '.join(entry['waived'])}"
