"""Attribution of a difference in score to features: exact Shapley values of swapping them one by one.

Start from the other kernel's features and replace them by the winner's one at a time. The effect of a feature depends
on the features replaced before it, and its share is the mean over all orders. In a tree, a leaf counts for the winner's
features on the path to it and against the other's, so the shares follow without trying orders (interventional TreeSHAP
with one reference: Lundberg et al., From local explanations to global understanding with explainable AI for trees,
Nature Machine Intelligence 2, 2020). The shares add up to the difference of the scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import comb

import numpy as np

from tilewise.metrics import Floats
from tilewise.model._trees import Ensemble


def contributions(trees: Ensemble, winner: Floats, other: Floats) -> Floats:
    """Return the share of each feature in ``score(winner) - score(other)``.

    Args:
        trees: the trees that score.
        winner: (features,) features of the one kernel.
        other: (features,) features of the other kernel.

    Returns:
        (features,), 0 for features in which the kernels are equal.
    """
    shares = np.zeros(trees.n_features)
    feature, value = trees.feature.tolist(), trees.value.tolist()
    right_left = trees.children.reshape(-1, 2)
    nodes = np.arange(len(right_left))
    of_winner = right_left[nodes, trees.directions(winner).astype(int)].tolist()
    of_other = right_left[nodes, trees.directions(other).astype(int)].tolist()
    for root in trees.roots.tolist():
        waiting: list[tuple[int, int, int]] = [(root, 0, 0)]  # node, features taken from the winner, from the other
        while waiting:
            node, ours, theirs = waiting.pop()
            one, two, bit = of_winner[node], of_other[node], 1 << feature[node]
            if one == two == node:  # a leaf is its own child
                n, m = ours.bit_count(), theirs.bit_count()
                for f in _bits(ours):
                    shares[f] += value[node] * _weight(n - 1, m)
                for f in _bits(theirs):
                    shares[f] -= value[node] * _weight(n, m - 1)
            elif one == two or ours & bit:
                waiting.append((one, ours, theirs))
            elif theirs & bit:
                waiting.append((two, ours, theirs))
            else:
                waiting += [(one, ours | bit, theirs), (two, ours, theirs | bit)]
    return shares


@cache
def _weight(before: int, after: int) -> float:
    """Return the share of all orders in which exactly the given `before` features precede a feature, `after` follow."""
    return 1 / ((before + after + 1) * comb(before + after, before))


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
