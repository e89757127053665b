"""A canary: the gate lets it pass, a share of the hosts serves it, and shadow observations promote or end it."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path

import pytest

from registry.lives import RULES
from small_model import table, write_model
from store import fresh_store
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError
from tilewise.gate import Observation, Observations, Pick
from tilewise.model import load_artefact
from tilewise.ops import Target
from tilewise.registry import (
    CANARY,
    PRODUCTION,
    list_aliases,
    list_versions,
    read_history,
    registry_session,
    roll_back,
    set_alias,
)
from tilewise.registry._history import commit_canary, settle_history
from tilewise.registry.promotion import Promotion, PromotionRules, promote, publish, roll_back_if_slower
from tilewise.registry.promotion import _promote as promotion

SHIPPED = dataclasses.replace(RULES.thresholds, mean_drop=0.5, problem_drop=10.0)
AS_CANARY = dataclasses.replace(RULES, canary=True)
SHAPES = problems(Target.parse(CONV), 30)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("models")
    return [write_model(root / note, trees=10, note=note) for note in ("first", "second")]


@pytest.fixture
def uri(tmp_path: Path, models: list[Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a registry with the first model in production."""
    monkeypatch.setattr(promotion, "log_plots", lambda *_: None)
    uri = fresh_store(tmp_path / "store")
    with registry_session(uri):
        assert run(models[0], tmp_path).outcome == "promoted"
    return uri


def run(model: Path, folder: Path, rules: PromotionRules = RULES) -> Promotion:
    return promote(model, table(), rules, folder / "reports")


def observed(models: list[Path], ratio: float) -> Observations:
    """Return observations on which the second model's kernels take `ratio` times as long."""
    first, second = (load_artefact(m).content_hash for m in models)
    production, candidate = Pick(first, 1, "a", (1.0,) * 3), Pick(second, 2, "b", (ratio,) * 3)
    now = datetime.now(UTC).isoformat()
    lines = [Observation(CONV, p, production, candidate, 10, 1.0, "made up", None, now, 1) for p in SHAPES]
    return Observations(tuple(lines) * 12, 0)


@pytest.mark.long
def test_a_canary_serves_its_share_and_a_promotion_ends_it(uri: str, models: list[Path], tmp_path: Path) -> None:
    with registry_session(uri):
        for _ in range(2):  # repeating it changes nothing
            done = run(models[1], tmp_path, AS_CANARY)
            assert (done.outcome, done.in_production) == ("canary", False)
            assert [e.action for e in read_history(CONV)] == ["promoted", "canary started"]
        assert list_aliases(CONV) == {CANARY: 2, "candidate": 2, PRODUCTION: 1}
    with (
        Dispatcher.from_registry(CONV, uri=uri, canary=1.0) as chosen,
        Dispatcher.from_registry(CONV, uri=uri, canary=0.0) as other,
    ):
        assert (chosen.version, other.version) == (2, 1)
        assert not chosen.refresh()
        with registry_session(uri):
            rules = dataclasses.replace(RULES, observations=observed(models, 0.9))
            assert run(models[1], tmp_path, rules).outcome == "promoted"
            assert CANARY not in list_aliases(CONV)
        assert (chosen.refresh(), other.refresh()) == (False, True)
        assert (chosen.version, other.version) == (2, 2)


@pytest.mark.long
def test_a_slower_canary_is_ended_and_not_promoted_later(uri: str, models: list[Path], tmp_path: Path) -> None:
    with registry_session(uri):
        run(models[1], tmp_path, AS_CANARY)
    with Dispatcher.from_registry(CONV, uri=uri, canary=1.0) as chosen:
        with registry_session(uri):
            kept = roll_back_if_slower(CONV, observed(models, 1.001), SHIPPED)
            assert (kept.canary_ended, list_aliases(CONV)[CANARY]) == (False, 2)
            ended = roll_back_if_slower(CONV, observed(models, 1.5), SHIPPED)
            assert (ended.canary_ended, ended.rolled_back) == (True, False)
            assert "the canary is ended: canary, version 2, observed against production" in ended.reason
            assert CANARY not in list_aliases(CONV)
            assert list_aliases(CONV)[PRODUCTION] == 1
            assert read_history(CONV)[-1].action == "canary ended"
            again = run(models[1], tmp_path)
            assert again.outcome == "refused"
            veto = "it was a canary, which was ended: canary, version 2, observed against production"
            assert again.reasons[0].startswith(veto)
            assert again.reasons[0].endswith("; the same files stay refused: train another model")
            assert "rollback" not in again.reasons[0]
            with pytest.raises(ConfigError, match=r"version 2 .* cannot be put back: .* or train another model"):
                roll_back(CONV, 2)
        assert chosen.version == 2
        assert chosen.refresh()
        assert chosen.version == 1


@pytest.mark.long
def test_an_ended_canary_that_was_in_production_before_is_put_back_as_its_veto_says(
    uri: str, models: list[Path], tmp_path: Path
) -> None:
    with registry_session(uri):
        assert run(models[1], tmp_path).outcome == "promoted"
        assert run(models[0], tmp_path, AS_CANARY).outcome == "canary"
        commit_canary(settle_history(CONV), None, "a throttled GPU")
        veto = run(models[0], tmp_path).reasons[0]
        assert veto == (
            "it was a canary, which was ended: a throttled GPU; to use it all the same: tilewise rollback version=N"
        )
        assert roll_back(CONV, 1)[0].number == 1


@pytest.mark.long
def test_an_alias_set_by_hand_is_no_canary(uri: str, models: list[Path], tmp_path: Path) -> None:
    with registry_session(uri):
        publish(models[1])
        set_alias(list_versions(CONV)[-1], CANARY)
    with Dispatcher.from_registry(CONV, uri=uri, canary=1.0) as dispatcher:
        assert dispatcher.version == 1


@pytest.mark.long
def test_a_canary_needs_a_production(models: list[Path], tmp_path: Path) -> None:
    with (
        registry_session(fresh_store(tmp_path / "empty")),
        pytest.raises(ConfigError, match="a canary serves beside production; promote a first model before"),
    ):
        run(models[1], tmp_path, AS_CANARY)
