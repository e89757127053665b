"""The rollback: put an earlier version back into production."""

from __future__ import annotations

from tilewise.errors import ConfigError, RegistryUnavailableError, UnknownTargetError
from tilewise.registry._gate_standing import find_withdrawal, gate_standing
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry._registered_models import PREVIOUS
from tilewise.registry._versions import Version, find_by_alias, find_by_number, list_versions, load_version

_ATTEMPTS = 5


def roll_back(
    target: str, number: int | None = None, *, reason: str = "", over: int | None = None
) -> tuple[Version, Version]:
    """Put an earlier version back into production. The gate then refuses the version that it replaces.

    Args:
        target: Name of the target.
        number: The version to serve; None: the one with alias ``previous``.
        reason: The reason in words, stored with both versions and in the target's history.
        over: The version to replace; None: whichever is in production.

    Returns:
        The version now in production, and the one that it replaced.

    Raises:
        UnknownTargetError: No version of the target is in production, or it has no version `number`.
        ConfigError: The version is in production already, was rolled back itself or never passed the gate, or `over`
            is not in production.
        ArtefactError: The version's files are not sound.
        RegistryUnavailableError: The registry does not answer any more, or other processes kept promoting.
    """
    reason = reason.strip() or "no reason given"
    for _ in range(_ATTEMPTS):
        head = settle_history(target)
        current = None if head.production is None else find_by_number(target, head.production)
        if current is None:
            raise UnknownTargetError(f"{target} has nothing in production to roll back from; promote a model first")
        if over not in (None, current.number):
            raise ConfigError(f"{current} is in production, no longer version {over}: judge again")
        goal = _goal(target, current, number)
        load_version(goal)  # raises before a broken model gets into production
        if commit_change(head, goal.number, "rolled back", reason, previous=current.number):
            return goal, current
    raise RegistryUnavailableError(f"{target}: others promoted {_ATTEMPTS} times meanwhile; run the command again")


def _goal(target: str, current: Version, number: int | None) -> Version:
    goal = find_by_number(target, number) if number is not None else find_by_alias(target, PREVIOUS)
    if goal is None:
        known = ", ".join(str(v.number) for v in list_versions(target))
        missing = "previous version" if number is None else f"version {number}"
        raise UnknownTargetError(f"{target} has no {missing}; it has {known}: name one with version=N")
    if goal.number == current.number:
        raise ConfigError(f"{goal} is in production already; name another one with version=N")
    withdrawal = find_withdrawal(goal)
    if number is None and withdrawal:
        raise ConfigError(f"{goal} was rolled back itself ({withdrawal.reason}); name one: version=N")
    standing = gate_standing(goal)
    if standing.kind == "bypassed":
        remedy = "let the gate judge this one: tilewise promote"
        if withdrawal and withdrawal.was_canary:  # the gate refuses it
            remedy = f"train another model: this one was a canary, which was ended ({withdrawal.reason})"
        raise ConfigError(
            f"{goal} cannot be put back: {standing.reason}; name a version that the gate promoted with version=N, or "
            f"{remedy}"
        )
    return goal
