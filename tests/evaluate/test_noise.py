"""The ceiling: picked by one run, judged by the others, for each run."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.evaluate import noise_ceiling
from tilewise.evaluate._noise import measured_apart, repeat_noise
from tilewise.ops import Target

TARGET = Target.parse(CONV)
BASE = measurements(n_problems=2, n_kernels=3, seed=1, failures=0).assign(status="ok", is_valid=True)


def run(name: str, tflops: list[float | None], frame: pd.DataFrame = BASE) -> pd.DataFrame:
    """Return the rows of `frame` as another run; None leaves a row invalid."""
    values = pd.Series(tflops, index=frame.index, dtype="float64")
    return frame.assign(run_id=name, tflops=values, latency_ms=1 / values, is_valid=values.notna())


def test_each_run_picks_for_the_other() -> None:
    one, two = run("a", [10, 9, 1, 5, 6, 7]), run("b", [8, 10, 1, 5, 6, 7])
    ceiling = noise_ceiling(pd.concat([one, two], ignore_index=True), TARGET)
    assert ceiling is not None
    assert ceiling.n_problems == 2
    first = (8 / 10 + 9 / 10) / 2  # a's pick judged by b, b's pick judged by a
    assert ceiling.mean_efficiency == pytest.approx((first + 1) / 2)
    assert ceiling.same_kernel_rate == 0.5
    assert ceiling.median_efficiency == pytest.approx((first + 1) / 2)
    assert ceiling.p10_efficiency == pytest.approx(first + 0.1 * (1 - first))


def test_only_kernels_valid_in_both_runs_take_part() -> None:
    one, two = run("a", [10, 9, 1, 5, 6, 7]), run("b", [None, 10, 1, None, None, None])
    ceiling = noise_ceiling(pd.concat([one, two], ignore_index=True), TARGET)
    assert ceiling is not None
    assert (ceiling.n_problems, ceiling.mean_efficiency) == (1, 1.0)


def test_two_runs_judge_the_third() -> None:
    runs = [run("a", [10, 9, 1, 1, 1, 2]), run("b", [8, 10, 1, 1, 1, 2]), run("c", [10, 5, 1, 1, 1, 2])]
    ceiling = noise_ceiling(pd.concat(runs, ignore_index=True), TARGET)
    assert ceiling is not None
    by_a, by_b, by_c = 1.0, math.sqrt(9 * 5 / (10 * 10)), math.sqrt(10 * 8 / (9 * 10))  # medians of two: in logarithms
    first = (by_a + by_b + by_c) / 3
    assert ceiling.mean_efficiency == pytest.approx((first + 1) / 2)


def test_without_repeats_there_is_none() -> None:
    assert noise_ceiling(BASE, TARGET) is None
    assert noise_ceiling(BASE.assign(is_valid=False), TARGET) is None
    assert noise_ceiling(BASE, Target("grouped_conv", "forward", "fp16", "sm90")) is None
    separate = pd.concat([run("a", [1, 2, 3, None, None, None]), run("b", [None, None, None, 1, 2, 3])])
    assert noise_ceiling(separate, TARGET) is None


def test_less_noise_is_a_higher_ceiling() -> None:
    quiet, loud = (noise_ceiling(measurements(repeats=40, noise=noise), TARGET) for noise in (0.001, 0.1))
    assert quiet is not None
    assert loud is not None
    assert 1 >= quiet.mean_efficiency > 0.998 > loud.mean_efficiency


def test_repeats_are_the_mean_of_the_runs_beside_the_primary() -> None:
    one, two, three = run("a", [10, 9, 1, 5, 6, 7]), run("b", [8, 10, None, 5, 6, 7]), run("c", [6, 8, 1, 5, 6, None])
    frame = pd.concat([two, one, three], ignore_index=True)
    first, again = measured_apart(one, frame, TARGET)
    assert first.tolist() == [10, 9, 1, 5, 6, 7]
    assert again[:2].tolist() == [7, 9]
    assert measured_apart(one, one, TARGET)[1].tolist() == pytest.approx([np.nan] * 6, nan_ok=True)


def test_a_run_that_is_faster_as_a_whole_is_no_noise() -> None:
    problem, measured = np.repeat([0, 1, 2], 5), np.arange(1.0, 16)
    again = measured * 1.2
    again[5] *= 1.5  # one kernel of the second problem strays
    again[10:13] = np.nan  # two of the third: too few to tell
    noise = repeat_noise(problem, measured, again)
    assert noise[0] == pytest.approx(0, abs=1e-12)
    assert noise[1] == pytest.approx(0.6 * np.log(1.5))  # P90 of 0, 0, 0, 0, log(1.5)
    assert np.isnan(noise[2])


def test_every_figure_of_the_ceiling_by_hand() -> None:
    """Three problems; the mean of both judgements of each is 0.6, 0.8 and 1, so P10 lies a fifth above the lowest."""
    frame = measurements(n_problems=3, n_kernels=2, seed=1, failures=0).assign(status="ok", is_valid=True)
    one = run("a", [10, 6, 10, 8, 10, 1], frame)
    two = run("b", [6, 10, 8, 10, 10, 1], frame)
    ceiling = noise_ceiling(pd.concat([one, two], ignore_index=True), TARGET)
    assert ceiling is not None
    assert ceiling.n_problems == 3
    assert ceiling.same_kernel_rate == pytest.approx(1 / 3)
    assert ceiling.mean_efficiency == pytest.approx((0.6 + 0.8 + 1) / 3, rel=1e-12)
    assert ceiling.median_efficiency == pytest.approx(0.8, rel=1e-12)
    assert ceiling.p10_efficiency == pytest.approx(0.6 + 0.2 * (0.8 - 0.6), rel=1e-12)


def test_the_noise_of_a_problem_by_hand() -> None:
    """Eleven kernels that deviate by 0 to 10 % from their median (on one side): P90 is the tenth, 9 %."""
    deviations = np.array([0.0] * 6 + [0.02, 0.04, 0.06, 0.09, 0.10])
    measured = np.full(11, 7.0)
    noise = repeat_noise(np.zeros(11, int), measured, measured * np.exp(deviations))
    assert noise == pytest.approx([0.09], rel=1e-9)


@pytest.mark.parametrize(("repeated", "known"), [(2, False), (3, True)])
def test_three_repeated_kernels_tell_the_noise(repeated: int, known: bool) -> None:
    again = np.array([1.0] * repeated + [np.nan] * (5 - repeated))
    assert np.isfinite(repeat_noise(np.zeros(5, int), np.ones(5), again)).tolist() == [known]
