"""The problem set: real layers as their networks define them, reproducible, each once, of every kind."""

from __future__ import annotations

from collections import Counter

import pytest

from tilewise.collect.problems.conv import measurable, problem_set
from tilewise.collect.problems.networks import NETWORKS, conv
from tilewise.ops import GroupedConvProblem

ITEMS = problem_set(2, 100, 0)


@pytest.mark.parametrize(
    ("network", "layer"),
    [
        ("resnet50", conv(56, 64, 64, 3)),
        ("resnet50", conv(56, 128, 128, 3, stride=2)),
        ("resnet50", conv(7, 512, 2048)),
        ("resnext50", conv(56, 128, 128, 3, groups=32)),
        ("mobilenet_v2", conv(112, 96, 96, 3, stride=2, groups=96)),
        ("efficientnet_b0", conv(56, 144, 144, 5, stride=2, groups=144)),
        ("convnext_tiny", conv(14, 384, 384, 7, groups=384)),
        ("vgg16", conv(28, 512, 512, 3)),
        ("inception_v3", conv(17, 128, 192, (7, 1))),
        ("stable_diffusion_unet", conv(16, 2560, 1280, 3)),
    ],
)
def test_networks_have_their_known_layers(network: str, layer: GroupedConvProblem) -> None:
    assert layer in list(NETWORKS[network]())


def test_resnet50_costs_what_its_paper_says() -> None:
    """The distinct layers, each once: between the stem alone and the 4.1 G multiply-adds of the whole network."""
    assert 1.5e9 < sum(p.flops for p in NETWORKS["resnet50"]()) / 2 < 4.1e9


def test_each_problem_stands_once_and_can_be_measured() -> None:
    assert max(Counter(i.problem for i in ITEMS).values()) == 1
    assert all(measurable(i.problem) for i in ITEMS if isinstance(i.problem, GroupedConvProblem))


def test_the_set_is_reproducible_and_follows_its_seed() -> None:
    assert problem_set(2, 100, 0) == ITEMS
    assert set(problem_set(2, 100, 1)) != set(ITEMS)


def test_every_kind_is_there() -> None:
    origins = Counter(i.origin for i in ITEMS)
    assert set(NETWORKS) <= set(origins)
    assert all(origins[f"synthetic_{kind}"] for kind in ("dense", "grouped", "depthwise", "pointwise", "odd"))
    problems = [i.problem for i in ITEMS if isinstance(i.problem, GroupedConvProblem)]
    assert {1, 2, 4, 8, 16, 32, 64, 128} <= {p.N for p in problems}
    assert any(p.stride_h == 2 for p in problems)
    assert any(p.dilation_h > 1 for p in problems)
    assert any(p.C % 8 for p in problems)
