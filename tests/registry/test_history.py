"""The history of production: write conflicts, crashes at any point, and aliases moved by hand."""

from __future__ import annotations

import dataclasses
import os
import socket
from typing import Any

import mlflow
import pytest

from synthetic import CONV
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import _history as history
from tilewise.registry import _registered_models as registered_models
from tilewise.registry import list_aliases, list_targets
from tilewise.registry._gate_standing import gate_standing, is_canary
from tilewise.registry._history import (
    HistoryEntry,
    commit_canary,
    commit_change,
    read_history,
    rolled_back_contents,
    settle_history,
)
from tilewise.registry._registered_models import move_aliases
from tilewise.registry._versions import (
    HASH_TAG,
    ROLLED_BACK_TAG,
    create_version,
    find_by_number,
    list_versions,
    set_tag,
)


@pytest.fixture
def three(registry: str) -> None:
    """Three versions without files, none of them in production."""
    for _ in range(3):
        create_version(CONV, f"tilewise:/{CONV}", None, None, {}, "")


def promote(head: HistoryEntry, number: int | None, reason: str = "why") -> HistoryEntry | None:
    return commit_change(head, number, "promoted", reason, previous=head.production)


@pytest.mark.usefixtures("three")
class TestLog:
    def test_before_the_first(self) -> None:
        assert settle_history(CONV) == HistoryEntry(CONV)
        assert read_history(CONV) == []

    def test_changes_in_their_order(self) -> None:
        first = promote(settle_history(CONV), 1)
        assert first is not None
        assert promote(settle_history(CONV), 3, "better") is not None
        assert list_aliases(CONV) == {"production": 3, "previous": 1}
        assert [(e.over, e.production, e.previous, e.reason, e.applied) for e in read_history(CONV)] == [
            (0, 1, None, "why", True),
            (1, 3, 1, "better", True),
        ]

    def test_a_write_conflict_changes_nothing(self) -> None:
        seen = settle_history(CONV)
        promote(seen, 1)
        assert promote(seen, 2) is None
        assert list_aliases(CONV) == {"production": 1}
        assert [e.production for e in read_history(CONV)] == [1]
        log = mlflow.MlflowClient().get_model_version(f"{CONV}.history", "2")
        assert str(log.description).startswith("write conflict, without effect: version 2 promoted")
        assert promote(settle_history(CONV), 2) is not None  # after looking again
        assert list_aliases(CONV) == {"production": 2, "previous": 1}

    def test_it_is_no_target(self) -> None:
        promote(settle_history(CONV), 1)
        assert list_targets() == [CONV]

    def test_a_page_says_what_happened(self) -> None:
        promote(settle_history(CONV), 1, "first model")
        entry = mlflow.MlflowClient().get_model_version(f"{CONV}.history", "1")
        assert entry.description == "version 1 promoted, in place of nothing: first model"
        assert entry.source == f"tilewise:/{CONV}/1"
        assert not entry.run_id
        page = mlflow.MlflowClient().get_registered_model(f"{CONV}.history")
        assert page.tags["tilewise.kind"] == "history"
        assert str(page.description).startswith("No model: the history of what `production`")

    def test_an_entry_names_its_author_its_run_and_the_content(self) -> None:
        set_tag(CONV, 2, HASH_TAG, "c" * 64)
        for number in (1, 2):
            head = settle_history(CONV)
            reason = "because " * 200
            entry = commit_change(head, number, "promoted", reason, previous=head.production, run_id=f"r{number}")
            assert entry is not None
            tags = list_versions(f"{CONV}.history")[-1].tags
            assert tags["by"] == f"{socket.gethostname()}:{os.getpid()}"
            assert (tags["run"], entry.reason) == (f"r{number}", reason[:1000])
        assert [e.content for e in read_history(CONV)] == [None, "c" * 64]
        assert HASH_TAG not in list_versions(f"{CONV}.history")[0].tags
        assert promote(settle_history(CONV), None) is not None
        assert read_history(CONV)[-1].aliases == {"previous": 2, "canary": None, "production": None}
        assert list_aliases(CONV) == {"previous": 2}

    def test_the_gate_stands_behind_what_it_promoted_and_says_why_not_behind_others(self) -> None:
        set_tag(CONV, 2, HASH_TAG, "b" * 64)
        for number in (2, 3):
            promote(settle_history(CONV), number)
        first, second, third = list_versions(CONV)
        other = dataclasses.replace(second, tags={HASH_TAG: "d" * 64})
        found = [(s.kind, s.reason) for s in map(gate_standing, (first, second, other, third))]
        assert found == [
            ("bypassed", "the gate never promoted it"),
            ("passed", "promoted by the gate"),
            ("bypassed", "the gate promoted other files under this number"),
            ("passed", f"promoted by a gate that did not record its {HASH_TAG} yet: only its number agrees"),
        ]


