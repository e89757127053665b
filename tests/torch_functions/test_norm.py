"""Batch normalisation in training with its ends: PyTorch's results, gradients and running statistics."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import tilewise.torch as ours
from tilewise.kernels import STORED_FORMATS
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import norm as norms
from tilewise.torch._ended import finished
from tilewise.torch.norm import _function as function
from tilewise.torch.norm import _grid as grid
from torch_functions.compare import close
from torch_functions.networks import small, small_like

DEVICE = "cpu" if interpreted() else "cuda"
ENDS = [(False, ""), (False, "relu"), (False, "silu"), (False, "hardswish"), (True, ""), (True, "relu")]


def channels_last(*shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> torch.Tensor:
    made = torch.randn(*shape, device=DEVICE) + mean
    return made.to(dtype).contiguous(memory_format=STORED_FORMATS[len(shape)])


def pair(channels: int, dims: int = 2, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, nn.Module]:
    """Return a layer of ours and one of PyTorch's with the same parameters."""
    own, theirs = ((norms.BatchNorm2d, nn.BatchNorm2d), (norms.BatchNorm3d, nn.BatchNorm3d))[dims - 2]
    a, b = (kind(channels, momentum=0.3).to(DEVICE, dtype) for kind in (own, theirs))
    nn.init.normal_(a.weight)
    nn.init.normal_(a.bias)
    b.load_state_dict(a.state_dict())
    return a, b


def assert_same(
    a: nn.Module, b: nn.Module, x: torch.Tensor, residual: torch.Tensor | None = None, activation: str = ""
) -> None:
    """Check that a layer of ours and one of PyTorch's agree in results, gradients and running statistics."""
    given = [t for t in (x, residual) if t is not None]
    mine, theirs = ([t.detach().clone().requires_grad_() for t in given] for _ in range(2))
    other, their_other = (ts[1] if residual is not None else None for ts in (mine, theirs))
    y, right = a(mine[0], other, activation), finished(b(theirs[0]), their_other, activation)
    close(y, right)
    dy = torch.randn_like(right)
    got = torch.autograd.grad(y, [*mine, a.weight, a.bias], dy)
    for found, expected in zip(got, torch.autograd.grad(right, [*theirs, b.weight, b.bias], dy), strict=True):
        assert found.dtype == expected.dtype
        close(found, expected)
    for name, value in b.state_dict().items():
        close(a.state_dict()[name].float(), value.float())


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of the activations that kernels computed."""
    seen: list[str] = []
    made = function._BatchNorm.apply

    def noted(*args: Any) -> Any:
        seen.append(args[-1])
        return made(*args)

    monkeypatch.setattr(function._BatchNorm, "apply", noted)
    return seen


class TestLayer:
    @pytest.mark.long
    @pytest.mark.parametrize(("residual", "activation"), ENDS)
    @pytest.mark.parametrize("shape", [(2, 24, 5, 3), (3, 20, 4, 7), (1, 6, 2, 3, 4)])
    def test_is_pytorchs(self, residual: bool, activation: str, shape: tuple[int, ...], launches: list[str]) -> None:
        a, b = pair(shape[1], len(shape) - 2)
        other = channels_last(*shape) if residual else None
        assert_same(a, b, channels_last(*shape, mean=3.0), other, activation)
        assert launches == [activation]

    def test_in_half_precision(self) -> None:
        a, b = pair(16, dtype=torch.float16)
        assert_same(a, b, channels_last(2, 16, 6, 5, dtype=torch.float16))

    def test_with_parameters_in_fp32_as_under_autocast(self) -> None:
        a, b = pair(16)
        x = channels_last(2, 16, 6, 5, dtype=torch.float16)
        close(a(x, activation="relu"), torch.relu(b(x)))
        close(a.running_var, b.running_var)

    @pytest.mark.long
    @settings(max_examples=12, deadline=None)
    @given(st.tuples(*(st.integers(1, most) for most in (3, 70, 9, 9))).filter(lambda s: s[0] * s[2] * s[3] > 1))
    def test_of_any_size(self, shape: tuple[int, int, int, int]) -> None:
        assert_same(*pair(shape[1]), channels_last(*shape), channels_last(*shape), "relu")

    def test_offsets_of_64_bits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(grid, "_INT32_VALUES", 1)
        shape = (2, 24, 5, 7)  # which no other test launches kernels for
        assert grid.grid_of(channels_last(*shape)).constants["WIDE"]
        assert_same(*pair(24), channels_last(*shape), channels_last(*shape), "relu")

    def test_a_mean_far_from_zero_costs_no_precision(self) -> None:
        a, b = pair(8)
        x = channels_last(4, 8, 5, 5, mean=1000.0)
        b.double()(x.double())
        assert torch.allclose(a(x).std((0, 2, 3)), a.weight.abs(), rtol=0.02)
        assert torch.allclose(a.running_var, b.running_var.float(), rtol=1e-3)

    def test_values_that_are_no_numbers_show_as_with_pytorch(self) -> None:
        a, b = pair(8)
        x = channels_last(2, 8, 4, 4)
        x[1, 3, 2, 2], x[0, 5, 1, 1] = float("nan"), float("inf")
        assert torch.equal(a(x).isnan(), b(x).isnan())
        assert torch.equal(a.running_var.isnan(), b.running_var.isnan())

    def test_hooks_may_store_saved_tensors_otherwise(self) -> None:
        hooks = torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
        )
        with hooks:
            assert_same(*pair(6), channels_last(2, 6, 4, 3), channels_last(2, 6, 4, 3), "relu")

    def test_gradients_can_be_differentiated(self) -> None:
        found = []
        a, b = pair(6)
        x, other = channels_last(2, 6, 4, 3), channels_last(2, 6, 4, 3)
        for layer in (a, b):
            u = x.clone().requires_grad_()
            y = layer(u, other, "relu") if layer is a else torch.relu(layer(u) + other)
            (g,) = torch.autograd.grad(y.square().sum(), u, create_graph=True)
            found.append(torch.autograd.grad(g.square().sum(), [u, layer.weight]))
        for mine, right in zip(*found, strict=True):
            close(mine, right)

    def test_a_residual_s_gradient_can_be_differentiated_where_all_else_is_frozen(self) -> None:
        layer, _ = pair(6)
        layer.requires_grad_(False)
        x, other = channels_last(2, 6, 4, 3), channels_last(2, 6, 4, 3).requires_grad_()
        (found,) = torch.autograd.grad(layer(x, other, "relu").square().sum(), other, create_graph=True)
        (again,) = torch.autograd.grad(found.sum(), other)
        y = torch.relu(layer(x, None, None) + other)
        close(again, 2 * (y > 0).to(y.dtype))

    @pytest.mark.parametrize("change", [
        lambda layer: layer.eval(),
        lambda layer: setattr(layer, "momentum", None),
        lambda layer: setattr(layer, "num_batches_tracked", None),
    ])  # fmt: skip
    def test_other_modes_are_pytorchs(self, change: Any, launches: list[str]) -> None:
        a, b = pair(8)
        for layer in (a, b):
            change(layer)
        assert_same(a, b, channels_last(2, 8, 4, 4), None, "relu")
        assert launches == []

    @pytest.mark.parametrize("make", [
        lambda x: (x.contiguous(), None),
        lambda x: (x[:, :, ::2], None),
        lambda x: (x, x.contiguous()),
        lambda x: (x, x[:1].contiguous(memory_format=torch.channels_last)),
        lambda x: (x.double(), None),
    ])  # fmt: skip
    def test_other_tensors_are_pytorchs(self, make: Any, launches: list[str]) -> None:
        x, residual = make(channels_last(2, 8, 4, 4))
        a, b = pair(8, dtype=x.dtype)
        close(a(x, residual, "relu"), finished(b(x), residual, "relu"))
        assert launches == []

    def test_one_value_a_channel_is_pytorchs_error(self) -> None:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            pair(8)[0](channels_last(1, 8, 1, 1))


class Kinds(nn.Module):  # type: ignore[misc] # torch has no types here
    """Normalisations that stay as they are beside one that need not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bare, self.plain = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.BatchNorm2d(4)
        self.twice = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bare(self.first(x)))
        x = torch.sigmoid(self.twice(self.twice(x)))
        y = self.plain(x)
        return torch.relu(y) + y


