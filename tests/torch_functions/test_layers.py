"""Layers that take the place of PyTorch's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tilewise.torch as ours
from tilewise.torch._layers import fold_layers, replace_layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_folded_filter_and_bias_are_rounded_once(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(16, 32, 3).to(dtype), nn.BatchNorm2d(32).to(dtype).eval()
    for values in (norm.weight, norm.bias, norm.running_mean, norm.running_var):
        nn.init.uniform_(values, 0.5, 2)
    scale = norm.weight.double() / (norm.running_var.double() + norm.eps).sqrt()
    filters = conv.weight.double() * scale[:, None, None, None]
    bias = (conv.bias.double() - norm.running_mean.double()) * scale + norm.bias.double()
    fold_layers(conv, norm)
    wide = torch.promote_types(dtype, torch.float32)
    allowed = torch.finfo(dtype).eps / 2 + 8 * torch.finfo(wide).eps  # of the result, and of the steps before
    for found, exact in ((conv.folded_weight, filters), (conv.folded_bias, bias)):
        assert found.dtype == dtype
        assert float(((found.double() - exact).abs() / exact.abs().clamp_min(0.1)).max()) < allowed


@pytest.mark.parametrize("layer", [nn.Conv2d(4, 8, 3), nn.Conv3d(4, 8, 3)])
def test_a_replaced_filter_is_stored_channels_last(layer: nn.Module) -> None:
    before, parameter = layer.weight.detach().clone(), layer.weight
    replace_layer(layer)
    layout = torch.channels_last if before.dim() == 4 else torch.channels_last_3d
    assert layer.weight is parameter
    assert layer.weight.is_contiguous(memory_format=layout)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(("mine", "theirs"), [(ours.Conv2d, nn.Conv2d), (ours.Conv3d, nn.Conv3d)])
def test_a_layer_pads_as_it_is_told(mine: type[nn.Module], theirs: type[nn.Module], mode: str) -> None:
    layer = mine(4, 8, 3, padding=1, padding_mode=mode)
    exact = theirs(4, 8, 3, padding=1, padding_mode=mode)
    exact.load_state_dict(layer.state_dict())
    x = torch.randn(1, 4, *(5,) * (layer.weight.dim() - 2))
    torch.testing.assert_close(layer(x), exact(x))
