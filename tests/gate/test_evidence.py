"""Evidence from observations, on figures typed by hand: which picks are right, how surely, and the gate's verdict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gate.shadowed import SHAPES, A, B, C, file_of, observed
from synthetic import CONV
from tilewise.errors import DataError
from tilewise.gate import (
    Observation,
    SliceRule,
    Thresholds,
    build_shadow_report,
    check_evidence,
    gather_evidence,
    shadow_report_page,
)

GATE = Thresholds(slices=SliceRule(n_resamples=500))


class TestEvidence:
    def test_which_picks_are_right(self) -> None:
        found = gather_evidence(observed([2.0, 1.2, 0.5, 1.001, None]), B, A)
        assert found.count_right() == (2, 1, 1)
        assert (len(found.problems), len(found.differing), found.n_observations) == (5, 4, 4)
        assert found.speed_up(0.95, 100).delta == pytest.approx((2.0 * 1.2 * 0.5 * 1.001) ** (1 / 5))

    def test_the_time_of_calls_is_weighed(self) -> None:
        """10 calls of 1 ms at twice the speed save 5 ms, 100 of 2 ms at half of it cost 200."""
        seen = [*observed([2.0]), *observed([None, 0.5], ms=2.0, calls=100)[1:]]
        found = gather_evidence(seen, B, A)
        assert [found.served_ms, found.saved_ms] == pytest.approx([210, 5 - 200])

    def test_a_problem_counts_by_its_median(self) -> None:
        seen = [*observed([2.0], 3), *observed([0.01])]
        (problem,) = gather_evidence(seen, B, A).problems
        assert (problem.speed_up, problem.calls) == (2.0, 40)

    def test_the_same_models_with_parts_swapped(self) -> None:
        forth, back = observed([2.0, 0.5]), observed([0.5, 2.0], candidate=A, production=B)
        found = gather_evidence([*forth, *back], B, A)
        assert found.n_other_models == 0
        assert [p.speed_up for p in found.problems] == [2.0, 0.5]
        assert [p.ms_per_call for p in found.problems] == pytest.approx([1.5, 0.75])  # of A's kernels

    def test_other_models_do_not_count(self) -> None:
        others = [*observed([0.1], candidate=C), *observed([0.1], production=C), *observed([0.1], candidate=A)]
        found = gather_evidence([*observed([2.0]), *others], B, A)
        assert ([p.speed_up for p in found.problems], found.n_other_models) == ([2.0], 3)

    def test_what_was_not_timed(self) -> None:
        (seen,) = observed([2.0])
        rest = replace(seen, production=replace(seen.production, ms=()), candidate=replace(seen.candidate, ms=()))
        failed = replace(rest, problem=SHAPES[1], error="RuntimeError: boom")
        found = gather_evidence([rest, seen, rest, failed, failed], B, A)
        assert (len(found.problems), found.problems[0].calls, found.n_untimed) == (1, 30, 1)
        assert found.errors == ("RuntimeError: boom",)

    def test_only_the_last_kernels_count(self) -> None:
        """Switches may forbid a kernel: then a model picks another."""
        (before,) = observed([0.5])
        after = replace(before, production=replace(before.production, kernel_name="z", ms=(3.0,)))
        (problem,) = gather_evidence([before, after], B, A).problems
        assert (problem.production, problem.speed_ups) == ("z", (1.5,))


@pytest.mark.parametrize(
    ("speed_ups", "times", "passed", "worse", "reason"),
    [
        # the mean: equal, better, and an allowed loss
        ([None] * 20, 1, True, False, "speed-up 1.0000"),
        ([1.1] * 20, 1, True, False, "speed-up 1.1000"),
        ([0.996] * 20, 1, True, False, "speed-up 0.9960"),
        # surely worse; and not shown to be no worse: half lose as much as the others gain
        ([0.99] * 20, 1, False, True, "not shown to be at least 0.995"),
        ([0.93, 1.0 / 0.93] * 10, 1, False, False, "not shown to be at least 0.995"),
        # too few to judge their mean, however bad
        ([0.5] * 19, 1, True, False, "20 are needed to judge their mean"),
        ([], 1, True, False, "0 problems observed"),
        # one problem: five observations beyond the limit of 10 % exclude chance (1/32), four do not
        ([0.8], 4, True, False, "1 problems observed"),
        ([0.8], 5, False, True, "1 observed problems are slower by more than 10 %, the worst with a speed-up of 0.800"),
        ([0.91], 50, True, False, "1 problems observed"),
        # of thirty problems with two picks, chance has thirty goes: 2^-9 < 0.05 / 30 < 2^-10
        ([0.8, *[1.1] * 29], 9, True, False, "speed-up"),
        ([0.8, *[1.1] * 29], 10, False, True, "1 observed problems are slower"),
    ],
)  # fmt: skip
def test_the_gate_s_criterion(
    speed_ups: list[float | None], times: int, passed: bool, worse: bool, reason: str
) -> None:
    check = check_evidence(gather_evidence(observed(speed_ups, times), B, A), GATE)
    assert (check.reasons == (), check.surely_worse) == (passed, worse)
    assert any(reason in text for text in (*check.reasons, check.note))
    assert check.to_dict()["passed"] is passed


def test_a_speed_up_at_the_limits_passes() -> None:
    limits = Thresholds(mean_drop=50, problem_drop=50, slices=SliceRule(n_resamples=50))
    check = check_evidence(gather_evidence(observed([0.5] * 40, times=20), B, A), limits)
    assert (check.reasons, check.surely_worse) == ((), False)
    assert check.speed_up is not None
    assert check.speed_up.low == 0.5


def test_noise_hardly_ever_refuses_an_equal_model_s_problems() -> None:
    """Twenty problems at the very limit, ten noisy observations each: together they refuse in at most 5 % of cases."""
    rng, refused = np.random.default_rng(0), 0
    for _ in range(200):
        seen: list[Observation] = []
        for _ in range(10):
            seen += observed(list(0.9 * np.exp(rng.normal(0, 0.05, 20))))
        refused += bool(check_evidence(gather_evidence(seen, B, A), GATE).regressed)
    assert refused <= 16  # 10 expected at the most; 16 is two standard deviations more


class TestReport:
    def test_figures(self) -> None:
        seen = file_of(observed([2.0, 0.5, None], 2), observed([1.5], candidate=C, production=B))
        values = build_shadow_report(seen, CONV, level=0.9, n_resamples=50)
        newest, older = values["pairs"]
        assert (newest["candidate"]["content_hash"], newest["production"]["content_hash"]) == (C, B)
        assert (older["problems"], older["same_kernel"], older["observations"]) == (3, 1, 4)
        assert (older["candidate_right"], older["production_right"]) == (1, 1)
        assert older["saved_ms"] == pytest.approx(20 * 0.5 - 20)
        assert [p["speed_up"] for p in older["per_problem"]] == [0.5, 1.0, 2.0]
        text = shadow_report_page(values)
        assert "| the candidate would save | -16.67 % |" in text
        assert "| candidate right | 1 of 2 |" in text
        assert text.count("The worst regressions:") == 1

    def test_another_target(self) -> None:
        with pytest.raises(DataError, match=f"nothing was observed of x; there are observations of {CONV}"):
            build_shadow_report(file_of(observed([1.0])), "x", level=0.9, n_resamples=50)
