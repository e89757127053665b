"""Layers of classes that derive from PyTorch's are replaced if these only add methods."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch._layers import kind_of
from torch_functions.compare import close, half
from torch_functions.predicting import predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


class Strided(nn.Conv2d):  # type: ignore[misc] # torch has no types here
    """A convolution with arguments of its own, as torchvision's ``Conv3DSimple``."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__(c, k, 3, stride=2, padding=1, bias=False)

    def downsampling(self) -> int:
        return int(self.stride[0])


class Scaled(nn.Conv2d):  # type: ignore[misc] # as above
    """A convolution that computes something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Tied(nn.Linear):  # type: ignore[misc] # as above
    """A product whose bias is no parameter."""

    bias = property(lambda self: self.weight[:, 0])

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.weight = nn.Parameter(torch.ones(4, 4))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Strided(3, 8), nn.BatchNorm2d(8), nn.ReLU(), Strided(8, 4)).half().eval()


@pytest.fixture
def _winning() -> Iterator[None]:
    with ours.use(*predicting()):
        yield


@pytest.mark.long
@pytest.mark.usefixtures("_winning")
@pytest.mark.parametrize("again", [lambda m: m, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_they_are_folded_and_fused_and_stay_of_their_class(again: Callable[[Any], Any]) -> None:
    original, x = net(), half(1, 3, 8, 8)
    optimised, report = ours.optimize(original, x)
    assert [(layer.replaced, layer.fused) for layer in report.layers] == [(True, ("relu",)), (True, ())]
    assert report.folded == (("0", "1"),)
    model = again(optimised)
    with torch.no_grad():
        close(model(x), original(x))
    assert list(model.state_dict()) == list(original.state_dict())
    for layer in (model[0], model[3]):
        assert isinstance(layer, Strided)
        assert isinstance(layer, ours.Conv2d)
        assert type(layer).__name__ == "Strided"
        assert layer.downsampling() == 2
    model[3].weight.data.zero_()
    with torch.no_grad():
        assert model(x).abs().max() == 0


def test_a_folded_one_that_is_left_to_pytorch_stays_of_its_class() -> None:
    original, x = nn.Sequential(nn.Conv2d(3, 3, 1), Strided(3, 8), nn.BatchNorm2d(8)).half().eval(), half(1, 3, 8, 8)
    original[1].bias = nn.Parameter(torch.ones(8).half())
    with ours.use(*predicting(lambda p: False)):
        model, report = ours.optimize(original, x)
        assert report.folded == (("1", "2"),)
        assert isinstance(model[1], Strided)
        assert not isinstance(model[1], ours.Conv2d)
        with torch.no_grad():
            close(copy.deepcopy(model)(x), original(x))


@pytest.mark.parametrize(("layer", "kind"), [
    (nn.Conv2d(4, 4, 1), nn.Conv2d),
    (Strided(4, 4), nn.Conv2d),
    (Scaled(4, 4, 1), None),
    (Tied(), None),
    (weight_norm(nn.Conv2d(4, 4, 1)), None),
    (nn.LazyConv2d(4, 1), None),
    (ours.Conv2d(4, 4, 1), None),
    (nn.ReLU(), None),
])  # fmt: skip
def test_whoever_redefines_something_is_left_alone(layer: nn.Module, kind: type[nn.Module] | None) -> None:
    assert kind_of(layer) is kind
