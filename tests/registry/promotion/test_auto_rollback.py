"""Rolling back by observations, on a real registry: only by these two models', only when it is sure, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gate.shadowed import C, file_of, observed
from small_model import write_model
from synthetic import CONV
from tilewise.errors import ConfigError
from tilewise.gate import SliceRule, Thresholds
from tilewise.registry import list_aliases, list_versions, read_history, roll_back
from tilewise.registry._history import commit_change, settle_history
from tilewise.registry._versions import ROLLED_BACK_TAG, delete_tag
from tilewise.registry.promotion import publish, roll_back_if_slower

GATE = Thresholds(slices=SliceRule(n_resamples=500))


@pytest.fixture
def two(registry: str, tmp_path: Path) -> list[str]:
    """Content hashes of two versions, the second in production."""
    for note in ("first", "second"):
        version = publish(write_model(tmp_path / CONV, note=note))
        head = settle_history(CONV)
        commit_change(head, version.number, "promoted", "", previous=head.production)
    return [v.content_hash for v in list_versions(CONV)]


@pytest.mark.long
def test_a_production_that_is_surely_slower_is_rolled_back_once(two: list[str]) -> None:
    first, second = two
    seen = file_of(observed([0.9] * 25, candidate=first, production=second))  # the first shadows, and is slower: fine
    assert not roll_back_if_slower(CONV, seen, GATE).rolled_back
    worse = file_of(observed([1.1] * 25, candidate=first, production=second))
    verdict = roll_back_if_slower(CONV, worse, GATE)
    assert verdict.rolled_back
    assert list_aliases(CONV) == {"candidate": 2, "production": 1, "previous": 2}
    last = read_history(CONV)[-1]
    assert (last.action, last.reason) == ("rolled back", verdict.reason)
    assert "observed against version 1: 25 problems observed, 25 with two picks: speed-up 0.9091" in last.reason
    assert "+10.00% GPU time" in last.reason
    again = roll_back_if_slower(CONV, worse, GATE)
    assert (again.rolled_back, len(read_history(CONV))) == (False, 3)
    assert "version 2 was rolled back itself" in again.reason


@pytest.mark.long
def test_one_whose_mark_was_deleted_is_not_put_back(two: list[str]) -> None:
    first, second = two
    roll_back(CONV, reason="wrong results on depthwise")
    delete_tag(list_versions(CONV)[1], ROLLED_BACK_TAG)
    worse = file_of(observed([1.1] * 25, candidate=second, production=first))
    verdict = roll_back_if_slower(CONV, worse, GATE)
    assert (verdict.rolled_back, verdict.reason) == (False, "version 2 was rolled back itself")
    assert list_aliases(CONV)["production"] == 1


@pytest.mark.long
@pytest.mark.parametrize(("seen", "said"), [
    (observed([1.5] * 40, 20, candidate=C, production=C), "nothing was observed of versions 2 and 1"),
    (observed([1.5] * 40, 20), "nothing was observed of versions 2 and 1"),
])  # fmt: skip
def test_observations_of_other_models_do_nothing(two: list[str], seen: list, said: str) -> None:  # type: ignore[type-arg]
    verdict = roll_back_if_slower(CONV, file_of(seen), GATE)
    assert (verdict.rolled_back, verdict.reason) == (False, said)
    assert list_aliases(CONV)["production"] == 2


@pytest.mark.long
def test_what_is_not_sure_does_nothing(two: list[str]) -> None:
    first, second = two
    doubtful = observed([0.93, 1 / 0.93] * 10, candidate=second, production=first)  # the gate would refuse that
    few = observed([0.5] * 4, 4, candidate=second, production=first)
    for seen in (doubtful, few):
        verdict = roll_back_if_slower(CONV, file_of(seen), GATE)
        assert not verdict.rolled_back
        assert verdict.production is not None
        assert verdict.production.number == 2


@pytest.mark.long
def test_one_problem_beyond_the_limit_is_enough(two: list[str]) -> None:
    first, second = two
    verdict = roll_back_if_slower(CONV, file_of(observed([0.5, 1.1], 8, candidate=second, production=first)), GATE)
    assert verdict.rolled_back
    assert "1 observed problems are slower by more than 10 %" in verdict.reason


def test_nothing_to_go_back_to(registry: str) -> None:
    verdict = roll_back_if_slower(CONV, file_of(observed([0.5] * 40)), GATE)
    assert (verdict.rolled_back, verdict.production) == (False, None)


@pytest.mark.long
def test_another_production_meanwhile(two: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"version 2 .* is in production, no longer version 1: judge again"):
        roll_back(CONV, 1, over=1)
