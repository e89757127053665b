"""The automatic rollback: replace a production that shadow observations show to be slower than its predecessor.

It is for a job beside the dispatchers, which may not write to the registry. After a promotion, dispatchers shadow
``previous``, so they keep observing both versions. Running it again changes nothing: once ``previous`` is in
production, the same observations speak for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.gate import Observations, Thresholds, check_evidence, gather_evidence
from tilewise.registry._gate_standing import find_withdrawal
from tilewise.registry._history import HistoryEntry, commit_canary, settle_history
from tilewise.registry._rollback import roll_back
from tilewise.registry._versions import Version, find_by_number


@dataclass(frozen=True)
class RollbackVerdict:
    """The verdict on production, or on a canary beside it.

    Attributes:
        rolled_back: True if production was replaced.
        production: The version that serves now; None without one.
        reason: The reason in words.
        canary_ended: True if a canary was ended; production stays.
    """

    rolled_back: bool
    production: Version | None
    reason: str
    canary_ended: bool = False


def roll_back_if_slower(target: str, observations: Observations, thresholds: Thresholds) -> RollbackVerdict:
    """Put ``previous`` back if production is significantly slower, beyond the gate's limits; or end such a canary.

    While there is a canary, it is judged against production, and production is left alone.

    Args:
        target: Name of the target.
        observations: Shadow observations; those of other models are ignored.
        thresholds: The limits of the gate.

    Raises:
        ConfigError: Another process changed production meanwhile.
        ArtefactError: The files of ``previous`` are not sound.
        RegistryUnavailableError: The registry does not answer any more, or other processes kept promoting.
    """
    head = settle_history(target)
    production, previous = (None if n is None else find_by_number(target, n) for n in (head.production, head.previous))
    if production is not None and head.canary is not None:
        return _end_canary_if_slower(head, production, observations, thresholds)
    if production is None or previous is None:
        return RollbackVerdict(False, production, "there is no previous version to go back to")
    if find_withdrawal(previous):
        return RollbackVerdict(False, production, f"version {previous.number} was rolled back itself")
    evidence = gather_evidence(observations.valid, production.content_hash, previous.content_hash)
    if not (evidence.problems or evidence.n_untimed):
        reason = f"nothing was observed of versions {production.number} and {previous.number}"
        return RollbackVerdict(False, production, reason)
    check = check_evidence(evidence, thresholds)
    reason = f"observed against version {previous.number}: {check.note}"
    if not check.surely_worse:
        return RollbackVerdict(False, production, reason)
    lost = -evidence.saved_ms / evidence.served_ms if evidence.served_ms else 0.0
    reason = "; ".join([reason, *(r for r in check.reasons if not r.startswith(check.note))])
    reason += f"; {lost:+.2%} GPU time" if lost else ""
    in_production, _ = roll_back(target, previous.number, reason=reason, over=production.number)
    return RollbackVerdict(True, in_production, reason)


def _end_canary_if_slower(
    head: HistoryEntry, production: Version, observations: Observations, thresholds: Thresholds
) -> RollbackVerdict:
    """End the canary if it is significantly slower than production."""
    canary = head.canary_content or ""
    check = check_evidence(gather_evidence(observations.valid, canary, production.content_hash), thresholds)
    reason = f"canary, version {head.canary}, observed against production: {check.note}"
    if not check.surely_worse:
        return RollbackVerdict(False, production, reason)
    reason = "; ".join([reason, *(r for r in check.reasons if not r.startswith(check.note))])
    ended = commit_canary(head, None, reason) is not None
    outcome = "the canary is ended" if ended else "another process was faster"
    return RollbackVerdict(False, production, f"{outcome}: {reason}", canary_ended=ended)
