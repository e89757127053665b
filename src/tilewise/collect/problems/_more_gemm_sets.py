"""Set ``gemm-2``: kinds that ``gemm-1`` has too few of, without repeating its problems.

Half of the set have layouts other than rcr. Most problems are of the kinds that models ranked worst after training on
the first set: narrow products (M or N from 16 to 64), a K that tile_k does not divide, sizes that 8 divides but 16 does
not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tilewise.collect._plan import Item
from tilewise.collect.problems._draw import draw, log_uniform, shuffled, unique
from tilewise.collect.problems._gemm_sets import TOKENS, gemm_1, is_affordable, measurable
from tilewise.collect.problems._llm import projections
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, Problem

_SEED = 5  # of 60 seeds, the one whose validation problems (by the holdout rule) are most like the rest in every label


def gemm_2() -> tuple[Item, ...]:
    """Generate the set in its order."""
    first = {item.problem.group_key for item in gemm_1()}
    items = more_items(random.Random(f"gemm-2-{_SEED}"))
    return shuffled((i for i in unique(items) if i.problem.group_key not in first), "gemm-2-order")


def more_items(g: random.Random, times: int = 1) -> Iterator[Item]:
    """Yield problems of every kind of the set, `times` as many as set 2 has."""
    yield from llm_items(g, 90 * times)
    yield from narrow_items(g, 60 * times)
    yield from remainder_items(g, 45 * times)
    yield from wide_items(g, 65 * times)


def llm_items(g: random.Random, count: int) -> Iterator[Item]:
    """Yield projections at other numbers of tokens; every second is a gradient, of the input (rrr) or weights (crr)."""
    layers = list(projections())
    tokens = [m for line in TOKENS for m in line]

    def make(kind: int) -> Item:
        p, m = g.choice(layers), max(1, round(g.choice(tokens) * g.uniform(0.6, 1.6)))
        if kind == 1:
            return Item(GemmProblem(m, p.K, p.N, "rrr"), f"{p.origin}/dgrad")
        if kind == 3:
            return Item(GemmProblem(p.N, p.K, m, "crr"), f"{p.origin}/wgrad")
        return Item(GemmProblem(m, p.N, p.K), p.origin)

    drawn = 0
    while drawn < count:
        item = make(drawn % 4)
        if _keep(g, item.problem):
            drawn += 1
            yield item


def narrow_items(g: random.Random, count: int) -> Iterator[Item]:
    """Yield products with M or N from 16 to 64, at any K."""

    def make() -> GemmProblem:
        few, many = g.choice((16, 24, 32, 40, 48, 56, 64)), log_uniform(g, 128, 32768, 16)
        m, n = (few, many) if g.random() < 0.5 else (many, few)
        return GemmProblem(m, n, log_uniform(g, 64, 16384, g.choice((8, 16, 64))), _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "skinny/narrow")


def remainder_items(g: random.Random, count: int) -> Iterator[Item]:
    """Yield products whose K leaves a remainder in the last step of every tile; M and N mostly do as well."""

    def make() -> GemmProblem:
        k = log_uniform(g, 32, 8192, 32) + g.choice((8, 8, 16, 24))
        m, n = (log_uniform(g, 64, 8192, g.choice((1, 8, 16, 64))) for _ in range(2))
        return GemmProblem(m, n, k, _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "random/remainder")


def wide_items(g: random.Random, count: int) -> Iterator[Item]:
    """Yield products log-uniform in each size, in every layout."""

    def make() -> GemmProblem:
        multiple = g.choice((8, 16, 64, 128))
        m, n, k = (log_uniform(g, 64, 16384, multiple) for _ in range(3))
        return GemmProblem(m, n, k, _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "random/wide")


def _layout(g: random.Random) -> str:
    """Draw a layout other than rcr most of the time, as the first set is mostly rcr."""
    return g.choice((*GEMM_LAYOUTS, "rrr", "ccr"))


def _keep(g: random.Random, problem: Problem) -> bool:
    return isinstance(problem, GemmProblem) and measurable(problem) and is_affordable(problem, g)
