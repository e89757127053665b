"""Sets 3 to 6: many more problems of the kinds of the earlier sets, without repeating any.

They are for training: `tilewise plan` measures each problem with the few kernels that a model ranks highest. Problems
that the holdout rule sets apart are not measured; sets 1 and 2 serve validation.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from tilewise.collect._plan import Item
from tilewise.collect.problems import _conv_sets as conv
from tilewise.collect.problems import _gemm_sets as gemm
from tilewise.collect.problems._draw import log_uniform, shuffled, unique
from tilewise.collect.problems._edges import EDGE_SIZES
from tilewise.collect.problems._more_conv_sets import (
    affordable,
    grouped_conv_2,
    network_items,
    synthetic_items,
    weak_items,
)
from tilewise.collect.problems._more_gemm_sets import gemm_2, more_items
from tilewise.ops import GemmProblem


def grouped_conv_3() -> tuple[Item, ...]:
    """Generate the set in its order."""
    return _convs(3, (*conv.grouped_conv_1(), *grouped_conv_2()), 5)


def grouped_conv_4() -> tuple[Item, ...]:
    """Generate the set in its order."""
    return _convs(4, (*conv.grouped_conv_1(), *grouped_conv_2(), *grouped_conv_3()), 8)


def grouped_conv_5() -> tuple[Item, ...]:
    """Generate the set in its order: only the kinds that models ranked worst after set 4."""
    return _weak(5, (*conv.grouped_conv_1(), *grouped_conv_2(), *grouped_conv_3(), *grouped_conv_4()))


def grouped_conv_6() -> tuple[Item, ...]:
    """Generate the set in its order: the kinds of set 5 once more."""
    before = (*conv.grouped_conv_1(), *grouped_conv_2(), *grouped_conv_3(), *grouped_conv_4(), *grouped_conv_5())
    return _weak(6, before)


def gemm_3() -> tuple[Item, ...]:
    """Generate the set in its order."""
    return _products(3, (*gemm.gemm_1(), *gemm_2()), 10)


def gemm_4() -> tuple[Item, ...]:
    """Generate the set in its order."""
    return _products(4, (*gemm.gemm_1(), *gemm_2(), *gemm_3()), 24)


def gemm_5() -> tuple[Item, ...]:
    """Generate the set in its order: kinds that only set 1 has."""
    seed, before = "gemm-5-{}-0", (*gemm.gemm_1(), *gemm_2(), *gemm_3(), *gemm_4())
    return _new_items(_as_in_gemm_1(seed, 1), before, seed)


def gemm_6() -> tuple[Item, ...]:
    """Generate the set in its order: three times the kinds of set 5 and eight times those of set 2."""
    seed, before = "gemm-6-{}-0", (*gemm.gemm_1(), *gemm_2(), *gemm_3(), *gemm_4(), *gemm_5())
    as_in_2 = more_items(random.Random(seed.format("more")), 8)
    return _new_items(chain(_as_in_gemm_1(seed, 3), as_in_2), before, seed)


def _as_in_gemm_1(seed: str, times: int) -> Iterator[Item]:
    g = random.Random(seed.format("sizes"))
    layers = chain.from_iterable(gemm.llm_items(seed.format(f"{{}}-{again}")) for again in range(14 * times))
    squares = gemm.square_items(log_uniform(g, 96, 8192, g.choice((8, 32, 64, 128))) for _ in range(400 * times))
    skinny, others = gemm.skinny_items(1100 * times, seed), gemm.random_items(800 * times, seed)
    plain = unique(chain(squares, skinny, others))
    edges = edge_products(g, 900 * times)
    backward = gemm.llm_backward_items(450, seed)  # few more exist for these projections and tokens
    return chain(layers, plain, edges, backward, gemm.other_layouts(plain, 700 * times, seed))


def edge_products(g: random.Random, count: int) -> Iterator[Item]:
    """Yield random products like the edges of set 1: one edge size between even ones, or three edge sizes.

    Edge sizes include the neighbours of powers of two.
    """
    beside = [size + off for size in (32, 64, 128, 256, 512, 1024, 2048, 4096) for off in (-3, -1, 1, 4)]
    edge, even = (*EDGE_SIZES, *beside), (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096)
    for i in range(count):
        m, n, k = (g.choice(edge if i % 4 in (place, 3) else even) for place in range(3))
        yield Item(GemmProblem(m, n, k), "edge")


def _convs(number: int, before: Sequence[Item], times: int) -> tuple[Item, ...]:
    seed, taken = f"grouped_conv-{number}-{{}}-0", {item.problem for item in before}
    g = random.Random(seed.format("costs"))
    as_in_1 = chain(conv.network_items(3, seed.format("batches")), conv.synthetic_items(1000, seed.format("random")))
    usual = (i for i in as_in_1 if affordable(i.problem, g))
    items = chain(usual, network_items(taken, seed, times), synthetic_items(seed, times))
    return _new_items(items, before, seed)


def _weak(number: int, before: Sequence[Item]) -> tuple[Item, ...]:
    seed = f"grouped_conv-{number}-{{}}-0"
    return _new_items(weak_items(seed), before, seed)


def _products(number: int, before: Sequence[Item], times: int) -> tuple[Item, ...]:
    items = more_items(random.Random(f"gemm-{number}-0"), times)
    return _new_items(items, before, f"gemm-{number}-{{}}")


def _new_items(items: Iterable[Item], before: Iterable[Item], seed: str) -> tuple[Item, ...]:
    """Return each of `items` once, in an order drawn with `seed`, without the shapes of `before`."""
    taken = {item.problem.group_key for item in before}
    return shuffled((i for i in unique(items) if i.problem.group_key not in taken), seed.format("order"))
