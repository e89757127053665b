"""Set ``gemm-2``: what ``gemm-1`` has too little of, and nothing that it has.

Half of it are layouts other than rcr. Mostly what models ranked worst after training on the first set: narrow products
(M or N from 16 to 64), a K that is no multiple of the tiles' depth, sizes that divide by 8 but not by 16.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tilewise.collect.plan import Item
from tilewise.collect.problems._draw import draw, log_uniform, mixed, unique
from tilewise.collect.problems.gemm import TOKENS, gemm_1, kept, measurable
from tilewise.collect.problems.llm import projections
from tilewise.ops import GemmProblem, Problem
from tilewise.ops.gemm import LAYOUTS

_SEED = 5  # of 60, the one whose validation problems, by the holdout rule, are most like the rest in every label


def gemm_2() -> tuple[Item, ...]:
    """The set, in its order."""
    first = {item.problem.group_key for item in gemm_1()}
    items = more_items(random.Random(f"gemm-2-{_SEED}"))
    return mixed((i for i in unique(items) if i.problem.group_key not in first), "gemm-2-order")


def more_items(g: random.Random, times: int = 1) -> Iterator[Item]:
    """Problems of every kind that the set is about, `times` as many as it has."""
    yield from llm_items(g, 90 * times)
    yield from narrow_items(g, 60 * times)
    yield from remainder_items(g, 45 * times)
    yield from wide_items(g, 65 * times)


def llm_items(g: random.Random, count: int) -> Iterator[Item]:
    """Projections at other numbers of tokens; every second one a gradient, for the input (rrr) or the weights (crr)."""
    layers = list(projections())
    tokens = [m for line in TOKENS for m in line]

    def make(kind: int) -> Item:
        p, m = g.choice(layers), max(1, round(g.choice(tokens) * g.uniform(0.6, 1.6)))
        if kind == 1:
            return Item(GemmProblem(m, p.K, p.N, "rrr"), f"{p.origin}/dgrad")
        if kind == 3:
            return Item(GemmProblem(p.N, p.K, m, "crr"), f"{p.origin}/wgrad")
        return Item(GemmProblem(m, p.N, p.K), p.origin)

    made = 0
    while made < count:
        item = make(made % 4)
        if _keep(g, item.problem):
            made += 1
            yield item


def narrow_items(g: random.Random, count: int) -> Iterator[Item]:
    """M or N from 16 to 64, at any K."""

    def make() -> GemmProblem:
        few, many = g.choice((16, 24, 32, 40, 48, 56, 64)), log_uniform(g, 128, 32768, 16)
        m, n = (few, many) if g.random() < 0.5 else (many, few)
        return GemmProblem(m, n, log_uniform(g, 64, 16384, g.choice((8, 16, 64))), _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "skinny/narrow")


def remainder_items(g: random.Random, count: int) -> Iterator[Item]:
    """K leaves a remainder in the last step of every tile; M and N mostly do as well."""

    def make() -> GemmProblem:
        k = log_uniform(g, 32, 8192, 32) + g.choice((8, 8, 16, 24))
        m, n = (log_uniform(g, 64, 8192, g.choice((1, 8, 16, 64))) for _ in range(2))
        return GemmProblem(m, n, k, _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "random/remainder")


def wide_items(g: random.Random, count: int) -> Iterator[Item]:
    """Log-uniform in each size, in every layout."""

    def make() -> GemmProblem:
        multiple = g.choice((8, 16, 64, 128))
        m, n, k = (log_uniform(g, 64, 16384, multiple) for _ in range(3))
        return GemmProblem(m, n, k, _layout(g))

    yield from draw(count, make, lambda p: _keep(g, p), "random/wide")


def _layout(g: random.Random) -> str:
    """One in three is rcr, as the first set is mostly that."""
    return g.choice((*LAYOUTS, "rrr", "ccr"))


def _keep(g: random.Random, problem: Problem) -> bool:
    return isinstance(problem, GemmProblem) and measurable(problem) and kept(problem, g)
