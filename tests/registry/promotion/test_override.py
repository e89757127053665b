"""Overrides: as the configuration states them, never where they are forbidden, and never without words."""

from __future__ import annotations

from typing import Any

import pytest

from synthetic import CONV
from tilewise.errors import ConfigError, DataError
from tilewise.gate import Thresholds
from tilewise.ops import Target
from tilewise.registry.promotion import Override
from tilewise.registry.promotion._override import MAX_REASON, SWITCH, waived_limits

TARGET = Target.parse(CONV)
SHIPPED = Thresholds.shipped(TARGET)
FORBIDDEN = rf"^the rule; overrides are forbidden here \(gate\.override\.allowed, {SWITCH}\)$"
INSIST = r"^the rule; to insist, set it and gate\.override\.reason='\.\.\.', which everybody will see$"


class TestFromConfig:
    @pytest.mark.parametrize("gate", [{}, {"override": None}, {"override": {}}, {"OVERRIDE": {"reason": "why"}}])
    def test_without_the_section_nothing_is_waived_and_overrides_are_allowed(self, gate: dict[str, Any]) -> None:
        assert Override.from_config(gate) == Override("", holdout=False, production=False, allowed=True)

    @pytest.mark.parametrize("on", ["holdout", "production"])
    def test_every_setting_is_read(self, on: str) -> None:
        section: dict[str, Any] = {"reason": "why", "holdout": False, "production": False, "allowed": False} | {
            on: True
        }
        assert Override.from_config({"mean_drop": 0.5, "override": section}) == Override(**section)

    @pytest.mark.parametrize("in_file", [None, True, False])
    @pytest.mark.parametrize("by_caller", [True, False])
    def test_either_may_forbid_and_neither_allows_alone(self, in_file: bool | None, by_caller: bool) -> None:
        section = {"reason": "why"} | ({} if in_file is None else {"allowed": in_file})
        expected = by_caller and in_file is not False
        assert Override.from_config({"override": section}, allowed=by_caller) == Override("why", allowed=expected)

    @pytest.mark.parametrize(("section", "message"), [
        ({"reason": 3}, "gate: override.reason must be a text of at most 300 characters, got 3"),
        ({"reason": "x" * (MAX_REASON + 1)}, "gate: override.reason must be a text of at most 300 characters, got 'xx"),
        ({"holdout": "yes"}, "gate: override.holdout must be true or false, got 'yes'"),
        ({"production": 1}, "gate: override.production must be true or false, got 1"),
        ({"allowed": None}, "gate: override.allowed must be true or false, got None"),
    ])  # fmt: skip
    def test_values_of_other_kinds_are_named(self, section: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError) as raised:
            Override.from_config({"override": section})
        assert str(raised.value).startswith(message)

    def test_the_longest_reason_is_kept_in_full(self) -> None:
        assert Override.from_config({"override": {"reason": "x" * MAX_REASON}}).reason == "x" * MAX_REASON


class TestWaive:
    @pytest.mark.parametrize("switch", [None, "", "on", " ON "])
    def test_a_requested_one_with_a_reason(self, monkeypatch: pytest.MonkeyPatch, switch: str | None) -> None:
        monkeypatch.delenv(SWITCH, raising=False)
        if switch is not None:
            monkeypatch.setenv(SWITCH, switch)
        Override("why").waive("the rule", "it", DataError)

    @pytest.mark.parametrize(("reason", "requested"), [("why", False), ("", True), (" \n", True)])
    def test_the_rule_holds_without_a_request_or_a_reason(self, reason: str, requested: bool) -> None:
        with pytest.raises(DataError, match=INSIST):
            Override(reason).waive("the rule", "it", DataError, requested=requested)

    @pytest.mark.parametrize("how", ["setting", "environment"])
    def test_the_rule_holds_where_overrides_are_forbidden(self, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
        if how == "environment":
            monkeypatch.setenv(SWITCH, "off")
        with pytest.raises(DataError, match=FORBIDDEN):
            Override("why", allowed=how != "setting").waive("the rule", "it", DataError)


class TestWaivedLimits:
    def test_those_shipped_waive_nothing_and_need_no_reason(self) -> None:
        assert waived_limits(SHIPPED, TARGET, Override()) == []

    def test_weaker_ones_are_told_with_both_values(self) -> None:
        weaker = Thresholds(mean_drop=1.25, floor_mean=90, floor_p10=None)
        assert waived_limits(weaker, TARGET, Override("why")) == [
            "gate.mean_drop is 1.25 instead of 0.5",
            "gate.floor_p10 is null instead of 75",
        ]

    def test_weaker_ones_need_a_reason(self) -> None:
        message = (
            r"^the gate's limits must not be weaker than the shipped ones: gate\.mean_drop is 1 instead of 0\.5, "
            r"gate\.min_problems is 5 instead of 25; to insist, set them and gate\.override\.reason="
        )
        with pytest.raises(ConfigError, match=message):
            waived_limits(Thresholds(mean_drop=1, floor_mean=90, floor_p10=75, min_problems=5), TARGET, Override())
