"""The gate's decisions on efficiencies typed by hand: every expected number can be checked in the head."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gate.shadowed import A, B, observed
from own_op import registered
from tilewise.errors import ConfigError, DataError
from tilewise.gate import (
    HoldoutEfficiencies,
    Slice,
    SliceRule,
    Thresholds,
    check_slices,
    decide_promotion,
    gather_evidence,
)
from tilewise.ops import VARIANT, Target

# Ten problems, so that P10 lies between the worst and the second worst (numpy: worst + 0.9 (second - worst)).
PRODUCTION = [0.80, 0.90, 0.90, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00, 1.00]  # mean 96, median 100, P10 89
LOOSE = {"mean_drop": 100, "median_drop": 100, "p10_drop": 100, "problem_drop": 100}
FORWARD = Target("grouped_conv", "forward", "bf16", "sm90")


def problems(n: int) -> list[dict[str, int]]:
    return [{"M": i} for i in range(n)]


def judge(candidate: list[float], production: list[float] | None, **thresholds: Any) -> Any:
    theirs = None if production is None else np.array(production)
    return decide_promotion(
        HoldoutEfficiencies(problems(len(candidate)), np.array(candidate), theirs), Thresholds(**thresholds)
    )


@pytest.mark.parametrize(
    ("candidate", "production", "thresholds", "promote", "reason"),
    [
        # equal, better
        (PRODUCTION, PRODUCTION, {}, True, "not worse than production"),
        ([1.0] * 10, PRODUCTION, {}, True, "not worse than production"),
        # mean: 0.95 -> 0.945 is just allowed, 0.95 -> 0.944 is not; the other criteria are switched off
        ([0.945] * 4, [0.95] * 4, {**LOOSE, "mean_drop": 0.5}, True, "not worse"),
        ([0.944] * 4, [0.95] * 4, {**LOOSE, "mean_drop": 0.5}, False, "mean efficiency 94.40% against"),
        # median: 0.90 -> 0.895 allowed, 0.894 not; the mean rises all the while
        ([0.895, 0.895, 1.0], [0.90, 0.90, 0.90], {**LOOSE, "median_drop": 0.5}, True, "not worse"),
        ([0.894, 0.894, 1.0], [0.90, 0.90, 0.90], {**LOOSE, "median_drop": 0.5}, False, "median efficiency 89.40%"),
        # P10: 89 % -> 87 % allowed; a third problem at 80 % makes P10 80 %
        ([0.78, 0.88, 0.90, *[1.0] * 7], PRODUCTION, {**LOOSE, "p10_drop": 2}, True, "not worse"),
        ([0.80, 0.80, 0.90, *[1.0] * 7], PRODUCTION, {**LOOSE, "p10_drop": 2}, False, "p10 efficiency 80.00%"),
        # one problem: 1.00 -> 0.90 is just allowed, 1.00 -> 0.89 is not, however much the others gain
        ([0.90, 1.0, 1.0, 1.0], [1.00, 0.5, 0.5, 0.5], {}, True, "not worse"),
        ([0.89, 1.0, 1.0, 1.0], [1.00, 0.5, 0.5, 0.5], {}, False, "1 of 4 problems fall by more than 10 points"),
        # floors for a first model must be exceeded, not met
        ([0.91] * 4, None, {"floor_mean": 90}, True, "first model"),
        ([0.90] * 4, None, {"floor_mean": 90}, False, "does not exceed the first model's floor of 90 %"),
        ([0.70, 0.70, 1.0, 1.0], None, {"floor_p10": 75}, False, "p10 efficiency 70.00% does not exceed"),
        ([0.01] * 4, None, {}, True, "first model"),
        # floors are for a first model only
        ([0.50] * 4, [0.50] * 4, {"floor_mean": 90}, True, "not worse"),
        # nothing to judge by
        ([], None, {}, False, "no holdout problem"),
        ([], [], {}, False, "no holdout problem"),
    ],
)
def test_decision(
    candidate: list[float], production: list[float] | None, thresholds: dict[str, float], promote: bool, reason: str
) -> None:
    decision = judge(candidate, production, **thresholds)
    assert decision.promote is promote
    assert any(reason in r for r in decision.reasons), decision.reasons


def test_a_selection_without_any_speed_is_judged() -> None:
    assert judge([0.0, 1.0], None).candidate["min"] == 0


def test_every_failed_criterion_is_a_reason() -> None:
    """A refused candidate needs the whole list at once, not one complaint a try."""
    decision = judge([0.5] * 10, PRODUCTION)
    assert [r.split()[0] for r in decision.reasons] == ["mean", "median", "p10", "10"]
    assert [c.name for c in decision.checks if not c.passed] == ["mean", "median", "p10", "problem"]


def test_regressed_problems_are_named_worst_first() -> None:
    decision = judge([0.85, 0.95, 0.60, 1.0], [1.0, 1.0, 1.0, 0.9])
    assert [(r.problem, round(r.drop_points, 6)) for r in decision.regressed] == [({"M": 2}, 40.0), ({"M": 0}, 15.0)]


def test_numbers_of_both_models() -> None:
    decision = judge(PRODUCTION, [1.0] * 10)
    assert decision.n_problems == 10
    assert decision.candidate == pytest.approx({"mean": 0.96, "median": 1.0, "p10": 0.89, "min": 0.80})
    assert decision.production == pytest.approx({"mean": 1.0, "median": 1.0, "p10": 1.0, "min": 1.0})
    assert {c.name: round(c.change_points, 6) for c in decision.checks} == {
        "mean": -4.0, "median": 0.0, "p10": -11.0, "problem": -20.0
    }  # fmt: skip


def test_the_record_is_json_and_equal_for_equal_decisions() -> None:
    first, second = (json.dumps(judge([0.5] * 10, PRODUCTION).to_dict(), sort_keys=True) for _ in range(2))
    assert first == second
    assert json.loads(first)["checks"][0]["change_points"] == -46.0


@pytest.mark.parametrize(
    ("candidate", "production", "match"),
    [
        ([0.9, float("nan")], None, r"candidate: efficiency must lie in \[0, 1\], got nan for problem 1"),
        ([0.9, 1.2], None, r"candidate: .* got 1.2 for problem 1"),
        ([0.9, 0.9], [-0.1, 1.0], r"production: .* got -0.1 for problem 0"),
        ([0.9, 0.9], [0.9], r"production: 2 problems need 2 efficiencies, got an array of shape \(1,\)"),
    ],
)
def test_bad_efficiencies_are_refused(candidate: list[float], production: list[float] | None, match: str) -> None:
    with pytest.raises(DataError, match=match):
        judge(candidate, production)


@pytest.mark.parametrize("value", [-0.5, 101, float("nan"), True, "0.5", None])
def test_bad_thresholds_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="mean_drop must be a number from 0 to 100"):
        Thresholds(mean_drop=value)


@pytest.mark.parametrize(
    ("kind", "options", "match"),
    [
        (SliceRule, {"level": 1.0}, "slices.level must lie between 0.5 and 1, got 1.0"),
        (SliceRule, {"level": 0.0}, "slices.level must lie between 0.5 and 1, got 0.0"),
        (SliceRule, {"level": 0.5}, "slices.level must lie between 0.5 and 1, got 0.5"),
        (SliceRule, {"level": True}, "slices.level must lie between 0.5 and 1, got True"),
        (SliceRule, {"min_problems": 0}, "slices.min_problems must be a positive whole number, got 0"),
        (SliceRule, {"n_resamples": 10.5}, "slices.n_resamples must be a positive whole number, got 10.5"),
        (Thresholds, {"selection_time_factor": 0.5}, "selection_time_factor must be a number of 1 or more, got 0.5"),
        (Thresholds, {"selection_time_factor": float("nan")}, "selection_time_factor must be"),
        (Thresholds, {"min_problems": 0}, "min_problems must be a positive whole number, got 0"),
        (Thresholds, {"floor_p10": 101}, "floor_p10 must be a number from 0 to 100, got 101"),
    ],
)
def test_bad_settings_are_refused(kind: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(**options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SliceRule, {"min_problems": 1}),
        (SliceRule, {"n_resamples": 1}),
        (Thresholds, {"mean_drop": 0}),
        (Thresholds, {"floor_mean": 100}),
        (Thresholds, {"selection_time_factor": 1}),
        (Thresholds, {"min_problems": 1}),
    ],
)
def test_settings_at_their_limits_are_accepted(kind: Any, options: dict[str, Any]) -> None:
    ((name, value),) = options.items()
    assert getattr(kind(**options), name) == value


CONF: dict[str, Any] = {
    "mean_drop": 0.5, "median_drop": 0.4, "p10_drop": 2.0, "problem_drop": 10.0, "selection_time_factor": 1.5,
    "slices": {"level": 0.9, "min_problems": 12, "n_resamples": 100},
    "floors": {"grouped_conv": {"forward": {"mean": 90, "p10": 75}, "bwd_data": {"mean": 85, "p10": None}}},
}  # fmt: skip


class TestFromConfig:
    def test_floors_are_those_of_op_and_variant(self) -> None:
        thresholds = Thresholds.from_config(CONF, FORWARD)
        assert (thresholds.median_drop, thresholds.floor_mean, thresholds.floor_p10) == (0.4, 90, 75)
        assert (thresholds.slices, thresholds.selection_time_factor) == (SliceRule(0.9, 12, 100), 1.5)
        backward = Thresholds.from_config(CONF, Target("grouped_conv", "bwd_data", "fp16", "gfx950"))
        assert (backward.floor_mean, backward.floor_p10) == (85, None)

    def test_a_target_without_floors_is_no_free_pass(self) -> None:
        with pytest.raises(ConfigError, match="no floors for gemm universal; add them to conf/gate"):
            Thresholds.from_config(CONF, Target("gemm", "universal", "fp8", "sm90"))

    @pytest.mark.parametrize("key", ["p10_drop", "slices", "selection_time_factor", "floors"])
    def test_a_missing_key_is_named(self, key: str) -> None:
        with pytest.raises(ConfigError, match=f"the setting '{key}' is missing"):
            Thresholds.from_config({k: v for k, v in CONF.items() if k != key}, FORWARD)

    def test_the_least_holdout_may_be_missing(self) -> None:
        assert Thresholds.from_config(CONF, FORWARD).min_problems == Thresholds().min_problems
        assert Thresholds.from_config({**CONF, "min_problems": 40}, FORWARD).min_problems == 40

    def test_an_op_of_a_user_ships_without_floors(self) -> None:
        target: Any = SimpleNamespace(op="own", variant="any")
        own = Thresholds.shipped(target)
        assert (own.floor_mean, own.floor_p10) == (None, None)

    def test_an_op_of_a_user_has_the_floors_of_own_ops_unless_it_has_its_own(self) -> None:
        with registered() as definition:
            target = Target(definition.name, VARIANT, "bf16", "sm90")
            assert Thresholds.shipped(target).floor_mean == 85
            floors = {"own": {VARIANT: {"mean": 70}}}
            assert Thresholds.from_config({**CONF, "floors": floors}, target).floor_mean == 70
            floors[target.op] = {VARIANT: {"mean": 60}}
            assert Thresholds.from_config({**CONF, "floors": floors}, target).floor_mean == 60

    def test_a_misspelt_floor_is_named(self) -> None:
        floors = {"grouped_conv": {"forward": {"mean": 90, "p01": 75, "max": 99}}}
        with pytest.raises(ConfigError, match="floors has the keys mean, p10, got max, p01; rename it"):
            Thresholds.from_config({**CONF, "floors": floors}, FORWARD)

    @pytest.mark.parametrize(
        ("extra", "named"),
        [
            ({"mean_dorp": 0.1}, "gate .* got mean_dorp"),
            ({"slices": {**CONF["slices"], "levl": 0.99}}, "slices .* got levl"),
        ],
    )
    def test_a_misspelt_limit_is_named(self, extra: dict[str, Any], named: str) -> None:
        with pytest.raises(ConfigError, match=named):
            Thresholds.from_config({**CONF, **extra}, FORWARD)

    @pytest.mark.parametrize(
        ("op", "variant", "mean", "p10"),
        [
            ("grouped_conv", "forward", 90, 75),
            ("grouped_conv", "bwd_data", 85, None),
            ("grouped_conv", "bwd_weight", 85, None),
            ("gemm", "universal", 95, 90),
        ],
    )
    def test_the_committed_configuration(self, op: str, variant: str, mean: float, p10: float | None) -> None:
        import yaml

        from tilewise.conf_files import conf_dir

        conf = yaml.safe_load((conf_dir() / "gate" / "default.yaml").read_text())
        thresholds = Thresholds.from_config(conf, Target(op, variant, "bf16", "sm90"))
        assert thresholds == Thresholds(0.5, 0.5, 2.0, 10.0, mean, p10)
        assert thresholds == Thresholds.shipped(Target(op, variant, "bf16", "sm90"))


class TestWeaker:
    SHIPPED = Thresholds.shipped(FORWARD)

    @pytest.mark.parametrize(
        "change",
        [
            {"mean_drop": 0.6},
            {"median_drop": 0.6},
            {"p10_drop": 2.1},
            {"problem_drop": 11},
            {"floor_mean": 89.9},
            {"floor_p10": None},
            {"selection_time_factor": 2.5},
            {"min_problems": 24},
        ],
    )
    def test_each_weaker_setting_is_named(self, change: dict[str, Any]) -> None:
        (name,) = change
        changed = dataclasses.replace(self.SHIPPED, **change)
        assert changed.weaker_than(self.SHIPPED) == {name: (change[name], getattr(self.SHIPPED, name))}
        assert self.SHIPPED.weaker_than(changed) == {}

    @pytest.mark.parametrize(
        ("name", "value", "shipped"), [("level", 0.99, 0.95), ("min_problems", 21, 20), ("n_resamples", 9999, 10_000)]
    )
    def test_so_are_those_of_slices(self, name: str, value: Any, shipped: float) -> None:
        changed = dataclasses.replace(self.SHIPPED, slices=SliceRule(**{name: value}))
        assert changed.weaker_than(self.SHIPPED) == {f"slices.{name}": (value, shipped)}
        assert self.SHIPPED.weaker_than(changed) == {}


class TestRecorded:
    """Ten problems that production was judged on, and others beside them."""

    @settings(deadline=None, max_examples=50)
    @given(
        st.lists(st.floats(0.5, 1.0), min_size=10, max_size=10),
        st.lists(st.floats(0.5, 1.0), min_size=1, max_size=60),
        st.floats(0.0, 0.2),
    )
    def test_new_problems_hide_no_loss(self, candidate: list[float], new: list[float], gain: float) -> None:
        """Whatever they are, and however much better the candidate is there."""
        ours, theirs = np.array(candidate + [min(e + gain, 1.0) for e in new]), np.array(PRODUCTION + new)
        alone = judge(candidate, PRODUCTION)
        holdout = HoldoutEfficiencies(problems(len(ours)), ours, theirs, recorded=np.arange(10))
        grown = decide_promotion(holdout, Thresholds())
        assert grown.promote <= alone.promote
        on_these = {c.name.removeprefix("recorded_"): c for c in grown.checks if c.name.startswith("recorded_")}
        for check in alone.checks[:3]:
            expected = "on the 10 problems that production was judged on, " + check.reason
            assert on_these[check.name] == dataclasses.replace(check, name=f"recorded_{check.name}", reason=expected)

    @pytest.mark.parametrize("recorded", [None, np.arange(0), np.arange(10)], ids=["unknown", "none", "all"])
    def test_without_others_beside_them_nothing_is_judged_twice(self, recorded: Any) -> None:
        efficiency = np.array(PRODUCTION)
        holdout = HoldoutEfficiencies(problems(10), efficiency, efficiency, recorded=recorded)
        assert [c.name for c in decide_promotion(holdout, Thresholds()).checks] == ["mean", "median", "p10", "problem"]


class TestSlices:
    """Thirty problems in two slices; the other criteria are switched off, except the allowed loss of a slice."""

    A, B = Slice("family", "3x3", np.arange(20)), Slice("family", "1x1", np.arange(20, 30))

    def judge(self, candidate: list[float], production: list[float], **options: Any) -> Any:
        thresholds = {"problem_drop": 100, **options}
        theirs, ours = np.array(production), np.array(candidate)
        holdout = HoldoutEfficiencies(problems(30), ours, theirs, (self.A, self.B))
        return decide_promotion(holdout, Thresholds(**thresholds))

    @pytest.mark.parametrize(
        ("candidate", "promote", "reason"),
        [
            # equal, better
            ([0.9] * 30, True, "not worse"),
            ([0.95] * 30, True, "not worse"),
            # all 20 problems of a slice lose 0.5 points, which is allowed; the others make up for it
            ([0.895] * 20 + [0.91] * 10, True, "not worse"),
            # all lose 0.6: 0.52 on the whole if the others gain nothing, so they gain
            (
                [0.894] * 20 + [0.92] * 10,
                False,
                "family 3x3 (20 problems): mean efficiency 89.40% against production's",
            ),
            # one problem in twenty loses 20 points: 1 point in the mean, and no more than chance
            ([0.7] + [0.9] * 19 + [0.95] * 10, True, "not worse"),
            # every second problem loses 4 points: 2 in the mean, and surely more than half a point
            ([0.86, 0.9] * 10 + [0.95] * 10, False, "mean efficiency 88.00%"),
            # ten problems are too few to be judged as a slice
            ([0.92] * 20 + [0.89] * 10, True, "not worse"),
        ],
    )
    def test_decision(self, candidate: list[float], promote: bool, reason: str) -> None:
        decision = self.judge(candidate, [0.9] * 30, median_drop=100 if 0.86 in candidate else 0.5, p10_drop=100)
        assert decision.promote is promote, decision.reasons
        assert any(reason in r for r in decision.reasons), decision.reasons

    def test_small_slices_are_judged_where_they_are_asked_for(self) -> None:
        rule = SliceRule(min_problems=10)
        decision = self.judge([0.92] * 20 + [0.89] * 10, [0.9] * 30, slices=rule)
        assert [(s.name, s.failed) for s in decision.weak_slices] == [("family 1x1", ("mean", "median"))]
        assert len(decision.slices) == 2

    def test_figures(self) -> None:
        found = self.judge([0.8] * 20 + [0.9] * 10, [0.9] * 30).slices
        assert [(s.name, s.n_problems) for s in found] == [("family 3x3", 20)]
        assert found[0].candidate == pytest.approx({"mean": 0.8, "median": 0.8, "p10": 0.8})
        assert found[0].at_best_points == pytest.approx({"mean": -10, "median": -10, "p10": -10})

    @pytest.mark.long
    def test_an_equal_model_practically_never_fails(self) -> None:
        """Real misses: most problems are hit, some are missed far, and either model may be the unlucky one."""
        rng, refused, blamed = np.random.default_rng(3), 0, 0
        slices = [
            Slice("s", str(i), rng.choice(400, n, replace=False)) for i, n in enumerate([20, 25, 40, 80, 150] * 6)
        ]
        for _ in range(25):
            miss = np.where(rng.random((2, 400)) < 0.3, rng.exponential(0.05, (2, 400)), 0).clip(max=0.5)
            ours, theirs = 1 - miss
            found = check_slices(slices, ours, theirs, Thresholds().drops, SliceRule(n_resamples=1500))
            refused += any(s.failed for s in found)
            blamed += any((theirs - ours)[s.members].mean() * 100 > 0.5 for s in slices)
        assert blamed == 25, "without the bootstrap some slice would always be blamed"
        assert refused == 0


EQUAL = HoldoutEfficiencies(problems(1), np.ones(1), np.ones(1))


class TestConditions:
    @pytest.mark.parametrize(("ratio", "promote"), [(0.5, True), (2.0, True), (2.01, False)])
    def test_selection_time(self, ratio: float, promote: bool) -> None:
        decision = decide_promotion(EQUAL, Thresholds(), selection_time_ratio=ratio)
        assert decision.promote is promote
        said = "at most 2 times" if promote else "more than 2 times as long as production's"
        assert any(said in c.reason for c in decision.conditions)

    def test_times_stay_out_of_the_record(self) -> None:
        """They differ from run to run, and the record must not."""
        records = [decide_promotion(EQUAL, Thresholds(), selection_time_ratio=r).to_dict() for r in (1.1, 1.2)]
        assert records[0] == records[1]

    def test_a_copy_that_fails_its_self_test_is_refused(self) -> None:
        decision = decide_promotion(
            HoldoutEfficiencies(problems(1), np.ones(1), None), Thresholds(), selftest_error="pool.json: damaged"
        )
        assert decision.reasons == ("the registry's copy is refused: pool.json: damaged",)
        assert [c.name for c in decision.conditions if not c.passed] == ["selftest"]

    def test_nothing_to_judge_by_is_recorded(self) -> None:
        (condition,) = (c for c in judge([], None).conditions if not c.passed)
        assert (condition.name, condition.passed) == ("holdout", False)


class TestEvidence:
    """Shadow observations are one more criterion; tests/gate/test_evidence.py checks its figures."""

    @pytest.mark.parametrize(("speed_up", "promote"), [(1.1, True), (0.9, False), (None, True)])
    def test_it_can_refuse(self, speed_up: float | None, promote: bool) -> None:
        evidence = None if speed_up is None else gather_evidence(observed([speed_up] * 20), B, A)
        equal = np.array(PRODUCTION)
        decision = decide_promotion(HoldoutEfficiencies(problems(10), equal, equal), Thresholds(), evidence=evidence)
        assert decision.promote is promote
        entry = decision.to_dict()["observed"]
        assert (entry and entry["speed_up"]) == (None if speed_up is None else [pytest.approx(speed_up)] * 3)
        assert promote or "it is not shown to be at least 0.995" in decision.reasons[0]

    def test_it_cannot_make_up_for_a_loss_on_the_holdout(self) -> None:
        evidence = gather_evidence(observed([2.0] * 20), B, A)
        holdout = HoldoutEfficiencies(problems(10), np.full(10, 0.5), np.array(PRODUCTION))
        decision = decide_promotion(holdout, Thresholds(), evidence=evidence)
        assert not decision.promote
