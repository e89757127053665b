"""Every figure that the gate states, computed by hand: a changed constant or rounding fails a test here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gate.shadowed import A, B, observed
from tilewise.evaluate import STATISTICS, paired_bootstrap
from tilewise.gate import (
    GateDecision,
    HoldoutEfficiencies,
    Slice,
    SliceRule,
    Thresholds,
    check_evidence,
    check_slices,
    decide_promotion,
    gather_evidence,
)

# Eleven problems, so that P10 is the second smallest efficiency and the median the sixth.
PRODUCTION = np.array([0.50, 0.60, 0.70, 0.80, 0.85, 0.90, 0.92, 0.94, 0.96, 0.98, 1.00])  # mean 9.15 / 11
CANDIDATE = np.array([0.55, 0.57, 0.70, 0.80, 0.85, 0.89, 0.92, 0.94, 0.96, 0.98, 0.881])  # mean 9.041 / 11
PROBLEMS = [{"M": i} for i in range(11)]


def judge(candidate: np.ndarray, production: np.ndarray | None, thresholds: Thresholds | None = None) -> GateDecision:
    holdout = HoldoutEfficiencies(PROBLEMS[: len(candidate)], candidate, production)
    return decide_promotion(holdout, thresholds or Thresholds())


def test_the_printed_points_against_production() -> None:
    decision = judge(CANDIDATE, PRODUCTION)
    assert [c.reason for c in decision.checks] == [
        "mean efficiency 82.19% against production's 83.18%: 0.99 points worse, 0.5 worse allowed",
        "median efficiency 88.10% against production's 90.00%: 1.90 points worse, 0.5 worse allowed",
        "p10 efficiency 57.00% against production's 60.00%: 3.00 points worse, 2 worse allowed",
        "1 of 11 problems fall by more than 10 points, the worst by 11.90",
    ]
    assert decision.reasons == tuple(c.reason for c in decision.checks)
    entries = decision.to_dict()["checks"]
    assert [e["change_points"] for e in entries] == pytest.approx([-10.9 / 11, -1.9, -3, -11.9], abs=1e-9)
    assert [e["allowed_drop_points"] for e in entries] == [0.5, 0.5, 2.0, 10.0]
    assert [e["reference"] for e in entries] == pytest.approx([9.15 / 11, 0.90, 0.60, 1.0], abs=1e-9)
    regressed: Any = decision.to_dict()["regressed"]
    assert [(r["problem"], r["drop_points"]) for r in regressed] == [({"M": 10}, pytest.approx(11.9))]


def test_the_summary_of_both_models() -> None:
    decision = judge(CANDIDATE, PRODUCTION)
    assert decision.candidate == pytest.approx({"mean": 9.041 / 11, "median": 0.881, "p10": 0.57, "min": 0.55})
    assert decision.production == pytest.approx({"mean": 9.15 / 11, "median": 0.90, "p10": 0.60, "min": 0.50})


def test_gains_are_printed_as_better() -> None:
    assert [c.reason for c in judge(PRODUCTION, CANDIDATE).checks][:2] == [
        "mean efficiency 83.18% against production's 82.19%: 0.99 points better, 0.5 worse allowed",
        "median efficiency 90.00% against production's 88.10%: 1.90 points better, 0.5 worse allowed",
    ]
    equal = [c.reason for c in judge(PRODUCTION, PRODUCTION).checks]
    assert equal[0].endswith("83.18% against production's 83.18%: 0.00 points better, 0.5 worse allowed")
    assert equal[-1] == "0 of 11 problems fall by more than 10 points, the worst by 0.00"


def test_the_printed_floors_of_a_first_model() -> None:
    decision = judge(CANDIDATE, None, Thresholds(floor_mean=82, floor_p10=75))
    assert [c.reason for c in decision.checks] == [
        "mean efficiency 82.19% exceeds the first model's floor of 82 %",
        "p10 efficiency 57.00% does not exceed the first model's floor of 75 %",
    ]
    assert [(c.name, c.reference, c.allowed_drop_points) for c in decision.checks] == [
        ("floor_mean", 0.82, 0.0),
        ("floor_p10", 0.75, 0.0),
    ]


@pytest.mark.parametrize(
    ("limit", "drop_points", "promote"),
    [
        ("mean_drop", 0.5, True),
        ("mean_drop", 0.5 + 1e-7, False),
        ("median_drop", 0.5 + 1e-7, False),
        ("p10_drop", 2.0, True),
        ("p10_drop", 2 + 1e-7, False),
        ("problem_drop", 10.0, True),
        ("problem_drop", 10 + 1e-7, False),
    ],
)
def test_a_limit_holds_to_a_ten_millionth_of_a_point(limit: str, drop_points: float, promote: bool) -> None:
    """The limits are the defaults of `Thresholds`; the other limits are switched off."""
    others: dict[str, Any] = {n: 100.0 for n in ("mean_drop", "median_drop", "p10_drop", "problem_drop") if n != limit}
    decision = judge(np.full(4, 0.9 - drop_points / 100), np.full(4, 0.9), Thresholds(**others))
    assert decision.promote is promote
    assert bool(decision.regressed) is (limit == "problem_drop" and not promote)


def test_figures_are_rounded_to_ten_digits() -> None:
    """More digits depend on the CPU, fewer hide a difference."""
    decision = judge(np.array([1 / 3]), None, Thresholds(floor_mean=1))
    assert decision.to_dict()["candidate"]["mean"] == 0.3333333333


def test_slices_share_one_error_rate() -> None:
    """Two slices with three statistics each: six tests, so each interval ends at 1 - 0.05 / 6, one-sided."""
    rng = np.random.default_rng(1)
    theirs, ours = rng.uniform(0.8, 1, (2, 60))
    slices = [Slice("s", "a", np.arange(30)), Slice("s", "b", np.arange(30, 60)), Slice("s", "small", np.arange(19))]
    rule = SliceRule(n_resamples=400)
    found = check_slices(slices, ours, theirs, Thresholds().drops, rule)
    assert [s.value for s in found] == ["a", "b"]
    for check, members in zip(found, (slice(0, 30), slice(30, 60)), strict=True):
        ends = paired_bootstrap(theirs[members], ours[members], n_resamples=400, level=1 - 0.1 / 6, seed=0)
        expected = {name: 100 * ends[name].high for name in ("mean", "median", "p10")}
        assert check.at_best_points == pytest.approx(expected, rel=1e-12)
        assert check.candidate == pytest.approx({n: STATISTICS[n](ours[members]) for n in expected})


def test_the_printed_points_of_a_slice() -> None:
    members = np.arange(20)
    (check,) = check_slices(
        [Slice("family", "3x3", members)], np.full(20, 0.8), np.full(20, 0.9), Thresholds().drops, SliceRule()
    )
    assert check.reasons[0] == (
        "family 3x3 (20 problems): mean efficiency 80.00% against production's 90.00%, at best -10.00 points"
    )


@pytest.mark.parametrize(("drop_points", "failed"), [(0.5, ()), (0.5 + 1e-7, ("mean", "median"))])
def test_a_slice_s_limit_holds_to_a_ten_millionth_of_a_point(drop_points: float, failed: tuple[str, ...]) -> None:
    theirs = np.full(20, 0.9)
    slices = [Slice("s", "a", np.arange(20))]
    (check,) = check_slices(slices, theirs - drop_points / 100, theirs, Thresholds().drops, SliceRule(n_resamples=50))
    assert check.failed == failed


def test_the_defaults_are_those_of_the_configuration() -> None:
    assert Thresholds() == Thresholds(0.5, 0.5, 2.0, 10.0, None, None, SliceRule(0.95, 20, 10_000), 2.0)


class TestEvidence:
    """Shadow observations, with 500 resamples."""

    GATE = Thresholds(slices=SliceRule(n_resamples=500))

    def test_a_difference_counts_from_one_percent(self) -> None:
        evidence = gather_evidence(observed([1.0101, 1.0099, 0.9899, 0.9901]), B, A)
        assert evidence.count_right() == (1, 1, 2)

    def test_the_interval_is_one_sided_at_the_gate_s_level(self) -> None:
        """95 % below one end is the lower end of a two-sided interval of 90 %."""
        speed_ups = list(np.linspace(0.95, 1.1, 20))
        evidence = gather_evidence(observed(speed_ups), B, A)
        interval = check_evidence(evidence, self.GATE).speed_up
        assert interval == evidence.speed_up(0.9, 500)
        assert interval is not None
        assert interval.delta == pytest.approx(float(np.exp(np.log(speed_ups).mean())), rel=1e-12)

    @pytest.mark.parametrize(("speed_up", "passed"), [(0.99501, True), (0.99499, False)])
    def test_the_mean_may_fall_by_half_a_percent(self, speed_up: float, passed: bool) -> None:
        check = check_evidence(gather_evidence(observed([speed_up] * 20), B, A), self.GATE)
        assert (check.reasons == ()) is passed

    @pytest.mark.parametrize(("speed_up", "n_regressed"), [(0.9001, 0), (0.8999, 1)])
    def test_a_problem_may_fall_by_ten_percent(self, speed_up: float, n_regressed: int) -> None:
        check = check_evidence(gather_evidence(observed([speed_up], 5), B, A), self.GATE)
        assert len(check.regressed) == n_regressed

    def test_the_printed_figures(self) -> None:
        check = check_evidence(gather_evidence(observed([0.8, *[0.99] * 19], 20), B, A), self.GATE)
        assert check.note.startswith("20 problems observed, 20 with two picks: speed-up 0.9795 (")
        assert check.reasons[1].startswith(
            "1 observed problems are slower by more than 10 %, the worst with a speed-up of 0.800 in 20 observations: "
        )
