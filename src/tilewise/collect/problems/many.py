"""Sets ``grouped_conv-3`` and ``gemm-3``: many more problems of the kinds that the sets before have, none of theirs.

To learn from, by `tilewise plan`: each is measured with the few kernels that a model thinks best. What the holdout rule
sets apart in them is not measured; sets 1 and 2 validate.
"""

from __future__ import annotations

import random
from itertools import chain

from tilewise.collect.plan import Item
from tilewise.collect.problems import conv
from tilewise.collect.problems._draw import mixed, unique
from tilewise.collect.problems.conv_more import affordable, grouped_conv_2, network_items, synthetic_items
from tilewise.collect.problems.gemm import gemm_1
from tilewise.collect.problems.gemm_more import gemm_2, more_items

_SEED = "grouped_conv-3-{}-0"


def grouped_conv_3() -> tuple[Item, ...]:
    """The set, in its order."""
    before = {item.problem for item in (*conv.grouped_conv_1(), *grouped_conv_2())}
    g = random.Random(_SEED.format("costs"))
    as_in_1 = chain(conv.network_items(3, _SEED.format("batches")), conv.synthetic_items(1000, _SEED.format("random")))
    usual = (i for i in as_in_1 if affordable(i.problem, g))
    items = unique(chain(usual, network_items(before, _SEED, 5), synthetic_items(_SEED, 5)))
    return mixed((i for i in items if i.problem not in before), _SEED.format("order"))


def gemm_3() -> tuple[Item, ...]:
    """The set, in its order."""
    before = {item.problem.group_key for item in (*gemm_1(), *gemm_2())}
    items = unique(more_items(random.Random("gemm-3-0"), 10))
    return mixed((i for i in items if i.problem.group_key not in before), "gemm-3-order")
