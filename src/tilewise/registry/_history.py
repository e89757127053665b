"""The history of ``@production``: which version replaced which, and why. It keeps concurrent promotions safe.

MLflow moves an alias unconditionally, so the later of two people who judged against the same production would win
without a comparison with the other. But MLflow numbers the versions of a registered model atomically, without gaps and
repeats, also across processes. So each target has a second registered model, ``<target>.history``, and its versions
are the entries of a log:

* A change of production appends an entry that names the entry it was decided on (``over``).
* An entry is valid only if the last valid entry before it is the one it names. On a write conflict everyone sees in the
  log which entry lost, and its author judges again. So appending is a compare-and-swap.
* The aliases mirror the last valid entry, and so do the tags of both versions of a rollback. Its author writes them and
  tags the entry ``applied``. Other processes wait for that tag before they decide, at most :data:`LEASE_S` by their own
  clock, and then write them themselves. Writing them is idempotent, so a crash at any point is repaired.
* An entry may also start or end a canary: a version that the gate let pass for a share of the hosts. Production stays,
  and the next change of production ends the canary.
* If somebody moved an alias by hand, the next decision notices it and appends an entry for it. Such an entry is no
  promotion: see :mod:`tilewise.registry._gate_standing`.

One gap remains: a process that sleeps for more than the lease between reading the log and writing an alias may restore
an old alias. It reads the log again afterwards and corrects the alias.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tilewise.errors import RegistryUnavailableError
from tilewise.registry._registered_models import (
    CANARY,
    HISTORY_SUFFIX,
    KIND_TAG,
    PREVIOUS,
    PRODUCTION,
    describe_model,
    list_aliases,
    move_aliases,
)
from tilewise.registry._versions import (
    HASH_TAG,
    HISTORY_TAG,
    ROLLED_BACK_TAG,
    Version,
    create_version,
    delete_tag,
    find_by_number,
    list_versions,
    set_tag,
    write_description,
)

Action = Literal["promoted", "rolled back", "moved by hand", "canary started", "canary ended"]

LEASE_S = 5.0  # enough for the author's requests
_POLL_S = 0.05
_CANARY_CONTENT = "canary_content"
_PAGE = (
    "No model: the history of what `production` of {target} named. Each version is an entry; promotions are decided on "
    "it, so it stays as it is."
)
_ATTEMPTS = 20


@dataclass(frozen=True)
class HistoryEntry:
    """One change of production. Entry number 0 is the state before the first change.

    Attributes:
        target: Name of the target.
        number: Place in the history.
        over: The entry that the change was decided on.
        production, previous: The versions that the aliases name from then on; None: no such alias.
        content: The content hash of `production`; None if the entry does not name it.
        canary: The version that ``canary`` names; None: no such alias.
        canary_content: The content hash of `canary`; None without one.
        action: The kind of change.
        reason: The reason in words.
        applied: True once the aliases are moved.
    """

    target: str
    number: int = 0
    over: int = 0
    production: int | None = None
    previous: int | None = None
    content: str | None = None
    canary: int | None = None
    canary_content: str | None = None
    action: str = ""
    reason: str = ""
    applied: bool = True

    @property
    def aliases(self) -> dict[str, int | None]:
        """Return the versions that the aliases name from this entry on."""
        return {PREVIOUS: self.previous, CANARY: self.canary, PRODUCTION: self.production}


def read_history(target: str) -> list[HistoryEntry]:
    """Return the valid entries of a target's history, oldest first."""
    valid: list[HistoryEntry] = []
    for entry in map(_entry, list_versions(target + HISTORY_SUFFIX)):
        if entry.over == (valid[-1].number if valid else 0):
            valid.append(entry)
    return valid


def last_production(target: str) -> int | None:
    """Return the version that was in production last, by the history or, if that is lost, by the versions' tags."""
    last = next((e.production for e in reversed(read_history(target)) if e.production is not None), None)
    if last is None:
        last = max((v.number for v in list_versions(target) if HISTORY_TAG in v.tags), default=None)
    return last


def withdrawals(history: Iterable[HistoryEntry]) -> dict[str, HistoryEntry]:
    """Return the contents that were rolled back, or ended as a canary, and not put back since: entry by content hash.

    Tags name versions, and the same files can be published as another version. The history names contents.
    """
    found: dict[str, HistoryEntry] = {}
    before = HistoryEntry("")
    for entry in history:
        if entry.action == "rolled back":
            found |= {before.content: entry} if before.content else {}
            found.pop(entry.content or "", None)
        elif entry.action == "canary ended":
            found |= {before.canary_content: entry} if before.canary_content else {}
        before = entry
    return found


def rolled_back_contents(history: Iterable[HistoryEntry]) -> dict[str, str]:
    """Return the reasons of the :func:`withdrawals` by content hash."""
    return {content: entry.reason for content, entry in withdrawals(history).items()}


