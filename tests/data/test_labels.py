"""Labels combine several runs: neither a shift of a whole run nor a disturbed sample may decide."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic import CONV, measurements
from tilewise.data import DERIVED_COLUMNS, judge_runs, labelled, problem_index
from tilewise.ops import Target

OP = Target.parse(CONV).op
ONE = measurements(n_problems=2, n_kernels=5, seed=3, failures=0).query("is_valid").reset_index(drop=True)
EIGHT = measurements(n_problems=2, n_kernels=16, seed=3, failures=0).query("is_valid").reset_index(drop=True)
EIGHT = EIGHT.groupby(problem_index(EIGHT, OP)).head(8).reset_index(drop=True)
TIMES = ["latency_ms", "latency_p20_ms", "latency_p80_ms"]


def run(name: str, factor: object = 1.0, frame: pd.DataFrame = ONE) -> pd.DataFrame:
    """Return the rows of `frame` as another run, slower by `factor`."""
    slower = np.broadcast_to(np.asarray(factor, dtype=float), len(frame))
    changed = {n: frame[n] * slower for n in TIMES} | {n: frame[n] / slower for n in DERIVED_COLUMNS}
    return frame.assign(run_id=name, **changed)


def disturbed(*places: int, by: float = 2.0) -> np.ndarray:
    factor = np.ones(len(ONE))
    factor[list(places)] = by
    return factor


def together(*runs: pd.DataFrame) -> pd.DataFrame:
    return labelled(pd.concat(runs, ignore_index=True), OP)


def test_a_single_run_is_unchanged() -> None:
    pd.testing.assert_frame_equal(labelled(ONE, OP), ONE)
    assert not len(labelled(ONE.head(0), OP))


@pytest.mark.long
@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.5, 2.0)), min_size=1, max_size=5))
def test_of_a_kernel_that_a_run_lists_twice_the_first_row_counts(rows: list[tuple[str, float]]) -> None:
    """Whatever the later rows say: there is one label per problem and kernel, as if they were missing."""
    runs = [run(name, factor) for name, factor in rows]
    first = list({name: frame for (name, _), frame in reversed(list(zip(rows, runs, strict=True)))}.values())
    order = sorted(first, key=lambda frame: [f.equals(frame) for f in runs].index(True))
    found, expected = together(*runs), together(*order)
    assert not found.duplicated(["C", "Hi", "kernel_name"]).any()
    pd.testing.assert_frame_equal(found, expected)


def test_among_three_runs_a_disturbed_sample_does_not_count() -> None:
    found = together(run("a", disturbed(1)), run("b", disturbed(0, 3)), run("c"))
    assert found["latency_ms"].to_numpy() == pytest.approx(ONE["latency_ms"].to_numpy())
    assert found["run_id"].unique().tolist() == ["a"]


def test_two_runs_give_the_geometric_mean() -> None:
    found = together(run("a"), run("b", disturbed(2, by=4.0)))
    assert found["latency_ms"].to_numpy() == pytest.approx(ONE["latency_ms"].to_numpy() * disturbed(2))


@pytest.mark.long
@settings(max_examples=25)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=4), st.integers(0, 9))
def test_a_shift_of_a_whole_run_does_not_change_the_ranking(shifts: list[float], order: int) -> None:
    """For any clocks and order of rows, the ranking stays and the level is the median run's."""
    runs = [run(f"r{i}", shift) for i, shift in enumerate(shifts)]
    shuffled = pd.concat(runs, ignore_index=True).sample(frac=1, random_state=order)
    by = ["C", "Hi", "kernel_name"]
    found, one = (f.sort_values(by)["latency_ms"].to_numpy() for f in (labelled(shuffled, OP), ONE))
    assert found / one == pytest.approx(np.full(len(ONE), np.exp(np.median(np.log(shifts)))))


