"""What the generators of every op share: drawing sizes, and keeping each problem once."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator

from tilewise.collect.plan import Item
from tilewise.errors import ProblemError
from tilewise.ops import Problem


def log_uniform(generator: random.Random, low: int, high: int, multiple: int = 1) -> int:
    """A multiple of `multiple` between about `low` and `high`, each factor of two as likely as any other."""
    drawn: float = low * (high / low) ** generator.random()
    return max(multiple, round(drawn / multiple) * multiple)


def draw(count: int, make: Callable[[], Problem], keep: Callable[[Problem], bool], origin: str) -> Iterator[Item]:
    """`count` problems of `make` that are possible and that `keep` agrees to, drawing again for those that do not."""
    made = 0
    while made < count:
        try:
            problem = make()
        except ProblemError:
            continue  # e.g. a filter larger than its image
        if keep(problem):
            made += 1
            yield Item(problem, origin)


def unique(items: Iterable[Item]) -> tuple[Item, ...]:
    """Each problem once, with the first of its origins."""
    found: dict[Problem, Item] = {}
    for item in items:
        found.setdefault(item.problem, item)
    return tuple(found.values())


def mixed(items: Iterable[Item], seed: str) -> tuple[Item, ...]:
    """`items` in an order drawn with `seed`: a run cut short is a sample of the whole."""
    listed = list(items)
    return tuple(random.Random(seed).sample(listed, len(listed)))
