"""Layers are computed in the ways by which a pass, the longer of the host's and the GPU's work, becomes shortest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tilewise.torch.decision._launch_budget import Work, shortest_pass

PYTORCH = Work(gpu=2, host=4)
CHEAP = Work(gpu=1, host=3)
DEAR = Work(gpu=0.5, host=9)  # for the host
NOTHING = Work(0, 0)
BUSY_GPU, BUSY_HOST = [Work(90, 1)], [Work(1, 90)]

times = st.floats(0.001, 10)
networks = st.dictionaries(
    st.integers(0, 99).map(str), st.lists(st.builds(Work, times, times), min_size=1, max_size=3), min_size=1
)


def pass_ms(ways: Mapping[str, Sequence[Work]], chosen: Mapping[str, int], rest: Work) -> float:
    works = [ways[name][index] for name, index in chosen.items()]
    return max(rest.gpu + sum(w.gpu for w in works), rest.host + sum(w.host for w in works))


def test_what_spares_both_is_taken_whoever_is_the_longer_part() -> None:
    for other in (BUSY_GPU, BUSY_HOST):
        assert shortest_pass({"a": [PYTORCH, CHEAP], "b": other}, NOTHING)["a"] == 1


def test_a_dear_launch_pays_only_where_the_gpu_has_more_to_do() -> None:
    assert shortest_pass({"a": [PYTORCH, DEAR], "b": BUSY_GPU}, NOTHING)["a"] == 1
    assert shortest_pass({"a": [PYTORCH, DEAR], "b": BUSY_HOST}, NOTHING)["a"] == 0


def test_of_two_kernels_the_longer_part_takes_the_one_that_spares_it() -> None:
    assert shortest_pass({"a": [PYTORCH, DEAR, CHEAP], "b": BUSY_GPU}, NOTHING)["a"] == 1
    assert shortest_pass({"a": [PYTORCH, DEAR, CHEAP], "b": BUSY_HOST}, NOTHING)["a"] == 2


def test_other_work_counts() -> None:
    ways = {"a": [Work(20, 4), DEAR]}
    assert shortest_pass(ways, NOTHING)["a"] == 1
    assert shortest_pass(ways, Work(gpu=0, host=20))["a"] == 0
    assert shortest_pass(ways, Work(gpu=20, host=20))["a"] == 1


def test_only_as_many_as_the_host_has_time_for() -> None:
    ways = {str(i): [Work(3, 2), Work(1, 3.45)] for i in range(9)} | {"rest": [Work(0.001, 6)]}
    assert sum(shortest_pass(ways, NOTHING).values()) == 1  # the GPU has 27 ms, the host 24, and 1.45 more for each


def test_a_host_that_may_take_longer_than_predicted_has_time_for_less() -> None:
    ways = {"a": [PYTORCH, DEAR], "b": [Work(10, 1)]}
    assert shortest_pass(ways, NOTHING)["a"] == 1
    assert shortest_pass(ways, NOTHING, host_margin=2.0)["a"] == 0
    assert shortest_pass({"a": [PYTORCH, CHEAP], "b": [Work(10, 1)]}, NOTHING, host_margin=2.0)["a"] == 1


@given(networks, st.builds(Work, times, times), st.randoms())
def test_a_pass_never_becomes_longer_and_the_order_of_layers_does_not_matter(
    ways: dict[str, list[Work]], rest: Work, random: object
) -> None:
    chosen = shortest_pass(ways, rest)
    assert all(0 <= index < len(ways[name]) for name, index in chosen.items())
    assert pass_ms(ways, chosen, rest) <= pass_ms(ways, dict.fromkeys(ways, 0), rest) * 1.002
    names = list(ways)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert shortest_pass({name: ways[name] for name in names}, rest) == chosen
