"""The standing of a version with the gate: did it get into production through it?

In MLflow anybody with write access can move an alias or edit a tag. The history of ``@production`` names every
promoted version with its content, and the version's run has the content hash as a parameter, which MLflow does not let
anybody change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tilewise.registry._history import HistoryEntry, read_history, rolled_back_contents, withdrawals
from tilewise.registry._tracking import client_in_use, plain_reader_in_use, translate_errors
from tilewise.registry._versions import DECISION_TAG, HASH_TAG, ROLLED_BACK_TAG, Version, list_versions


@dataclass(frozen=True)
class GateStanding:
    """The registry's evidence on a version and the gate.

    Attributes:
        kind: ``passed``: the gate promoted exactly this content; ``unrecorded``: no promotion of the target is
            recorded, so there is nothing to compare; ``bypassed``: others were promoted, and this one was not;
            ``rolled back``: it was promoted, rolled back, and not put back since.
        reason: The finding in words.
    """

    kind: Literal["passed", "unrecorded", "bypassed", "rolled back"]
    reason: str

    @property
    def passed(self) -> bool:
        """Return whether the gate promoted exactly this content, and it was not rolled back."""
        return self.kind == "passed"

    @property
    def how(self) -> str:
        """Return in words how a version that did not pass got into production."""
        return f"{'by hand' if self.kind == 'rolled back' else 'without having passed the gate'}: {self.reason}"


@dataclass(frozen=True)
class Withdrawal:
    """The end of a version that served and was not put back since.

    Attributes:
        reason: The reason in words.
        was_canary: True if it ended as a canary, False if it was rolled back from production.
    """

    reason: str
    was_canary: bool


def find_withdrawal(version: Version) -> Withdrawal | None:
    """Return how this version, or another one with its content, was rolled back or ended as a canary; None if neither.

    Both the tag and the history count: anybody can delete the tag, and an older history does not name contents.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    entry = withdrawals(read_history(version.target)).get(version.content_hash)
    reason = version.tags.get(ROLLED_BACK_TAG, entry.reason if entry else None)
    return None if reason is None else Withdrawal(reason, entry is not None and entry.action == "canary ended")


def gate_standing(version: Version) -> GateStanding:
    """Return whether the gate promoted this version with this content, and whether it was rolled back.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    published = published_content(version)
    if published not in (None, version.content_hash):
        return GateStanding("bypassed", f"its tag {HASH_TAG} was changed after publishing; it was {published}")
    history = read_history(version.target)
    promoted = _promoted_contents(version.target, history)
    if not promoted:
        return GateStanding("unrecorded", "no promotion of this target is recorded")
    if version.number not in promoted:
        return GateStanding("bypassed", "the gate never promoted it")
    if promoted[version.number] not in (None, version.content_hash):
        return GateStanding("bypassed", "the gate promoted other files under this number")
    if rolled_back := rolled_back_contents(history).get(version.content_hash):
        return GateStanding("rolled back", f"it was rolled back: {rolled_back}")
    if published is None and promoted[version.number] is None:
        return GateStanding(
            "passed", f"promoted by a gate that did not record its {HASH_TAG} yet: only its number agrees"
        )
    return GateStanding("passed", "promoted by the gate")


def is_canary(version: Version) -> bool:
    """Return whether the gate let this version pass as the canary that its target has now.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    history = read_history(version.target)
    if not history or (history[-1].canary, history[-1].canary_content) != (version.number, version.content_hash):
        return False
    return published_content(version) in (None, version.content_hash)


def published_content(version: Version) -> str | None:
    """Return the content hash that the version was published with; None if its run does not tell.

    It is a parameter of the run: in contrast to a tag, MLflow does not let it be changed. Runs of older versions lack
    it; the hash in the history's entry then remains.
    """
    if version.run_id is None:
        return None
    if plain := plain_reader_in_use():
        return plain.run_parameter(version.run_id, HASH_TAG)
    from mlflow.exceptions import MlflowException

    with translate_errors(f"the run of {version} cannot be read"):
        try:
            return client_in_use().get_run(version.run_id).data.params.get(HASH_TAG)
        except MlflowException as e:
            if e.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return None


def _promoted_contents(target: str, history: Sequence[HistoryEntry]) -> Mapping[int, str | None]:
    """Return the content of each version that the gate promoted; None where an older entry does not name it.

    If the history is lost, the decisions in the versions' tags count.
    """
    promoted = {e.production: e.content for e in history if e.action == "promoted" and e.production}
    if promoted:
        return promoted
    return {v.number: None for v in list_versions(target) if v.tags.get(DECISION_TAG, "").startswith("promoted")}
