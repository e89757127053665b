"""Set ``grouped_conv-2``: kinds that ``grouped_conv-1`` has too few of, without repeating its problems.

Most of its problems are of the kinds that models ranked worst after training on the first set: aligned 1x1s, groups
whose width 8 does not divide, depthwise. The others are dense and strided filters, 3D, and both ends of the scale. Half
of the set are layers of real networks, at batches and image sizes that the first set does not have.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain

from tilewise.collect._plan import Item
from tilewise.collect.problems._conv_sets import grouped_conv_1, measurable
from tilewise.collect.problems._draw import draw, log_uniform, shuffled, unique
from tilewise.collect.problems._edges import edge_convs
from tilewise.collect.problems._networks import LATER_NETWORKS, NETWORKS, with_batch
from tilewise.collect.problems._video_networks import VIDEO_NETWORKS
from tilewise.ops import GroupedConvProblem, Problem

# Of 60 seeds, the one whose validation problems (by the holdout rule) are most like the rest in every label.
_SEED = "grouped_conv-2-{}-17"
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
IMAGES = (160, 192, 224, 256, 288, 320, 384)  # pixels per side
USUAL_FLOPS = 1e10  # above this, a drawn problem is kept with a probability that falls with its cost
TINY_FLOPS, HUGE_FLOPS = 1e7, 1e11

# Networks for images of 224 x 224: the sides of their maps are multiples of 7, so that all IMAGES give whole maps.
_SCALABLE = (
    "resnet18", "resnet50", "wide_resnet50", "resnext50", "resnext101_32x8d", "vgg16", "mobilenet_v1", "mobilenet_v2",
    "mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "convnext_base", "densenet121", "regnet_y_8gf",
)  # fmt: skip
# Number of layers of each kind to take from them.
_NETWORK_QUOTAS = {"pointwise": 150, "grouped": 60, "depthwise": 55, "dense": 50, "strided": 45}
_Maker = Callable[..., GroupedConvProblem]  # takes a generator and the largest number of channels


def grouped_conv_2() -> tuple[Item, ...]:
    """Generate the set in its order."""
    first = {item.problem for item in grouped_conv_1()}
    items = chain(network_items(first, _SEED), video_items(48, _SEED), synthetic_items(_SEED), edge_items())
    return shuffled(
        (i for i in unique(items) if measurable(i.problem) and i.problem not in first), "grouped_conv-2-order"
    )


def network_items(taken: Iterable[Problem], seed: str, times: int = 1) -> Iterator[Item]:
    """Yield layers of image networks at batches and image sizes that `taken` lacks; 1x1s have aligned channels.

    Args:
        taken: problems to leave out.
        seed: has, here and below, a ``{}`` for the name of the draw.
        times: as a multiple of the numbers of set 2.
    """
    g = random.Random(seed.format("networks"))
    taken = set(taken)
    networks = {name: NETWORKS[name] for name in _SCALABLE} | LATER_NETWORKS
    layers = unique(Item(layer, name) for name, make in networks.items() for layer in make())
    for kind, base_quota in _NETWORK_QUOTAS.items():
        of_kind = [item for item in layers if _kind(item.problem) == kind]
        quota, found = base_quota * times, dict[Problem, Item]()
        while len(found) < quota:
            # Take each layer in turn, so that none comes twice before all came once.
            for item in g.sample(of_kind, len(of_kind)):
                image = g.choice(IMAGES)
                problem = with_batch(_at_image(item.problem, image), g.choice(BATCHES))
                if len(found) < quota and problem not in taken and affordable(problem, g):
                    found.setdefault(problem, Item(problem, item.origin if image == 224 else f"{item.origin}@{image}"))
        yield from found.values()


def video_items(count: int, seed: str) -> Iterator[Item]:
    """Yield 3D layers, each at one batch, every second of them strided or grouped."""
    g = random.Random(seed.format("video"))
    layers = unique(Item(layer, name) for name, make in VIDEO_NETWORKS.items() for layer in make())
    deep = [i for i in layers if isinstance(i.problem, GroupedConvProblem) and i.problem.ndim == 3]
    special = [i for i in deep if _kind(i.problem) not in ("dense", "pointwise")]
    plain = [i for i in deep if _kind(i.problem) in ("dense", "pointwise")]
    few = min(len(special), count // 2)
    for item in (*g.sample(special, few), *g.sample(plain, count - few)):
        fitting = [p for p in (with_batch(_conv(item.problem), n) for n in BATCHES) if p.flops <= 10 * USUAL_FLOPS]
        yield Item(g.choice(fitting), item.origin)


def synthetic_items(seed: str, times: int = 1) -> Iterator[Item]:
    """Yield random problems of every kind of the set, `times` as many as set 2 has."""
    g = random.Random(seed.format("synthetic"))
    kinds: tuple[tuple[str, int, _Maker], ...] = (
        ("pointwise", 130, _pointwise),
        ("narrow_groups", 75, _narrow_groups),
        ("wide_groups", 45, _wide_groups),
        ("depthwise", 75, _depthwise),
        ("dense", 40, _dense),
        ("strided", 35, _strided),
        ("3d", 15, _volume),
    )
    yield from _of_kinds(g, kinds, times)
    makers: tuple[_Maker, ...] = (_pointwise, _narrow_groups, _depthwise, _dense, _wide_groups, _strided, _volume)
    tiny, huge = (lambda p: p.flops < TINY_FLOPS), (lambda p: measurable(p) and p.flops > HUGE_FLOPS)
    for make in makers:
        yield from draw(6 * times, partial(make, g, most=64), tiny, "synthetic_tiny")
    for make in (_pointwise, _dense, _wide_groups, _strided):
        yield from draw(6 * times, partial(make, g), huge, "synthetic_huge")


def weak_items(seed: str) -> Iterator[Item]:
    """Yield random problems of the kinds that models ranked worst after set 4, mostly kinds that set 4 lacks."""
    g = random.Random(seed.format("weak"))
    kinds: tuple[tuple[str, int, _Maker], ...] = (
        ("thin", 1300, _thin),
        ("multiplied", 1300, _multiplied),
        ("narrow_groups", 700, _narrow_groups),
        ("wide_groups", 500, _wide_groups),
        ("strided", 300, _strided),
        ("3d", 150, _volume),
    )
    yield from _of_kinds(g, kinds)


def _of_kinds(g: random.Random, kinds: Iterable[tuple[str, int, _Maker]], times: int = 1) -> Iterator[Item]:
    """Yield `times` the given number of affordable problems of each kind."""
    for name, count, make in kinds:
        yield from draw(count * times, partial(make, g), lambda p: affordable(p, g), f"synthetic_{name}")


def edge_items() -> Iterator[Item]:
    """Yield the problems of :func:`edge_convs` as items."""
    for problem in edge_convs():
        yield Item(problem, "edge")


def _conv(problem: Problem) -> GroupedConvProblem:
    assert isinstance(problem, GroupedConvProblem)
    return problem


def _kind(problem: Problem) -> str | None:
    """Return the quota that a layer counts against, or None for a 1x1 with unaligned channels or of one pixel."""
    p = _conv(problem)
    if p.G == p.C > 1:
        return "depthwise"
    if p.G > 1:
        return "grouped"
    if max(p.stride_d, p.stride_h) > 1:
        return "strided"
    if p.Z * p.Y * p.X > 1:
        return "dense"
    return "pointwise" if p.C % 8 == 0 and p.K % 8 == 0 and p.Hi > 1 else None


def _at_image(problem: Problem, image: int) -> GroupedConvProblem:
    """Return the layer for an image of `image` pixels per side instead of 224."""
    p = _conv(problem)
    size = p.Hi * image // 224
    return p if p.Hi == 1 else dataclasses.replace(p, Hi=size, Wi=size)


def affordable(p: Problem, g: random.Random) -> bool:
    """Draw whether to keep a problem: it must be measurable, and costly ones are kept less often."""
    return measurable(p) and g.random() * p.flops <= USUAL_FLOPS


# --- one random problem of each kind ----------------------------------------------------------------------------------


def _image(g: random.Random, most: int = 256) -> tuple[int, int, int]:
    """Draw batch, height and width."""
    size = log_uniform(g, 4, most)
    return log_uniform(g, 1, min(most, 128)), size, size if g.random() < 0.7 else log_uniform(g, 4, most)


def _square(
    g: random.Random, image: tuple[int, int, int], channels: tuple[int, int, int], filt: int, stride: int = 1
) -> GroupedConvProblem:
    """Draw a problem with a square filter, padded to keep the size nine times in ten.

    Args:
        g: the generator.
        image: batch, height and width.
        channels: input channels, output channels and groups.
        filt: side of the filter.
        stride: along both axes.
    """
    (n, height, width), (c, k, groups) = image, channels
    pad = (filt - 1) // 2 if g.random() < 0.9 else 0
    return GroupedConvProblem(n, c, k, groups, height, width, filt, filt, stride, stride, pad, pad)


def _pointwise(g: random.Random, most: int = 2048) -> GroupedConvProblem:
    """Draw a 1x1 whose channels expand, shrink or stay: multiples of 8, mostly of 16 or 32."""
    c = log_uniform(g, 16, most, g.choice((8, 16, 32)))
    factor = g.choice((0.125, 0.25, 0.5, 1, 1, 2, 4, 6, None))
    k = log_uniform(g, 8, most, 8) if factor is None else max(8, int(c * factor) // 8 * 8)
    return _square(g, _image(g), (c, k, 1), 1)


def _narrow_groups(g: random.Random, most: int = 1024) -> GroupedConvProblem:
    """Draw groups whose input width, output width or both are not multiples of 8."""
    groups = g.choice([n for n in (2, 3, 4, 6, 8, 16, 24, 32, 64) if n <= most // 4])
    widest = max(8, most // groups)
    c, k = (log_uniform(g, 1, widest) for _ in range(2))
    if c % 8 == 0:
        k += k % 8 == 0
    elif g.random() < 0.5:
        k = c
    return _square(g, _image(g), (groups * c, groups * k, groups), g.choice((1, 1, 3, 3, 3, 5)), g.choice((1, 1, 1, 2)))


def _wide_groups(g: random.Random, most: int = 4096) -> GroupedConvProblem:
    """Draw mostly 2, 4 or 8 groups, whose input and output widths are multiples of 8 drawn separately."""
    groups = g.choice((2, 2, 4, 4, 8, 8, 16, 32))
    c, k = (log_uniform(g, 8, max(16, min(512, most // groups)), 8) for _ in range(2))
    return _square(g, _image(g), (groups * c, groups * k, groups), g.choice((1, 3, 3, 3, 5)), g.choice((1, 1, 1, 2)))


def _depthwise(g: random.Random, most: int = 2048) -> GroupedConvProblem:
    """Draw one input channel per group with one to four output channels."""
    c = log_uniform(g, 4, most, g.choice((1, 4, 8, 16)))
    k = c * g.choice((1, 1, 1, 1, 1, 2, 3, 4))
    return _square(g, _image(g), (c, k, c), g.choice((3, 3, 5, 5, 7, 7, 9)), g.choice((1, 1, 1, 2)))


def _dense(g: random.Random, most: int = 1024) -> GroupedConvProblem:
    """Draw a dense filter, mostly 3x3."""
    c, k = (log_uniform(g, 4, most, g.choice((4, 8, 16))) for _ in range(2))
    return _square(g, _image(g), (c, k, 1), g.choice((2, 3, 3, 3, 3, 3, 5, 7)))


def _strided(g: random.Random, most: int = 1024) -> GroupedConvProblem:
    """Draw a stride of 2, rarely 3 or 4, with filters from 1x1 to 7x7."""
    c, k = (log_uniform(g, 3, most, g.choice((1, 8, 16))) for _ in range(2))
    return _square(g, _image(g), (c, k, 1), g.choice((1, 2, 3, 3, 3, 5, 7)), g.choice((2, 2, 2, 2, 3, 4)))


def _volume(g: random.Random, most: int = 512) -> GroupedConvProblem:
    """Draw a 3D problem: filters along space, time or both, strides, groups."""
    groups = g.choice((1, 1, 2, 4))
    c, k = (groups * log_uniform(g, 4, most // groups, 4) for _ in range(2))
    if g.random() < 0.2:
        groups, k = c, c
    n, height, width = _image(g, 64)
    z, y = g.choice(((1, 3), (3, 1), (3, 3), (3, 3), (3, 3), (5, 1), (1, 1)))
    stride_d, stride = g.choice(((1, 1), (1, 1), (1, 2), (2, 2)))
    return GroupedConvProblem(
        min(n, 16), c, k, groups, height, width, y, y, stride, stride, y // 2, y // 2,
        Di=log_uniform(g, 2, 64), Z=z, stride_d=stride_d, pad_d=z // 2,
    )  # fmt: skip


def _thin(g: random.Random) -> GroupedConvProblem:
    """Draw a 1x1 of few input channels: its loop over K has a step or two, so writing the result dominates."""
    c, k = log_uniform(g, 8, 96, 8), log_uniform(g, 8, 4096, g.choice((1, 8, 8, 32)))
    return _square(g, _image(g), (c, k, 1), 1, g.choice((1, 1, 1, 2)))


def _multiplied(g: random.Random) -> GroupedConvProblem:
    """Draw a depthwise problem with several filters per channel."""
    c = log_uniform(g, 4, 1024, g.choice((1, 4, 8, 16)))
    k = c * g.choice((2, 2, 2, 3, 3, 4))
    return _square(g, _image(g), (c, k, c), g.choice((3, 3, 5, 5, 7, 9)), g.choice((1, 1, 1, 2)))
