"""The run on fake tensors sees a normalisation's result as PyTorch would make it, and leaves no values behind."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tilewise.torch import _graph as graph
from tilewise.torch._calls import on_example, recording

aten = torch.ops.aten


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((2, 4, 5, 3), torch.channels_last),
        ((2, 4, 5, 3), torch.contiguous_format),
        ((2, 4, 3, 5, 3), torch.channels_last_3d),
        ((6, 4), torch.contiguous_format),
    ],
)
def test_results_have_pytorchs_sizes_and_layout(
    shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype, trains: bool
) -> None:
    x, vectors = torch.randn(shape).to(dtype).contiguous(memory_format=layout), [torch.ones(4, dtype=dtype)] * 4
    right = aten.native_batch_norm.default(x, *vectors, trains, 0.1, 1e-5)
    with FakeTensorMode() as fake:
        args = (fake.from_tensor(x), *map(fake.from_tensor, vectors), trains, 0.1, 1e-5)
        found = graph.normalised(aten.native_batch_norm.default, args)
    assert found is not None
    assert (found[0].shape, found[0].stride(), found[0].dtype) == (right[0].shape, right[0].stride(), right[0].dtype)
    assert len(found) == len(right)


def test_real_tensors_and_other_operators_are_computed() -> None:
    x, v = torch.randn(2, 4, 3, 3), torch.ones(4)
    assert graph.normalised(aten.native_batch_norm.default, (x, v, v, v, v, False, 0.1, 1e-5)) is None
    with FakeTensorMode() as fake:
        assert graph.normalised(aten.relu.default, (fake.from_tensor(x),)) is None


def test_wrong_channels_are_pytorchs_error() -> None:
    network, x = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(5)).eval(), torch.randn(1, 3, 4, 4)
    with FakeTensorMode(allow_non_fake_inputs=True), recording(network), pytest.raises(RuntimeError, match="elements"):
        graph._operators(network, (x,), [x, *network.parameters()])


def test_tensors_that_are_plain_attributes_have_no_values_either() -> None:
    class Anchored(nn.Module):  # type: ignore[misc] # torch has no types here
        def __init__(self) -> None:
            super().__init__()
            self.anchors, self.scale = [torch.ones(4)], {"x": torch.ones(4)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.anchors[0].add_(1)
            return (x * self.anchors[0]) * self.scale["x"]

    network = Anchored()
    assert type(on_example(network, lambda copied: copied(torch.ones(2, 4)))) is FakeTensor
    assert torch.equal(network.anchors[0], torch.ones(4))