@pytest.fixture
def x() -> torch.Tensor:
    return channels_last(2, 4, 5, 4, dtype=torch.float16)


def in_training() -> nn.Module:
    return small().to(DEVICE, memory_format=torch.channels_last).train()


class TestOptimize:
    @pytest.mark.long
    def test_normalisations_of_training_compute_the_ends(self, x: torch.Tensor, launches: list[str]) -> None:
        model = in_training()
        optimised, report = ours.optimize(model, x, launch="graph")
        assert report.norms == {
            "blocks.0.bn1": ("relu",),
            "blocks.0.bn2": ("residual", "relu"),
            "blocks.0.downsample.1": (),
            "blocks.1.bn1": ("relu",),
            "blocks.1.bn2": ("residual", "relu"),
        }
        assert "blocks.0.bn2: kernels compute it and residual and relu after it" in str(report)
        assert optimised.state_dict().keys() == model.state_dict().keys()
        y, right = optimised(x), model(x)
        close(y, right)
        assert sorted(launches) == ["", "relu", "relu", "relu", "relu"]
        y.float().square().mean().backward()
        right.float().square().mean().backward()
        for mine, theirs in zip(optimised.parameters(), model.parameters(), strict=True):
            close(mine.grad, theirs.grad)
        for mine, theirs in zip(optimised.buffers(), model.buffers(), strict=True):
            close(mine.float(), theirs.float())

    def test_only_where_they_pay_and_if_wanted(self, x: torch.Tensor) -> None:
        """Eager steps of a network without predictions keep PyTorch's; see test_host_costs.py for others."""
        assert ours.optimize(in_training(), x).report.norms == {}
        assert ours.optimize(in_training(), x, launch="graph", fuse=False).report.norms == {}
        assert ours.optimize(in_training().eval(), x, launch="graph").report.norms == {}

    def test_normalisations_of_ours_stay_ours(self, x: torch.Tensor) -> None:
        """Without an addition or activation the network keeps its forward, so it can be optimised once more."""
        once = ours.optimize(nn.Sequential(nn.BatchNorm2d(4), nn.Sigmoid()).to(DEVICE).half(), x, launch="graph").model
        again, report = ours.optimize(once, x, launch="graph")
        assert report.norms == {"0": ()}
        assert type(again[0]) is norms.BatchNorm2d

    def test_layers_that_kernels_do_not_compute_stay(self, x: torch.Tensor) -> None:
        optimised, report = ours.optimize(Kinds().to(DEVICE).half(), x, launch="graph")
        assert [*report.norms] == ["first", "plain"]
        close(optimised(x), Kinds().to(DEVICE).half()(x))

    def test_in_evaluation_the_network_computes(self, x: torch.Tensor, launches: list[str]) -> None:
        optimised, _ = ours.optimize(in_training(), x, launch="graph")
        optimised.eval()
        close(optimised(x), small_like(optimised).to(DEVICE)(x))
        assert launches == []
        optimised.train()(x)
        assert len(launches) == 5

    def test_a_frozen_normalisation_stays_frozen(self, x: torch.Tensor, launches: list[str]) -> None:
        model = in_training()
        model.blocks[0].bn1.eval()
        optimised, report = ours.optimize(model, x, launch="graph")
        assert "blocks.0.bn1" not in report.norms
        close(optimised(x), model(x))
        assert len(launches) == 4
        optimised.blocks[0].bn2.eval()
        close(optimised(x), small_frozen(optimised)(x))

    @pytest.mark.long
    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_copies_compute_the_same(self, x: torch.Tensor, copied: Any, launches: list[str]) -> None:
        optimised, _ = ours.optimize(in_training(), x, launch="graph")
        other = copied(optimised)
        close(other(x), optimised(x))
        assert sorted(launches[:5]) == sorted(launches[5:])

    def test_a_hook_sees_its_layers_own_result(self, x: torch.Tensor) -> None:
        model = in_training()
        optimised, _ = ours.optimize(model, x, launch="graph")
        seen: list[torch.Tensor] = []
        for network in (model, optimised):
            network.blocks[1].bn2.register_forward_hook(lambda layer, args, y: seen.append(y.clone()))
            network(x)
        close(*seen)
        assert bool((seen[1] < 0).any())

    @pytest.mark.long
    def test_a_compiler_gets_pytorchs_functions(self, x: torch.Tensor, launches: list[str]) -> None:
        model = in_training()
        optimised, _ = ours.optimize(model, x, launch="graph")
        close(torch.compile(optimised, backend="aot_eager")(x), model(x))
        assert launches == []


