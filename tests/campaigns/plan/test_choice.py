"""Kernels: each problem's share, the best for sure. Problems: the uncertain and the far ones first, within a budget."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.campaigns.plan import KernelChoice
from tilewise.campaigns.plan._choice import choose_kernels, order_problems, within_budget
from tilewise.campaigns.plan._committee import disagreement
from tilewise.errors import ConfigError


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    share=st.floats(0.05, 1.0),
    top=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_each_problem_gets_its_share_with_the_best_ranked_in_it(
    counts: list[int], share: float, top: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    problem = np.repeat(np.arange(len(counts)), counts)
    score = rng.normal(size=len(problem))
    chosen = choose_kernels(problem, score, KernelChoice(share, top), rng)
    for i, count in enumerate(counts):
        wanted = min(max(round(share * count), 2), count)
        assert chosen[problem == i].sum() == wanted
        best = np.argsort(-score[problem == i])[: int(np.ceil(top * wanted))]
        assert chosen[problem == i][best].all()


def test_the_rest_is_drawn_the_better_the_more_often() -> None:
    rng = np.random.default_rng(0)
    score, times = np.log([1.0, 0.9, 0.8, 0.4, 0.1]), np.zeros(5)
    for _ in range(400):
        times += choose_kernels(np.zeros(5, dtype=np.int64), score, KernelChoice(0.6, 1 / 3, 0.5), rng)
    assert times[0] == 400
    assert times[1] > times[2] > times[3] > times[4] > 0
    # without replacement, two of four in proportion to speed ** 2: the slowest is hardly ever among them
    assert times[4] < 20


def test_a_problem_with_few_kernels_gets_the_least() -> None:
    problem = np.repeat([0, 1, 2], [40, 12, 3])
    score = np.arange(len(problem), dtype=float)
    chosen = choose_kernels(problem, score, KernelChoice(0.3, least=6), np.random.default_rng(0))
    assert np.bincount(problem[chosen]).tolist() == [12, 6, 3]


@pytest.mark.parametrize("least", [1, 0, 2.5])
def test_one_kernel_alone_is_refused(least: float) -> None:
    with pytest.raises(ConfigError, match=r"plan\.least must be a whole number of at least 2"):
        KernelChoice(least=least)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [(0, 0.5, 0.2), (1.1, 0.5, 0.2), (0.2, -0.1, 0.2), (0.2, 0.5, 0)])
def test_a_choice_out_of_range_is_refused(values: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match=r"0 < plan.share <= 1"):
        KernelChoice(*values)


def test_disagreement_is_what_members_expect_to_lose_by_selecting_together() -> None:
    problem = np.array([0, 0, 1, 1])
    scores = np.array([[0.0, 0.3, 1.0, 0.0], [0.1, 0.0, 1.0, 0.5]])
    # problem 0: together the second (0.15 against 0.05), so the first member loses nothing, the second 0.1
    assert disagreement(problem, scores) == pytest.approx([0.05, 0.0])


KEYS = np.array([[16, 16], [16, 17], [256, 16], [1024, 1024]])
NOTHING = np.zeros((0, 2), dtype=np.int64)


def test_the_uncertain_come_first_and_their_neighbours_later() -> None:
    order = order_problems(KEYS, NOTHING, np.array([0.1, 0.09, 0.05, 0.02]), np.ones(4))
    assert order == [0, 2, 3, 1]


def test_near_to_what_was_measured_comes_last() -> None:
    order = order_problems(KEYS, np.array([[256, 16], [1024, 1023]]), np.full(4, 0.1), np.ones(4))
    assert order == [0, 1, 3, 2]


def test_a_second_should_promise_much() -> None:
    assert order_problems(KEYS[[0, 2, 3]], NOTHING, np.full(3, 0.1), np.array([3.0, 1.0, 2.0])) == [1, 2, 0]


@given(budget=st.floats(0.1, 40), seconds=st.lists(st.floats(0.1, 10), min_size=1, max_size=9))
def test_a_budget_is_kept_but_for_a_first_problem(budget: float, seconds: list[float]) -> None:
    order = list(range(len(seconds)))[::-1]
    chosen = within_budget(order, seconds.__getitem__, budget)
    assert chosen == order[: len(chosen)]
    assert len(chosen) == 1 or sum(seconds[i] for i in chosen) <= budget
    if len(chosen) < len(order):
        assert sum(seconds[i] for i in order[: len(chosen) + 1]) > budget