@pytest.mark.usefixtures("three")
class TestCanary:
    def test_it_starts_beside_production_and_ends_with_it(self) -> None:
        set_tag(CONV, 1, HASH_TAG, "a" * 64)
        set_tag(CONV, 2, HASH_TAG, "b" * 64)
        assert promote(settle_history(CONV), 3) is not None
        assert promote(settle_history(CONV), 1) is not None
        second = find_by_number(CONV, 2)
        assert second is not None
        entry = commit_canary(settle_history(CONV), second, "as good")
        assert entry is not None
        assert dataclasses.replace(entry, applied=True) == settle_history(CONV)
        assert (entry.production, entry.previous, entry.content) == (1, 3, "a" * 64)
        assert (entry.canary, entry.canary_content, entry.action) == (2, "b" * 64, "canary started")
        assert list_aliases(CONV) == {"production": 1, "previous": 3, "canary": 2}
        assert is_canary(second)
        assert not is_canary(dataclasses.replace(second, tags={HASH_TAG: "d" * 64}))
        assert not is_canary(dataclasses.replace(second, number=1))
        ended = commit_canary(entry, None, "slow " * 300)
        assert ended is not None
        assert (ended.action, ended.canary, ended.canary_content) == ("canary ended", None, None)
        assert (ended.production, ended.previous, ended.content) == (1, 3, "a" * 64)
        assert ended.reason == ("slow " * 300)[:1000]
        assert list_aliases(CONV) == {"production": 1, "previous": 3}
        assert not is_canary(second)
        texts = [str(e.description) for e in mlflow.MlflowClient().search_model_versions(f"name='{CONV}.history'")]
        assert any(text == "canary started: version 2: as good" for text in texts)
        assert any(text.startswith("canary ended: version 2: slow") for text in texts)

    def test_one_that_loses_a_write_conflict_does_not_start(self) -> None:
        seen = settle_history(CONV)
        assert promote(seen, 1) is not None
        assert commit_canary(seen, find_by_number(CONV, 2), "late") is None
        assert list_aliases(CONV) == {"production": 1}

    def test_one_that_is_ended_says_so_and_only_if_the_end_counts(self) -> None:
        set_tag(CONV, 2, HASH_TAG, "b" * 64)
        second = find_by_number(CONV, 2)
        assert second is not None
        promote(settle_history(CONV), 1)
        seen = commit_canary(settle_history(CONV), second, "as good")
        assert seen is not None
        promote(settle_history(CONV), 2)
        assert commit_canary(seen, None, "slow") is None, "it is in production by now"
        assert list_versions(CONV)[1].tags == {HASH_TAG: "b" * 64}
        assert rolled_back_contents(read_history(CONV)) == {}
        commit_change(settle_history(CONV), 1, "moved by hand", "", previous=2)
        again = commit_canary(settle_history(CONV), second, "as good")
        assert again is not None
        assert commit_canary(again, None, "slow") is not None
        assert list_versions(CONV)[1].tags[ROLLED_BACK_TAG] == "slow"
        assert rolled_back_contents(read_history(CONV)) == {"b" * 64: "slow"}

    def test_without_a_history_there_is_none(self) -> None:
        second = find_by_number(CONV, 2)
        assert second is not None
        assert not is_canary(second)