def small_frozen(like: nn.Module) -> nn.Module:
    """Return a network by PyTorch's layers with the parameters and modes of another."""
    made = small_like(like).to(DEVICE)
    for mine, theirs in zip(made.modules(), like.modules(), strict=True):
        mine.training = theirs.training
    return made


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("residual", "activation"), ENDS)
@pytest.mark.parametrize("shape", [
    (16, 64, 56, 56), (16, 256, 56, 56), (16, 2048, 7, 7), (128, 128, 28, 28), (16, 24, 112, 112), (128, 58, 28, 28),
    (16, 116, 14, 14), (1, 672, 14, 14), (2, 64, 8, 28, 28),
])  # fmt: skip
def test_real_sizes_are_as_near_to_fp32_as_pytorch(
    shape: tuple[int, ...], residual: bool, activation: str, dtype: torch.dtype
) -> None:
    a, b = pair(shape[1], len(shape) - 2, dtype)
    exact = copy.deepcopy(b).float()
    inputs = [channels_last(*shape, dtype=dtype, mean=1.0) for _ in range(1 + residual)]
    dy, found = torch.randn_like(inputs[0]), []
    for layer, cast in ((a, dtype), (b, dtype), (exact, torch.float32)):
        given = [t.detach().to(cast).requires_grad_() for t in inputs]
        other = given[1] if residual else None
        y = layer(given[0], other, activation) if layer is a else finished(layer(given[0]), other, activation)
        found.append([y, *torch.autograd.grad(y, [*given, layer.weight, layer.bias], dy.to(cast))])
    for mine, theirs, right in zip(*found, strict=True):
        errors = [float((t.float() - right).norm() / right.norm()) for t in (mine, theirs)]
        assert errors[0] <= 1.2 * errors[1] + 1e-3
    close(a.running_var.float(), b.running_var.float())
