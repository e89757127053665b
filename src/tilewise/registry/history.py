"""Who was put into @production, over whom, and why; and what lets many promote at once without losing an update.

MLflow moves an alias unconditionally: of two who judged against the same production the later would win, unjudged. What
its server does atomically is to number the versions of a registered model, without gaps and without repeats, also in
many processes. So each target has a second registered model, ``<target>.history``, and its versions are the entries of
a log:

* To change production is to append an entry that names the entry it was decided on (``over``).
* An entry counts only if the last entry that counts before it is the one it names; whoever was overtaken sees that in
  the log, as everybody does, and judges again. Appending is thus a compare-and-swap.
* The aliases only mirror the last entry that counts. Whoever appended it moves them and tags it ``applied``; before
  anything else is decided, others wait for that tag, at most :data:`LEASE_S` by their own clock, and then move the
  aliases themselves: that is the same, whoever does it. So a process that was killed anywhere is made up for.
* Aliases that were moved by hand are noticed by the next decision, and entered into the log as they are.

What remains: a process that sleeps for more than the lease between looking at the log and writing an alias may put back
an old one. It looks at the log again afterwards, and mends that.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Literal

from tilewise.errors import RegistryUnavailableError
from tilewise.registry import versions
from tilewise.registry.versions import HISTORY, Version

Action = Literal["promoted", "rolled back", "moved by hand"]

LEASE_S = 5.0  # how long others wait for an entry's author to move the aliases: three requests
_POLL_S = 0.05
_ATTEMPTS = 20


@dataclass(frozen=True)
class Entry:
    """One change of production. `number` 0 is before the first: nothing was ever in production.

    Attributes:
        number: place in the log.
        over: the entry that it was decided on.
        production, previous: versions that the aliases name from then on; None: no such alias.
        action: what happened.
        reason: why, in words.
        applied: whether the aliases were moved.
    """

    target: str
    number: int = 0
    over: int = 0
    production: int | None = None
    previous: int | None = None
    action: str = ""
    reason: str = ""
    applied: bool = True

    @property
    def aliases(self) -> dict[str, int | None]:
        """What the aliases name from this entry on."""
        return {versions.PREVIOUS: self.previous, versions.PRODUCTION: self.production}


def entries(target: str) -> list[Entry]:
    """The log of a target, overtaken entries left out, oldest first."""
    valid: list[Entry] = []
    for entry in map(_entry, versions.versions(target + HISTORY)):
        if entry.over == (valid[-1].number if valid else 0):
            valid.append(entry)
    return valid


def settle(target: str) -> Entry:
    """The last entry, once the aliases say the same: what a decision is to be made on.

    Raises:
        RegistryUnavailableError: the registry went away, or others never stop.
    """
    waiting_for, since = 0, 0.0
    for _ in range(_ATTEMPTS + int(LEASE_S / _POLL_S)):
        head = _head(target)
        if not head.applied:
            if head.number != waiting_for:
                waiting_for, since = head.number, time.monotonic()
            if time.monotonic() - since < LEASE_S:
                time.sleep(_POLL_S)
            else:
                _apply(head)
            continue
        served = versions.aliases(target)
        if served.get(versions.PRODUCTION) == head.production:
            return head
        if _head(target) == head:  # nobody is at it: the alias was moved by other means
            moved = served.get(versions.PRODUCTION)
            commit(head, moved, "moved by hand", "found so by tilewise", previous=served.get(versions.PREVIOUS))
    raise RegistryUnavailableError(f"{target}: its production keeps changing; run it again")


def commit(
    head: Entry, production: int | None, action: Action, reason: str, *, previous: int | None, run_id: str | None = None
) -> Entry | None:
    """Change production, if `head` is still the last entry.

    Args:
        head: what the decision was made on, from :func:`settle`.
        production: the version to serve; None: none.
        action: what this is.
        reason: why, in words.
        previous: the version to name ``previous``.
        run_id: of the run with the decision.

    Returns:
        The entry; None where another change was faster.
    """
    tags = {
        "over": str(head.number),
        versions.PRODUCTION: _text(production),
        versions.PREVIOUS: _text(previous),
        "action": action,
        "reason": reason[:1000],
        "by": f"{socket.gethostname()}:{os.getpid()}",
    }
    source = f"models:/{head.target}/{production}" if production else f"tilewise:/{head.target}/none"
    said = f"version {production}" if production else "nothing"
    text = f"{said} {action}, in place of {head.production or 'nothing'}: {reason}"
    name = head.target + HISTORY
    mine = versions.create(name, source, run_id, None, tags, text).number
    entry = next((e for e in entries(head.target) if e.number == mine), None)
    if entry is None:
        versions.describe(name, mine, f"overtaken, without effect: {text}")
        return None
    _apply(entry)
    return entry


def _head(target: str) -> Entry:
    log = entries(target)
    return log[-1] if log else Entry(target)


def _apply(entry: Entry) -> None:
    """Let the aliases say what the log says, until nobody appended anything meanwhile."""
    while True:
        for alias, number in entry.aliases.items():
            if number is None or versions.by_number(entry.target, number):  # else deleted by hand since
                versions.point(entry.target, alias, number)
        newest = _head(entry.target)
        if newest.number == entry.number:
            break
        entry = newest
    versions.tag(entry.target + HISTORY, entry.number, "applied", "true")


def _entry(version: Version) -> Entry:
    tags = version.tags
    return Entry(
        target=version.target.removesuffix(HISTORY),
        number=version.number,
        over=_number(tags.get("over")) or 0,
        production=_number(tags.get(versions.PRODUCTION)),
        previous=_number(tags.get(versions.PREVIOUS)),
        action=tags.get("action", ""),
        reason=tags.get("reason", ""),
        applied="applied" in tags,
    )


def _text(number: int | None) -> str:
    return "none" if number is None else str(number)


def _number(text: Any) -> int | None:
    return int(text) if str(text).isdigit() else None
