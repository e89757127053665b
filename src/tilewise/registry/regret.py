"""Rolling back by what was observed: a production that is surely slower than the version before it.

For a job beside the dispatchers that has the right to write to the registry; they have not. After a promotion they
shadow ``previous``, so observations of the two go on coming. Doing it again changes nothing: once ``previous`` is in
production, the same observations speak for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewise.registry import history, versions
from tilewise.registry.observations import Observations
from tilewise.registry.observed import evidence
from tilewise.registry.observed_check import check_observed
from tilewise.registry.rollback import rollback
from tilewise.registry.thresholds import Thresholds
from tilewise.registry.versions import Version


@dataclass(frozen=True)
class Verdict:
    """What became of production, and why. `production` is the version that serves now; None: none does."""

    rolled_back: bool
    production: Version | None
    reason: str


def roll_back_on_regret(target: str, observations: Observations, thresholds: Thresholds) -> Verdict:
    """Put ``previous`` back where production was observed to be surely slower than it, beyond the gate's limits.

    Args:
        target: name of the target.
        observations: of a shadow; those of other models than these two do not count.
        thresholds: of the gate.

    Raises:
        ConfigError: somebody else changed production meanwhile.
        ArtefactError: the files of ``previous`` are not sound.
        RegistryUnavailableError: the registry went away, or others kept promoting.
    """
    head = history.settle(target)
    production, previous = (
        None if n is None else versions.by_number(target, n) for n in (head.production, head.previous)
    )
    if production is None or previous is None:
        return Verdict(False, production, "there is no previous version to go back to")
    if versions.ROLLED_BACK_TAG in previous.tags:
        return Verdict(False, production, f"version {previous.number} was rolled back itself")
    found = evidence(observations.found, production.content_hash, previous.content_hash)
    if not (found.problems or found.untimed):
        return Verdict(False, production, f"nothing was observed of versions {production.number} and {previous.number}")
    check = check_observed(found, thresholds)
    about = f"observed against version {previous.number}: {check.note}"
    if not check.surely_worse:
        return Verdict(False, production, about)
    lost = -found.saved_ms / found.served_ms if found.served_ms else 0.0
    reason = "; ".join([about, *(r for r in check.reasons if not r.startswith(check.note))])
    reason += f"; {lost:+.2%} GPU time" if lost else ""
    now, _ = rollback(target, previous.number, reason=reason, over=production.number)
    return Verdict(True, now, reason)
