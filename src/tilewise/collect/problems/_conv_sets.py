"""Set ``grouped_conv-1``: layers of 25 networks at two batch sizes each, and 700 random problems of five kinds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import chain

from tilewise.collect._plan import Item
from tilewise.collect.problems._draw import draw, log_uniform, shuffled, unique
from tilewise.collect.problems._networks import NETWORKS, with_batch
from tilewise.ops import GroupedConvProblem, Problem, input_elements, output_elements, weight_elements

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_FLOPS = 4e11  # most of a millisecond at the matrix units' usual rate; larger problems teach little for their cost
MAX_ELEMENTS = 2**30  # of one tensor, so that reference and operands fit beside each other


def measurable(p: Problem) -> bool:
    """Return whether a convolution is small enough to measure with every kernel of a pool."""
    return p.flops <= MAX_FLOPS and max(input_elements(p), weight_elements(p), output_elements(p)) <= MAX_ELEMENTS


def grouped_conv_1() -> tuple[Item, ...]:
    """Generate the set in its order."""
    items = unique(
        i for i in chain(network_items(2, "networks-0"), synthetic_items(700, "synthetic-0")) if measurable(i.problem)
    )
    return shuffled(items, "order-0")


def network_items(batches: int, seed: str) -> Iterator[Item]:
    """Yield every network layer at `batches` different batch sizes."""
    g = random.Random(seed)
    for name, layers in NETWORKS.items():
        for layer in layers():
            for batch in sorted(g.sample(BATCHES, batches)):
                yield Item(with_batch(layer, batch), name)


def synthetic_items(count: int, seed: str) -> Iterator[Item]:
    """Yield random problems, log-uniform in each size, of five kinds in turn.

    The kinds are dense (any filter), grouped (2 to 64 groups), depthwise, pointwise, and odd (sizes that no tile
    divides).
    """
    g = random.Random(seed)
    kinds = ("dense", "grouped", "depthwise", "pointwise", "odd")
    for i in range(count):
        kind = kinds[i % len(kinds)]
        yield from draw(1, partial(_random_problem, kind, g), measurable, f"synthetic_{kind}")


def _random_problem(kind: str, g: random.Random) -> GroupedConvProblem:
    size = log_uniform(g, 4, 256)
    width = size if g.random() < 0.7 else log_uniform(g, 4, 256)
    batch = log_uniform(g, 1, 128)
    filt = g.choice((1, 2, 3, 3, 3, 5, 7))
    stride = g.choice((1, 1, 1, 2))
    dilation = g.choice((1, 1, 1, 1, 1, 2, 3)) if stride == 1 else 1
    groups = 1
    c, k = (log_uniform(g, 8, 2048, 8) for _ in range(2))
    if kind == "grouped":
        groups = g.choice((2, 4, 8, 16, 32, 64))
        c, k = (groups * log_uniform(g, 4, 256, 4) for _ in range(2))
    elif kind == "depthwise":
        groups = c
        k = c * g.choice((1, 1, 1, 1, 2))
        filt = g.choice((3, 3, 5, 7, 9))
    elif kind == "pointwise":
        filt, dilation = 1, 1
    elif kind == "odd":
        c, k = (log_uniform(g, 1, 700) for _ in range(2))
    pad = dilation * (filt - 1) // 2 if g.random() < 0.85 else g.choice((0, 1))
    return GroupedConvProblem(
        batch, c, k, groups, size, width, filt, filt, stride, stride, pad, pad, dilation, dilation
    )  # fmt: skip
