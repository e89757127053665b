"""Sets 3 and 4: many more problems of the kinds that the sets before have, and none of theirs.

To learn from, by `tilewise plan`: each is measured with the few kernels that a model thinks best. What the holdout rule
sets apart in them is not measured; sets 1 and 2 validate.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import chain

from tilewise.collect.plan import Item
from tilewise.collect.problems import conv
from tilewise.collect.problems._draw import mixed, unique
from tilewise.collect.problems.conv_more import affordable, grouped_conv_2, network_items, synthetic_items
from tilewise.collect.problems.gemm import gemm_1
from tilewise.collect.problems.gemm_more import gemm_2, more_items


def grouped_conv_3() -> tuple[Item, ...]:
    """The set, in its order."""
    return _convs(3, (*conv.grouped_conv_1(), *grouped_conv_2()), 5)


def grouped_conv_4() -> tuple[Item, ...]:
    """The set, in its order."""
    return _convs(4, (*conv.grouped_conv_1(), *grouped_conv_2(), *grouped_conv_3()), 8)


def gemm_3() -> tuple[Item, ...]:
    """The set, in its order."""
    return _products(3, (*gemm_1(), *gemm_2()), 10)


def gemm_4() -> tuple[Item, ...]:
    """The set, in its order."""
    return _products(4, (*gemm_1(), *gemm_2(), *gemm_3()), 24)


def _convs(number: int, before: Sequence[Item], times: int) -> tuple[Item, ...]:
    seed, taken = f"grouped_conv-{number}-{{}}-0", {item.problem for item in before}
    g = random.Random(seed.format("costs"))
    as_in_1 = chain(conv.network_items(3, seed.format("batches")), conv.synthetic_items(1000, seed.format("random")))
    usual = (i for i in as_in_1 if affordable(i.problem, g))
    items = unique(chain(usual, network_items(taken, seed, times), synthetic_items(seed, times)))
    return mixed((i for i in items if i.problem not in taken), seed.format("order"))


def _products(number: int, before: Sequence[Item], times: int) -> tuple[Item, ...]:
    taken = {item.problem.group_key for item in before}
    items = unique(more_items(random.Random(f"gemm-{number}-0"), times))
    return mixed((i for i in items if i.problem.group_key not in taken), f"gemm-{number}-order")
