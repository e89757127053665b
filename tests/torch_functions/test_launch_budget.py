"""Layers are replaced only as far as a pass, the longer of the host's and the GPU's work, becomes shorter."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from tilewise.torch._launch_budget import Work, worth_launching

CHEAP = Work(pytorch_gpu=2, pytorch_host=4, kernel_gpu=1, kernel_host=3)  # for both
DEAR = Work(pytorch_gpu=3, pytorch_host=2, kernel_gpu=1, kernel_host=3)  # for the host
NOT_FASTER = Work(pytorch_gpu=1, pytorch_host=1, kernel_gpu=1, kernel_host=1)

times = st.floats(0.001, 10)
networks = st.dictionaries(st.integers(0, 99).map(str), st.builds(Work, times, times, times, times), min_size=1)


def pass_ms(works: dict[str, Work], replaced: Collection[str]) -> float:
    gpu = sum(w.kernel_gpu if n in replaced else w.pytorch_gpu for n, w in works.items())
    return max(gpu, sum(w.pytorch_host + (w.more_host if n in replaced else 0) for n, w in works.items()))


def test_what_costs_nothing_more_is_replaced_whoever_is_the_longer_part() -> None:
    for other in (Work(90, 1, 90, 1), Work(1, 90, 1, 90)):
        assert worth_launching({"a": CHEAP, "b": other}, {"a"}) == {"a"}


def test_a_dear_launch_pays_only_where_the_gpu_has_more_to_do() -> None:
    assert worth_launching({"a": DEAR, "b": Work(90, 1, 90, 1)}, {"a"}) == {"a"}
    assert worth_launching({"a": DEAR, "b": Work(1, 90, 1, 90)}, {"a"}) == set()


def test_only_as_many_as_the_host_has_time_for() -> None:
    works = {str(i): DEAR for i in range(9)} | {"rest": Work(0.001, 6, 0.001, 6)}
    chosen = worth_launching(works, set(works) - {"rest"})  # the GPU has 27 ms, the host 24, and 1.45 more for each
    assert chosen == {"0"}


def test_layers_that_are_not_faster_stay() -> None:
    assert worth_launching({"a": CHEAP, "b": NOT_FASTER}, {"a"}) == {"a"}


def test_a_host_cost_counts_for_more_than_was_measured() -> None:
    near = CHEAP._replace(kernel_host=3.6)
    assert worth_launching({"a": near, "b": Work(1, 90, 1, 90)}, {"a"}) == set()


@given(networks, st.randoms())
def test_a_pass_never_becomes_longer_and_the_order_of_layers_does_not_matter(
    works: dict[str, Work], random: object
) -> None:
    faster = {name for name, work in works.items() if work.less_gpu > 0}
    chosen = worth_launching(works, faster)
    assert chosen <= faster
    assert pass_ms(works, chosen) <= pass_ms(works, ()) * (1 + 1e-9)
    names = list(works)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert worth_launching({name: works[name] for name in names}, faster) == chosen
