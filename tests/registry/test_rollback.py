"""The rollback: only to a version that the gate promoted, over the version that was meant; refusals name the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic import CONV
from tilewise.errors import ConfigError, RegistryUnavailableError, UnknownTargetError
from tilewise.registry import _rollback as rollback
from tilewise.registry import list_aliases, list_versions, read_history, roll_back
from tilewise.registry._history import commit_canary, commit_change, settle_history
from tilewise.registry._versions import HASH_TAG, ROLLED_BACK_TAG, create_version, delete_tag, set_tag


@pytest.fixture
def two(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three versions without files; the first two were promoted."""
    monkeypatch.setattr(rollback, "load_version", lambda _: None)
    for number in (1, 2, 3):
        create_version(CONV, f"tilewise:/{CONV}", None, None, {HASH_TAG: str(number) * 64}, "")
        if number < 3:
            head = settle_history(CONV)
            commit_change(head, number, "promoted", "better", previous=head.production)


@pytest.mark.usefixtures("two")
class TestRollBack:
    @pytest.mark.long
    @pytest.mark.parametrize("number", [None, 1])
    def test_previous_or_a_named_version_is_in_production_again(self, number: int | None) -> None:
        now, before = roll_back(CONV, number, reason=" slow \n", over=2)
        assert (now.number, before.number) == (1, 2)
        assert list_aliases(CONV) == {"production": 1, "previous": 2}
        last = read_history(CONV)[-1]
        assert (last.action, last.production, last.previous, last.reason) == ("rolled back", 1, 2, "slow")

    @pytest.mark.long
    def test_without_a_reason_it_says_so(self) -> None:
        roll_back(CONV, reason=" ")
        assert list_versions(CONV)[1].tags == {HASH_TAG: "2" * 64, ROLLED_BACK_TAG: "no reason given"}

    @pytest.mark.long
    def test_to_one_that_was_rolled_back_by_its_number_only(self) -> None:
        set_tag(CONV, 1, ROLLED_BACK_TAG, "slow")
        with pytest.raises(ConfigError, match=r"version 1 .* was rolled back itself \(slow\); name one: version=N$"):
            roll_back(CONV)
        assert roll_back(CONV, 1)[0].number == 1

    @pytest.mark.long
    def test_to_one_whose_mark_was_deleted_by_its_number_only(self) -> None:
        """The history remembers it: a rollback that runs twice must not put the bad version back."""
        roll_back(CONV, reason="slow")
        delete_tag(list_versions(CONV)[1], ROLLED_BACK_TAG)
        with pytest.raises(ConfigError, match=r"version 2 .* was rolled back itself \(slow\); name one: version=N$"):
            roll_back(CONV)
        assert list_aliases(CONV)["production"] == 1
        assert roll_back(CONV, 2)[0].number == 2

    def test_to_a_canary_that_was_ended_names_a_remedy_that_works(self) -> None:
        assert commit_canary(settle_history(CONV), list_versions(CONV)[2], "as good") is not None
        assert commit_canary(settle_history(CONV), None, "slow") is not None
        message = r"the gate never promoted it; .*, or train another model: this one was a canary, .* ended \(slow\)$"
        with pytest.raises(ConfigError, match=message):
            roll_back(CONV, 3)

    def test_mistakes_are_told_with_the_remedy(self) -> None:
        _, second, third = map(str, list_versions(CONV))
        mistakes: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"number": 7}, UnknownTargetError, f"{CONV} has no version 7; it has 1, 2, 3: name one with version=N"),
            ({"number": 2}, ConfigError, f"{second} is in production already; name another one with version=N"),
            ({"over": 1}, ConfigError, f"{second} is in production, no longer version 1: judge again"),
            ({"number": 3}, ConfigError, f"{third} cannot be put back: the gate never promoted it; name a version that "
             "the gate promoted with version=N, or let the gate judge this one: tilewise promote"),
        ]  # fmt: skip
        for arguments, error, message in mistakes:
            with pytest.raises(error) as raised:
                roll_back(CONV, **arguments)
            assert str(raised.value) == message
        assert list_aliases(CONV)["production"] == 2

    @pytest.mark.long
    def test_one_that_others_overtake_gives_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[int] = []
        monkeypatch.setattr(rollback, "commit_change", lambda _, number, *__, **___: tried.append(number))
        message = f"^{CONV}: others promoted 5 times meanwhile; run the command again$"
        with pytest.raises(RegistryUnavailableError, match=message):
            roll_back(CONV)
        assert tried == [1] * 5


def test_without_a_production_there_is_nothing_to_go_back_from(registry: str) -> None:
    with pytest.raises(UnknownTargetError) as raised:
        roll_back(CONV)
    assert str(raised.value) == f"{CONV} has nothing in production to roll back from; promote a model first"