@pytest.mark.usefixtures("three")
class TestDeath:
    @pytest.fixture(autouse=True)
    def _short_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "LEASE_S", 0.1)

    @pytest.mark.long
    @pytest.mark.parametrize("dies_at", [0, 1, 2])
    def test_between_the_entry_and_the_aliases(self, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """At the first alias, the second, or the tag that says that both are moved."""
        promote(settle_history(CONV), 1)
        calls: list[Any] = []
        with monkeypatch.context() as patch:
            for module, name in ((registered_models, "_set_alias"), (history, "set_tag")):
                patch.setattr(module, name, _dying(getattr(module, name), calls, dies_at))
            with pytest.raises(RegistryUnavailableError, match="killed"):
                promote(settle_history(CONV), 2)
        head = settle_history(CONV)
        assert (head.production, head.previous, head.applied) == (2, 1, True)
        assert list_aliases(CONV) == {"production": 2, "previous": 1}

    @pytest.mark.long
    @pytest.mark.parametrize("dies_at", [0, 1, 2, 3, 5])
    def test_of_a_rollback(self, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """At either version's tag, the tag that is taken away, an alias, or the tag that says that all is done."""
        promote(settle_history(CONV), 1)
        promote(settle_history(CONV), 2)
        set_tag(CONV, 1, ROLLED_BACK_TAG, "an earlier time")
        calls: list[Any] = []
        with monkeypatch.context() as patch:
            for module, name in ((registered_models, "_set_alias"), (history, "set_tag"), (history, "delete_tag")):
                patch.setattr(module, name, _dying(getattr(module, name), calls, dies_at))
            with pytest.raises(RegistryUnavailableError, match="killed"):
                commit_change(settle_history(CONV), 1, "rolled back", "slow", previous=2)
        assert settle_history(CONV).applied
        assert list_aliases(CONV) == {"production": 1, "previous": 2}
        assert {v.number: v.tags for v in list_versions(CONV)} == {
            1: {"rolled_back_to": "from version 2: slow"},
            2: {ROLLED_BACK_TAG: "slow"},
            3: {},
        }

    def test_of_the_end_of_a_canary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        promote(settle_history(CONV), 1)
        started = commit_canary(settle_history(CONV), find_by_number(CONV, 2), "as good")
        assert started is not None
        with monkeypatch.context() as patch:
            patch.setattr(history, "set_tag", lambda *_: _die())
            with pytest.raises(RegistryUnavailableError, match="killed"):
                commit_canary(started, None, "slow")
        assert settle_history(CONV).canary is None
        assert list_versions(CONV)[1].tags == {ROLLED_BACK_TAG: "slow"}

    def test_a_rollback_that_lost_a_write_conflict_leaves_no_tag(self) -> None:
        promote(settle_history(CONV), 1)
        seen = settle_history(CONV)
        promote(seen, 2)
        assert commit_change(seen, 3, "rolled back", "slow", previous=1) is None
        assert [v.tags for v in list_versions(CONV)] == [{}, {}, {}]

    def test_a_version_that_was_deleted_since(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(history, "move_aliases", lambda *_: _die())
            with pytest.raises(RegistryUnavailableError):
                promote(settle_history(CONV), 2)
        mlflow.MlflowClient().delete_model_version(CONV, "2")
        assert settle_history(CONV).production is None
        assert promote(settle_history(CONV), 3) is not None
        assert list_aliases(CONV)["production"] == 3


@pytest.mark.usefixtures("three")
class TestByHand:
    def test_an_alias_from_before_there_was_a_log(self) -> None:
        move_aliases(CONV, {"production": 2})
        head = settle_history(CONV)
        assert (head.number, head.production, head.action) == (1, 2, "moved by hand")

    def test_moved(self) -> None:
        promote(settle_history(CONV), 1)
        move_aliases(CONV, {"production": 3})
        assert [e.production for e in (settle_history(CONV), *read_history(CONV))] == [3, 1, 3]
        assert list_aliases(CONV)["production"] == 3

    def test_moved_again_and_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        promote(settle_history(CONV), 1)
        move_aliases(CONV, {"production": 3})
        monkeypatch.setattr(history, "commit_change", lambda *_, **__: None)  # another process is always faster
        monkeypatch.setattr(history, "LEASE_S", 0.0)
        monkeypatch.setattr(history, "_ATTEMPTS", 3)
        message = f"^{CONV}: its production keeps changing; run the command again$"
        with pytest.raises(RegistryUnavailableError, match=message):
            settle_history(CONV)

    def test_taken_away(self) -> None:
        promote(settle_history(CONV), 1)
        move_aliases(CONV, {"production": None})
        assert settle_history(CONV).production is None
        assert promote(settle_history(CONV), 2) is not None
        assert list_aliases(CONV)["production"] == 2

    def test_a_number_that_is_none_names_no_version(self) -> None:
        """A ValueError would end the start of a dispatcher, which serves its last good copy after other errors."""
        promote(settle_history(CONV), 1)
        set_tag(f"{CONV}.history", 1, "previous", "\N{SUPERSCRIPT TWO}")
        assert [(e.production, e.previous) for e in read_history(CONV)] == [(1, None)]


def _dying(real: Any, calls: list[Any], dies_at: int) -> Any:
    def call(*arguments: Any) -> Any:
        if len(calls) >= dies_at:
            _die()
        calls.append(arguments)
        return real(*arguments)

    return call


def _die() -> None:
    raise RegistryUnavailableError("killed")