def test_times_and_rates_move_together() -> None:
    found = together(run("a"), run("b", disturbed(2, by=4.0)))
    for name in TIMES:
        assert (found[name] / ONE[name]).to_numpy() == pytest.approx(disturbed(2))
    for name in DERIVED_COLUMNS:
        assert (ONE[name] / found[name]).to_numpy() == pytest.approx(disturbed(2))


def test_kernels_of_every_run_are_kept() -> None:
    found = together(run("a").drop(index=[0]), run("b", 1.5))
    place = {n: ONE[n][0] for n in ("kernel_name", "C", "Hi")}
    row = found[np.logical_and.reduce([found[n] == value for n, value in place.items()])]
    assert len(found) == len(ONE)
    assert row["run_id"].tolist() == ["b"]
    assert row["latency_ms"].tolist() == pytest.approx([ONE["latency_ms"][0] * np.sqrt(1.5)])  # between both levels


def test_a_run_with_too_few_kernels_in_common_is_left_out() -> None:
    few = run("b", 3.0).groupby(problem_index(ONE, OP)).head(2)
    found = together(run("a"), few)
    pd.testing.assert_frame_equal(found[TIMES], run("a")[TIMES])


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(0.2, 5.0), min_size=2, max_size=2), st.permutations(range(3)))
def test_a_run_is_brought_to_the_level_by_way_of_another(shifts: list[float], order: list[int]) -> None:
    """Of eight kernels the first run has six, the second the last five, and the third the last three."""
    place = EIGHT.groupby(problem_index(EIGHT, OP)).cumcount()
    first, second, third = EIGHT[place < 6], EIGHT[place >= 3], EIGHT[place >= 5]
    runs = [run("a", frame=first), run("b", shifts[0], second), run("c", shifts[1], third)]
    by = ["C", "Hi", "kernel_name"]
    found, one = (f.sort_values(by)["latency_ms"].to_numpy() for f in (together(*(runs[i] for i in order)), EIGHT))
    assert found / one == pytest.approx(np.full(len(EIGHT), np.median([1.0, *shifts])))


def test_a_kernel_that_most_runs_refuse_is_invalid() -> None:
    wrong = run("b").assign(is_valid=[False, *[True] * (len(ONE) - 1)])
    assert together(run("a"), wrong)["is_valid"].all()
    found = together(run("a"), wrong, wrong.assign(run_id="c"))
    assert len(found) == len(ONE)
    assert found.loc[~found["is_valid"], "kernel_name"].tolist() == ONE["kernel_name"][:1].tolist()


def test_each_run_picks_and_the_others_judge() -> None:
    fastest = [rows["latency_ms"].idxmin() for _, rows in ONE.groupby(problem_index(ONE, OP))]
    second = [rows["latency_ms"].nsmallest(2) for _, rows in ONE.groupby(problem_index(ONE, OP))]
    judged = judge_runs(pd.concat([run("a", disturbed(*fastest, by=9.0)), run("b"), run("c"), run("d")]), OP)
    assert judged["same"].tolist() == [0.75, 0.75]
    assert judged["efficiency"].tolist() == pytest.approx([(3 + two.iloc[0] / two.iloc[1]) / 4 for two in second])
    assert not len(judge_runs(ONE, OP))


def test_without_a_second_run_the_judgement_is_an_empty_one() -> None:
    some, none = judge_runs(pd.concat([run("a"), run("b")]), OP), judge_runs(ONE, OP)
    assert not len(none)
    assert none.dtypes.to_dict() == some.dtypes.to_dict()
    assert none.index.name == some.index.name == "problem"


def test_a_run_that_has_only_unsupported_rows_left_takes_no_label_away() -> None:
    """So runs are left whose times were superseded: pairs that do not run were not measured again."""
    unsupported = pd.concat([ONE] * 3, ignore_index=True).assign(
        kernel_name=[f"another_{i}" for i in range(3 * len(ONE))], is_valid=False, run_id="a"
    )
    found = together(unsupported, run("b"))
    pd.testing.assert_frame_equal(
        found[found["is_valid"]].reset_index(drop=True), run("b").reset_index(drop=True), check_dtype=False
    )
