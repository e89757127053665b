"""Versions and local copies that must not serve, as the gate did not let them pass or they were rolled back."""

from __future__ import annotations

import logging
from dataclasses import replace

from tilewise.dispatch.sources._alias_notes import AliasNote
from tilewise.errors import ArtefactError
from tilewise.registry import CANARY, PRODUCTION, Version, gate_standing, is_canary

_log = logging.getLogger(__name__)
_HASH_TAG = "content_hash"  # as in tilewise.registry


class RefusedVersionError(ArtefactError):
    """A version that an alias names without the gate's consent.

    Attributes:
        version: the version.
    """

    def __init__(self, message: str, version: Version) -> None:
        super().__init__(message)
        self.version = version


def require_standing(version: Version, alias: str) -> None:
    """Refuse a version that got into production, or became the canary, past the gate.

    Raises:
        RefusedVersionError: the gate promoted other versions or files, and not these, or these were rolled back.
    """
    if alias == CANARY and not is_canary(version):
        message = f"{version} is a canary that the gate did not let pass: tilewise promote canary"
        raise RefusedVersionError(message, version)
    if alias != PRODUCTION:
        return
    standing = gate_standing(version)
    if standing.kind in ("bypassed", "rolled back"):
        raise RefusedVersionError(
            f"{version} is in production {standing.how}; put back a version that passed: tilewise rollback version=N",
            version,
        )
    if standing.kind == "unrecorded":
        _log.warning("%s: nothing shows that it passed the gate: %s", version, standing.reason)


def may_replace(refused: Version, note: AliasNote) -> bool:
    """Return whether a local copy may serve in place of a refused version, by the history of their target.

    One that was rolled back may not. One with the content that the refused version states may if it passed the gate
    itself: tags can be edited, and must not take a good copy from a dispatcher.
    """
    # The run is left out, as the registry may have another version under this number by now.
    noted = replace(refused, number=note.version, run_id=None, tags={_HASH_TAG: note.content_hash})
    standing = gate_standing(noted)
    return standing.passed or (standing.kind != "rolled back" and note.content_hash != refused.content_hash)