def settle_history(target: str) -> HistoryEntry:
    """Wait until the aliases match the last entry, and return it: the state to base a decision on.

    Raises:
        RegistryUnavailableError: The registry does not answer any more, or other processes keep changing production.
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
        aliases = list_aliases(target)
        production = aliases.get(PRODUCTION)
        if production == head.production:
            return head
        if _head(target) == head:  # no other process is changing it, so the alias was moved by other means
            reason = "found so by tilewise"
            commit_change(head, production, "moved by hand", reason, previous=aliases.get(PREVIOUS))
    raise RegistryUnavailableError(f"{target}: its production keeps changing; run the command again")


def commit_change(
    head: HistoryEntry,
    production: int | None,
    action: Action,
    reason: str,
    *,
    previous: int | None,
    run_id: str | None = None,
) -> HistoryEntry | None:
    """Change production, if `head` is still the last entry.

    Args:
        head: The entry that the decision was based on, from :func:`settle_history`.
        production: The version to serve; None: no version.
        action: The kind of change.
        reason: The reason in words.
        previous: The version that ``previous`` names from now on.
        run_id: The run with the decision.

    Returns:
        The new entry; None after a write conflict with another change.
    """
    tags = {PRODUCTION: _text(production), PREVIOUS: _text(previous), "action": action, "reason": reason[:1000]}
    if run_id is not None:
        tags["run"] = run_id
    serving = None if production is None else find_by_number(head.target, production)
    if serving is not None and serving.content_hash:
        tags[HASH_TAG] = serving.content_hash
    subject = f"version {production}" if production else "nothing"
    return _append(head, tags, f"{subject} {action}, in place of {head.production or 'nothing'}: {reason}")


def commit_canary(head: HistoryEntry, canary: Version | None, reason: str) -> HistoryEntry | None:
    """Start a canary, or end it with None, if `head` is still the last entry; production stays.

    The gate refuses a version whose canary was ended.

    Args:
        head: The entry that the decision was based on, from :func:`settle_history`.
        canary: The version for a share of the hosts; None: no version any more.
        reason: The reason in words.

    Returns:
        The new entry; None after a write conflict with another change.
    """
    action: Action = "canary ended" if canary is None else "canary started"
    tags = {PRODUCTION: _text(head.production), PREVIOUS: _text(head.previous)}
    tags |= {"action": action, "reason": reason[:1000]} | ({HASH_TAG: head.content} if head.content else {})
    if canary is not None:
        tags |= {CANARY: str(canary.number), _CANARY_CONTENT: canary.content_hash}
    return _append(head, tags, f"{action}: version {head.canary if canary is None else canary.number}: {reason}")


def _append(head: HistoryEntry, tags: dict[str, str], text: str) -> HistoryEntry | None:
    """Append an entry and move the aliases; return None after a write conflict."""
    tags = {"over": str(head.number), "by": f"{socket.gethostname()}:{os.getpid()}", **tags}
    source = f"tilewise:/{head.target}/{tags[PRODUCTION]}"
    name = head.target + HISTORY_SUFFIX
    if not head.number:
        describe_model(name, _PAGE.format(target=head.target), {KIND_TAG: "history", "tilewise.target": head.target})
    # By a source and without a run that MLflow knows: the run's page would show the entry among the models it made.
    number = create_version(name, source, None, None, tags, text).number
    entry = next((e for e in read_history(head.target) if e.number == number), None)
    if entry is None:
        write_description(name, number, f"write conflict, without effect: {text}")
        return None
    _apply(entry)
    return entry


def _head(target: str) -> HistoryEntry:
    history = read_history(target)
    return history[-1] if history else HistoryEntry(target)


def _apply(entry: HistoryEntry) -> None:
    """Move the aliases to the last entry, and repeat if another entry was appended meanwhile."""
    while True:
        if entry.action == "rolled back":
            _tag_rolled_back(entry)
        elif entry.action == "canary ended":
            _tag_ended_canary(entry)
        move_aliases(entry.target, entry.aliases)
        newest = _head(entry.target)
        if newest.number == entry.number:
            break
        entry = newest
    set_tag(entry.target + HISTORY_SUFFIX, entry.number, "applied", "true")


def _tag_rolled_back(entry: HistoryEntry) -> None:
    """Tell both versions of a rollback about it: from then on the gate refuses only the one that was replaced."""
    replaced, restored = (n and find_by_number(entry.target, n) for n in (entry.previous, entry.production))
    if replaced:
        set_tag(entry.target, replaced.number, ROLLED_BACK_TAG, entry.reason)
    if restored:
        set_tag(entry.target, restored.number, "rolled_back_to", f"from version {entry.previous}: {entry.reason}")
        delete_tag(restored, ROLLED_BACK_TAG)


def _tag_ended_canary(entry: HistoryEntry) -> None:
    """Tag the version that was the canary until `entry`."""
    before = next((e for e in read_history(entry.target) if e.number == entry.over), HistoryEntry(entry.target))
    if before.canary and find_by_number(entry.target, before.canary):
        set_tag(entry.target, before.canary, ROLLED_BACK_TAG, entry.reason)


def _entry(version: Version) -> HistoryEntry:
    tags = version.tags
    return HistoryEntry(
        target=version.target.removesuffix(HISTORY_SUFFIX),
        number=version.number,
        over=_number(tags.get("over")) or 0,
        production=_number(tags.get(PRODUCTION)),
        previous=_number(tags.get(PREVIOUS)),
        content=tags.get(HASH_TAG),
        canary=_number(tags.get(CANARY)),
        canary_content=tags.get(_CANARY_CONTENT),
        action=tags.get("action", ""),
        reason=tags.get("reason", ""),
        applied="applied" in tags,
    )


def _text(number: int | None) -> str:
    return "none" if number is None else str(number)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
