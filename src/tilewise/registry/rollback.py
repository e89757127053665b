"""Putting an earlier version back into production."""

from __future__ import annotations

from tilewise.errors import ConfigError, RegistryUnavailableError, UnknownTargetError
from tilewise.registry import history, versions
from tilewise.registry.versions import Version

_ATTEMPTS = 5


def rollback(
    target: str, number: int | None = None, *, reason: str = "", over: int | None = None
) -> tuple[Version, Version]:
    """Put an earlier version back into production. The one it replaces is not promoted again by itself.

    Args:
        target: name of the target.
        number: version; None: the one with alias ``previous``.
        reason: why, in words; kept with both versions and in the target's history.
        over: the version that is to be replaced; None: whichever is in production.

    Returns:
        The version now in production, and the one that was.

    Raises:
        UnknownTargetError: nothing of the target is in production, or it has no such version.
        ConfigError: the version is in production already, was itself rolled back, or another one than `over` is there.
        ArtefactError: the version's files are not sound.
        RegistryUnavailableError: the registry went away, or others kept promoting.
    """
    reason = reason.strip() or "no reason given"
    for _ in range(_ATTEMPTS):
        head = history.settle(target)
        current = None if head.production is None else versions.by_number(target, head.production)
        if current is None:
            raise UnknownTargetError(f"{target} has nothing in production to roll back from")
        if over not in (None, current.number):
            raise ConfigError(f"{current} is in production, no longer version {over}: judge again")
        goal = _goal(target, current, number)
        versions.load(goal)  # never a broken model into production
        # Before the alias moves: who promotes next must know.
        versions.set_tag(current, versions.ROLLED_BACK_TAG, reason)
        if history.commit(head, goal.number, "rolled back", reason, previous=current.number):
            versions.set_tag(goal, "rolled_back_to", f"from version {current.number}: {reason}")
            versions.delete_tag(goal, versions.ROLLED_BACK_TAG)
            return goal, current
        versions.delete_tag(versions.by_number(target, current.number) or current, versions.ROLLED_BACK_TAG)
    raise RegistryUnavailableError(f"{target}: others promoted {_ATTEMPTS} times meanwhile; run it again")


def _goal(target: str, current: Version, number: int | None) -> Version:
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
    return goal
