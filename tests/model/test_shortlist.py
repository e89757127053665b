"""The shortlist: the best kernels by the cost model rank before all others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.metrics import Floats, Ints
from tilewise.model import put_behind, shortlisted
from tilewise.model._shortlist import BEHIND


def drawn(counts: list[int], seed: int) -> tuple[Ints, Floats, Floats]:
    """Problems with so many rows each, estimated rates of which some tie, and scores."""
    rng, n = np.random.default_rng(seed), sum(counts)
    rates = np.round(rng.normal(size=n), 1)
    return np.repeat(np.arange(len(counts)), counts), rates, rates + rng.normal(size=n)


@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=5), most=st.integers(1, 40), seed=st.integers(0, 99))
def test_each_problem_has_its_shortlist_first_and_the_others_in_the_estimates_order(
    counts: list[int], most: int, seed: int
) -> None:
    problem, rates, scores = drawn(counts, seed)
    listed = shortlisted(problem, rates, most)
    final = put_behind(problem, rates, scores, listed)
    assert (final[listed] == scores[listed]).all()
    for number, count in enumerate(counts):
        own = problem == number
        assert listed[own].sum() == min(count, most)
        expected = np.argsort(-rates[own], kind="stable")[:most]
        assert sorted(np.flatnonzero(listed[own])) == sorted(expected)
        if count > most:
            first, others = own & listed, own & ~listed
            assert final[others].max() <= final[first].min() - BEHIND / 2
            by_rate = np.argsort(-rates[others], kind="stable")
            assert (np.diff(final[others][by_rate]) <= 0).all()


def test_the_gaps_of_the_others_are_the_estimates() -> None:
    rates, scores = np.array([3.0, 2.0, 1.5, 1.0]), np.array([0.1, 0.4, 9.0, 9.0])
    final = put_behind(np.zeros(4, dtype=np.int64), rates, scores, np.array([True, True, False, False]))
    assert final == pytest.approx([0.1, 0.4, 0.1 - 0.5 - BEHIND, 0.1 - 1.0 - BEHIND])


def test_nothing_is_ranked_among_no_rows() -> None:
    none = np.empty(0)
    assert put_behind(np.empty(0, dtype=np.int64), none, none, np.empty(0, dtype=bool)).size == 0
