"""The problems that are measured: layers of real networks, and synthetic ones that fill the space between them."""

from __future__ import annotations

from collections.abc import Callable

from tilewise.collect.plan import Item
from tilewise.collect.problems.conv import problem_set as _conv

# op -> (batches a network layer, synthetic problems, seed) -> the problems
PROBLEM_SETS: dict[str, Callable[[int, int, int], tuple[Item, ...]]] = {"grouped_conv": _conv}
