"""The problem set of grouped convolution: which layers, batches and synthetic shapes are measured."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from tilewise.collect.plan import Item
from tilewise.collect.problems.networks import NETWORKS, with_batch
from tilewise.errors import ProblemError
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import input_elements, output_elements, weight_elements

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
MAX_FLOPS = 4e11  # most of a millisecond at the matrix units' usual rate; more costs time and teaches little
MAX_ELEMENTS = 2**30  # of one tensor: reference and operands must fit beside each other


def measurable(p: GroupedConvProblem) -> bool:
    """Whether a problem is small enough to be measured with every kernel of a pool."""
    return p.flops <= MAX_FLOPS and max(input_elements(p), weight_elements(p), output_elements(p)) <= MAX_ELEMENTS


def network_items(batches_a_layer: int, seed: int) -> Iterator[Item]:
    """Every network layer at `batches_a_layer` different batch sizes, drawn with `seed`."""
    generator = random.Random(f"networks-{seed}")
    for name, layers in NETWORKS.items():
        for layer in layers():
            for batch in sorted(generator.sample(BATCHES, batches_a_layer)):
                yield Item(with_batch(layer, batch), name)


def synthetic_items(count: int, seed: int) -> Iterator[Item]:
    """`count` random problems, log-uniform in each size, of five kinds in turn.

    dense: any filter; grouped: 2 to 64 groups; depthwise; pointwise; odd: sizes that no tile divides.
    """
    generator = random.Random(f"synthetic-{seed}")
    made = 0
    while made < count:
        kind = ("dense", "grouped", "depthwise", "pointwise", "odd")[made % 5]
        try:
            problem = _random(kind, generator)
        except ProblemError:
            continue  # e.g. a filter larger than its image: draw again
        if measurable(problem):
            made += 1
            yield Item(problem, f"synthetic_{kind}")


def problem_set(batches_a_layer: int, synthetic: int, seed: int) -> tuple[Item, ...]:
    """The networks' layers and the synthetic problems, each measurable one once, in an order drawn with `seed`.

    Mixed, so that a run cut short is a sample of the whole, and its rate so far tells how long the rest will take.
    """
    items = _unique(
        i for items in (network_items(batches_a_layer, seed), synthetic_items(synthetic, seed)) for i in items
    )
    return tuple(random.Random(f"order-{seed}").sample(items, len(items)))


def _unique(items: Iterable[Item]) -> tuple[Item, ...]:
    found: dict[GroupedConvProblem, Item] = {}
    for item in items:
        assert isinstance(item.problem, GroupedConvProblem)
        if measurable(item.problem):
            found.setdefault(item.problem, item)
    return tuple(found.values())


def _log_uniform(generator: random.Random, low: int, high: int, multiple: int = 1) -> int:
    drawn: float = low * (high / low) ** generator.random()
    return max(multiple, round(drawn / multiple) * multiple)


def _random(kind: str, g: random.Random) -> GroupedConvProblem:
    size = _log_uniform(g, 4, 256)
    width = size if g.random() < 0.7 else _log_uniform(g, 4, 256)
    batch = _log_uniform(g, 1, 128)
    filt = g.choice((1, 2, 3, 3, 3, 5, 7))
    stride = g.choice((1, 1, 1, 2))
    dilation = g.choice((1, 1, 1, 1, 1, 2, 3)) if stride == 1 else 1
    groups = 1
    c, k = (_log_uniform(g, 8, 2048, 8) for _ in range(2))
    if kind == "grouped":
        groups = g.choice((2, 4, 8, 16, 32, 64))
        c, k = (groups * _log_uniform(g, 4, 256, 4) for _ in range(2))
    elif kind == "depthwise":
        groups = c
        k = c * g.choice((1, 1, 1, 1, 2))
        filt = g.choice((3, 3, 5, 7, 9))
    elif kind == "pointwise":
        filt, dilation = 1, 1
    elif kind == "odd":
        c, k = (_log_uniform(g, 1, 700) for _ in range(2))
    pad = dilation * (filt - 1) // 2 if g.random() < 0.85 else g.choice((0, 1))
    return GroupedConvProblem(
        batch, c, k, groups, size, width, filt, filt, stride, stride, pad, pad, dilation, dilation
    )  # fmt: skip
