"""Helpers of the generators of every op: draw sizes, keep each problem once, shuffle."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from tilewise.collect._plan import Item
from tilewise.errors import ProblemError
from tilewise.ops import Problem


def log_uniform(generator: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """Draw a multiple of `multiple` between about `low` and `high`, log-uniformly."""
    drawn: float = low * (high / low) ** generator.random()
    return max(multiple, round(drawn / multiple) * multiple)


def draw(count: int, make: Callable[[], Problem], keep: Callable[[Problem], bool], origin: str) -> Iterator[Item]:
    """Yield `count` problems of `make` that are possible and satisfy `keep`; draw again for those that do not."""
    drawn = 0
    while drawn < count:
        try:
            problem = make()
        except ProblemError:
            continue  # e.g. a filter larger than its image
        if keep(problem):
            drawn += 1
            yield Item(problem, origin)


def unique(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return each problem once, with its first origin."""
    found: dict[Problem, Item] = {}
    for item in items:
        found.setdefault(item.problem, item)
    return tuple(found.values())


def shuffled(items: Iterable[Item], seed: str) -> tuple[Item, ...]:
    """Return `items` in an order drawn with `seed`, so that a run cut short is a sample of the whole."""
    listed = list(items)
    return tuple(random.Random(seed).sample(listed, len(listed)))
