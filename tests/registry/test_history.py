"""The log of production: who is overtaken, what a death in between leaves, and what people move by hand."""

from __future__ import annotations

from typing import Any

import mlflow
import pytest

from synthetic import CONV
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import history, versions
from tilewise.registry.history import Entry, commit, entries, settle


@pytest.fixture
def three(registry: str) -> None:
    """Three versions, none of them in production; what they hold does not matter here."""
    for _ in range(3):
        versions.create(CONV, f"tilewise:/{CONV}", None, None, {}, "")


def promote(head: Entry, number: int | None, reason: str = "why") -> Entry | None:
    return commit(head, number, "promoted", reason, previous=head.production)


@pytest.mark.usefixtures("three")
class TestLog:
    def test_before_the_first(self) -> None:
        assert settle(CONV) == Entry(CONV)
        assert entries(CONV) == []

    def test_changes_in_their_order(self) -> None:
        first = promote(settle(CONV), 1)
        assert first is not None
        assert promote(settle(CONV), 3, "better") is not None
        assert versions.aliases(CONV) == {"production": 3, "previous": 1}
        assert [(e.over, e.production, e.previous, e.reason, e.applied) for e in entries(CONV)] == [
            (0, 1, None, "why", True),
            (1, 3, 1, "better", True),
        ]

    def test_who_was_overtaken_changes_nothing(self) -> None:
        seen = settle(CONV)
        promote(seen, 1)
        assert promote(seen, 2) is None
        assert versions.aliases(CONV) == {"production": 1}
        assert [e.production for e in entries(CONV)] == [1]
        log = mlflow.MlflowClient().get_model_version(f"{CONV}.history", "2")
        assert str(log.description).startswith("overtaken, without effect: version 2 promoted")
        assert promote(settle(CONV), 2) is not None  # after looking again
        assert versions.aliases(CONV) == {"production": 2, "previous": 1}

    def test_it_is_no_target(self) -> None:
        promote(settle(CONV), 1)
        assert versions.targets() == [CONV]

    def test_a_page_says_what_happened(self) -> None:
        promote(settle(CONV), 1, "first model")
        entry = mlflow.MlflowClient().get_model_version(f"{CONV}.history", "1")
        assert entry.description == "version 1 promoted, in place of nothing: first model"
        assert entry.source == f"models:/{CONV}/1"


@pytest.mark.usefixtures("three")
class TestDeath:
    @pytest.fixture(autouse=True)
    def _short_lease(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "LEASE_S", 0.1)

    @pytest.mark.parametrize("dies_at", [0, 1, 2])
    def test_between_the_entry_and_the_aliases(self, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """At the first alias, the second, or the tag that says that both are moved."""
        promote(settle(CONV), 1)
        calls: list[Any] = []
        with monkeypatch.context() as patch:
            for name in ("point", "tag"):
                patch.setattr(versions, name, _dying(getattr(versions, name), calls, dies_at))
            with pytest.raises(RegistryUnavailableError, match="killed"):
                promote(settle(CONV), 2)
        head = settle(CONV)
        assert (head.production, head.previous, head.applied) == (2, 1, True)
        assert versions.aliases(CONV) == {"production": 2, "previous": 1}

    def test_a_version_that_was_deleted_since(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(versions, "point", lambda *_: _die())
            with pytest.raises(RegistryUnavailableError):
                promote(settle(CONV), 2)
        mlflow.MlflowClient().delete_model_version(CONV, "2")
        assert settle(CONV).production is None
        assert promote(settle(CONV), 3) is not None
        assert versions.aliases(CONV)["production"] == 3


@pytest.mark.usefixtures("three")
class TestByHand:
    def test_an_alias_from_before_there_was_a_log(self) -> None:
        versions.point(CONV, "production", 2)
        head = settle(CONV)
        assert (head.number, head.production, head.action) == (1, 2, "moved by hand")

    def test_moved(self) -> None:
        promote(settle(CONV), 1)
        versions.point(CONV, "production", 3)
        assert [e.production for e in (settle(CONV), *entries(CONV))] == [3, 1, 3]
        assert versions.aliases(CONV)["production"] == 3

    def test_taken_away(self) -> None:
        promote(settle(CONV), 1)
        versions.point(CONV, "production", None)
        assert settle(CONV).production is None
        assert promote(settle(CONV), 2) is not None
        assert versions.aliases(CONV)["production"] == 2


def _dying(real: Any, calls: list[Any], dies_at: int) -> Any:
    def call(*arguments: Any) -> Any:
        if len(calls) >= dies_at:
            _die()
        calls.append(arguments)
        return real(*arguments)

    return call


def _die() -> None:
    raise RegistryUnavailableError("killed")
