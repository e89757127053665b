"""Replaced layers compute the additions and activations after them where the graph proves that they may."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from threading import Thread
from types import MethodType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as own

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import _ended as ended
from tilewise.torch import _layers as layers
from torch_functions.compare import close, half
from torch_functions.networks import small, small_like
from torch_functions.predicting import predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


@pytest.fixture(autouse=True)
def _winning() -> Iterator[None]:
    with ours.use(*predicting()):
        yield


@pytest.fixture
def x() -> torch.Tensor:
    return half(2, 4, 5, 4)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool, str | None]]:
    """Return a list of the epilogues (bias, residual, activation) with which layers are computed."""
    seen: list[tuple[bool, bool, str | None]] = []
    made = ended.ends_of

    def noted(bias: Any, residual: Any, activation: str | None, in_one_launch: bool) -> Any:
        seen.append((bias is not None, residual is not None, activation))
        return made(bias, residual, activation, in_one_launch)

    monkeypatch.setattr(layers, "ends_of", noted)
    return seen


ALL = [
    (True, False, "relu"), (True, False, None), (True, True, "relu"),  # the downsampling comes before the addition
    (True, False, "relu"), (True, True, "relu"), (True, False, "gelu_tanh"),
]  # fmt: skip
NONE = [(False, False, None)] * 5 + [(True, False, None)]


class TestNetwork:
    def test_a_residual_network_is_computed_by_its_layers(self, x: torch.Tensor, ends: list[Any]) -> None:
        original = small()
        model, report = ours.optimize(original, x)
        rows = {layer.name: layer.fused for layer in report.layers}
        assert rows == {
            "blocks.0.conv1": ("relu",), "blocks.0.conv2": ("residual", "relu"), "blocks.0.downsample.0": (),
            "blocks.1.conv1": ("relu",), "blocks.1.conv2": ("residual", "relu"), "head": ("gelu_tanh",),
        }  # fmt: skip
        assert len(report.folded) == 5
        assert "blocks.0.conv2: computes residual and relu too" in str(report).splitlines()
        with torch.no_grad():
            close(model(x), original(x))
        assert ends == ALL
        assert list(model.state_dict()) == list(original.state_dict())
        assert [n for n, _ in model.named_modules()] == [n for n, _ in original.named_modules()]

    @pytest.mark.long
    @pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
    def test_copies_have_their_own_parameters(self, x: torch.Tensor, ends: list[Any], again: Any) -> None:
        original = small()
        made = again(ours.optimize(original, x).model)
        with torch.no_grad():
            close(made(x), original(x))
            assert ends == ALL
            made.head.weight.zero_()
            made.head.bias.fill_(1)
            close(made(x), own.gelu(torch.ones(2, 3), approximate="tanh").half())

    @pytest.mark.long
    def test_replicas_of_data_parallel_compute_with_their_own_parameters(
        self, x: torch.Tensor, ends: list[Any]
    ) -> None:
        original = small()
        model, _ = ours.optimize(original, x)
        replica = replicated(model)
        with torch.no_grad():
            close(replica(x), original(x))
        assert ends == [(True, False, None)] * 6  # folded, not fused
        for network in (replica, original):
            network(x).sum().backward()
        close(replica.head.weight.grad, original.head.weight.grad)
        assert model.head.weight.grad is None
        with torch.no_grad():
            model.head.weight.zero_()
            close(replica(x), original(x))
            ends.clear()
            model(x)
        assert ends == ALL

    def test_a_forward_that_is_put_in_later_is_also_a_replica_s(self, x: torch.Tensor) -> None:
        model, _ = ours.optimize(small(), x)
        model.forward = torch.zeros_like
        assert torch.equal(replicated(model)(x), torch.zeros_like(x))

    @pytest.mark.long
    def test_compiled_and_exported(self, x: torch.Tensor) -> None:
        torch._dynamo.reset()
        original = small()
        model, _ = ours.optimize(original, x)
        with torch.no_grad():
            close(torch.compile(model, fullgraph=True, backend="aot_eager")(x), original(x))
            program = torch.export.export(model, (x,))
            close(program.module()(x), original(x))
        targets = [str(node.target) for node in program.graph.nodes]
        assert targets.count("tilewise.conv_ended.default") == 5
        assert not any("relu" in t or "batch_norm" in t or "aten.add" in t for t in targets)

    @pytest.mark.long
    def test_training_and_gradients_are_the_original_s(self, x: torch.Tensor, ends: list[Any]) -> None:
        original = small()
        model, _ = ours.optimize(original, x)
        for module in (original, model):  # in evaluation mode, with gradients of folded parameters
            module(x).sum().backward()
        assert ends == NONE
        for module in (original, model):
            module.train()(x).sum().backward()
        for a, b in zip(model.parameters(), original.parameters(), strict=True):
            close(a.grad, b.grad)
        with torch.no_grad():
            close(model.eval()(x), original.eval()(x))

    @pytest.mark.long
    def test_gradients_of_the_input_alone_are_fused(self, x: torch.Tensor, ends: list[Any]) -> None:
        original = small().requires_grad_(False)
        model, _ = ours.optimize(original, x)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        model(a).sum().backward()
        assert ends == ALL
        original(b).sum().backward()
        close(a.grad, b.grad)

    @pytest.mark.long
    @pytest.mark.parametrize("watched", ["blocks.0.conv1", "blocks.0.bn1", "blocks.1.conv2", "head"])
    def test_a_hook_that_comes_later_sees_the_layer_s_own_value(self, x: torch.Tensor, watched: str) -> None:
        original = small()
        seen: list[torch.Tensor] = []
        for network in (original, ours.optimize(original, x).model):
            layer = network.get_submodule(watched)
            layer.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
            layer.register_forward_hook(lambda _, args, y: seen.append(y.clone()))
            with torch.no_grad():
                network(x)
        for exact, found in zip(seen[:2], seen[2:], strict=True):
            close(found, exact)

    @pytest.mark.long
    @pytest.mark.parametrize("fuse", [False, True])
    def test_a_hook_that_changes_the_filter_counts(self, x: torch.Tensor, fuse: bool) -> None:
        original = small()
        model = ours.optimize(original, x, fuse=fuse).model

        def fill(layer: nn.Module, args: object) -> None:
            nn.init.constant_(layer.weight, 0.1)

        for network in (original, model):
            network.blocks[0].conv2.register_forward_pre_hook(fill)
        with torch.no_grad():
            close(model(x), original(x))

    @pytest.mark.long
    def test_hooks_of_all_modules_are_called(self, x: torch.Tensor) -> None:
        model, calls = ours.optimize(small(), x).model, []
        hook = nn.modules.module.register_module_forward_hook(lambda module, *_: calls.append(type(module)))
        try:
            with torch.no_grad():
                model(x)
        finally:
            hook.remove()
        assert calls.count(nn.ReLU) == 4

    @pytest.mark.long
    @pytest.mark.parametrize("watched", ["blocks.0", "blocks.0.relu", "blocks.1.bn2"])
    def test_a_hook_that_comes_later_is_called(self, x: torch.Tensor, ends: list[Any], watched: str) -> None:
        model, _ = ours.optimize(small(), x)
        calls: list[nn.Module] = []
        model.get_submodule(watched).register_forward_hook(lambda module, *_: calls.append(module))
        with torch.no_grad():
            close(model(x), small_like(model)(x))
        assert calls
        assert all(activation is None for _, _, activation in ends)

    def test_a_part_in_training_mode_computes_by_itself(self, x: torch.Tensor, ends: list[Any]) -> None:
        model, _ = ours.optimize(small(), x)
        model.blocks[0].bn1.train()
        with torch.no_grad():
            model(x)
        assert (True, True, "relu") not in ends

    def test_a_module_that_is_put_in_later_is_called(self, x: torch.Tensor) -> None:
        model, exact = ours.optimize(small(), x).model, small()
        exact.load_state_dict(model.state_dict())
        for network in (model, exact):
            network.blocks[1] = nn.Identity()
        with torch.no_grad():
            close(model(x), exact(x))

    def test_a_module_that_is_added_later_is_called(self, x: torch.Tensor) -> None:
        original = small()
        model = ours.optimize(original, x).model
        for network in (original, model):
            network.blocks.append(nn.Tanh())
        with torch.no_grad():
            close(model(x), original(x))

    @pytest.mark.long
    def test_other_arguments_are_the_network_s_own(self, x: torch.Tensor, ends: list[Any]) -> None:
        original = small()
        model, _ = ours.optimize(original, x)
        with torch.no_grad():
            close(model(x, 2.0), original(x, 2.0))
            close(model(x=x), original(x))
        assert (True, True, "relu") not in ends

    def test_fusing_can_be_left_out(self, x: torch.Tensor) -> None:
        model, report = ours.optimize(small(), x, fuse=False)
        assert not any(layer.fused for layer in report.layers)
        assert len(report.folded) == 5
        assert "forward" not in vars(model)

    def test_a_pool_that_changes_its_result_s_strides(self) -> None:
        """Of channels-last tensors the mean over all pixels is computed first, and its strides changed in place."""
        model = nn.Sequential(
            nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU(True), nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.ReLU()
        )
        x = half(2, 4, 5, 4).to(memory_format=torch.channels_last)
        report = ours.optimize(model.half().eval(), x).report
        assert report.folded == (("0", "1"),)
        assert [layer.fused for layer in report.layers] == [("relu",), ("relu",)]

    def test_load_state_dict_folds_again(self, x: torch.Tensor) -> None:
        model, other = ours.optimize(small(), x).model, small()
        model.load_state_dict(other.state_dict())
        with torch.no_grad():
            close(model(x), other(x))

    def test_a_layer_that_is_left_to_pytorch_computes_nothing_more(self, x: torch.Tensor) -> None:
        with ours.use(*predicting(lambda p: getattr(p, "Y", 1) == 1)):
            report = ours.optimize(small(), x, min_gain=0.2).report
        rows = {layer.name: (layer.replaced, layer.fused) for layer in report.layers}
        assert rows["blocks.0.conv2"] == (False, ())
        assert rows["blocks.0.conv1"] == (True, ("relu",))


def replicated(model: nn.Module) -> nn.Module:
    """Return a replica with copies of all tensors, as ``torch.nn.parallel.replicate`` makes it on GPUs."""
    replicas = {module: module._replicate_for_data_parallel() for module in model.modules()}
    for module, replica in replicas.items():
        for name, child in module._modules.items():
            replica._modules[name] = replicas.get(child)
        for name, parameter in module._parameters.items():
            if parameter is None:
                replica._parameters[name] = None
            else:
                setattr(replica, name, parameter.detach().clone().requires_grad_(parameter.requires_grad))
        for name, buffer in module._buffers.items():
            replica._buffers[name] = buffer.clone()
    return replicas[model]


class Plain(nn.Module):  # type: ignore[misc] # as above
    """Two convolutions whose results a function combines."""

    def __init__(self, combine: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.act = nn.SiLU(inplace=True)
        self.combine = combine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.combine(self, x)


def doubled(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return twice the sum, as an addition in place changes `first` too; for torch.fx it is no addition in place."""
    first = y
    y += x
    return first + y


COMBINED: dict[str, tuple[Callable[..., torch.Tensor], dict[str, tuple[str, ...]]]] = {
    "functions": (lambda m, x: own.silu(m.a(x)) + own.hardswish(m.b(x)), {"a": ("silu",), "b": ("hardswish",)}),
    "methods": (lambda m, x: m.b(m.a(x).relu()).relu_(), {"a": ("relu",), "b": ("relu",)}),
    "torch.add": (lambda m, x: torch.add(m.b(own.gelu(m.a(x))), x), {"a": ("gelu",), "b": ("residual",)}),
    "the other way round": (lambda m, x: own.relu(x + m.a(x)), {"a": ("residual", "relu"), "b": ()}),
    "a module": (lambda m, x: m.act(m.a(x)), {"a": ("silu",), "b": ()}),
    "both add": (lambda m, x: m.a(x) + m.b(x), {"a": ("residual",), "b": ()}),
    "read twice": (lambda m, x: m.a(x).relu() + m.a(x), {"a": (), "b": ()}),
    "value read twice": (lambda m, x: (lambda y: y.relu() + y)(m.a(x)), {"a": (), "b": ()}),
    "weighted addition": (lambda m, x: torch.add(m.a(x), x, alpha=2), {"a": (), "b": ()}),
    "a number": (lambda m, x: m.a(x) + 1, {"a": (), "b": ()}),
    "a size": (lambda m, x: m.a(x) + x.shape[0], {"a": (), "b": ()}),
    "into the other": (lambda m, x: (x + 0).add_(m.a(x)), {"a": (), "b": ()}),
    "input changed meanwhile": (
        lambda m, x: (lambda z: (lambda y: y + own.relu(z, inplace=True))(m.a(z)))(x + 0), {"a": (), "b": ()},
    ),
    "input changed before the activation": (
        lambda m, x: (lambda z: (lambda y: own.relu(z, inplace=True) + own.relu(y))(m.a(z)))(x + 0),
        {"a": (), "b": ()},
    ),
    "input changed as an argument says": (
        lambda m, x: (lambda z: (lambda y: own.relu(z, True) + own.relu(y))(m.a(z)))(x + 0), {"a": (), "b": ()},
    ),
    "residual changed before the activation": (
        lambda m, x: (lambda z: (lambda y: own.relu(z, inplace=True) + own.relu(y))(m.a(x) + z))(x + 0),
        {"a": ("residual",), "b": ()},
    ),
    "a value with another name changed": (lambda m, x: doubled(m.b(own.relu(m.a(x))), x), {"a": (), "b": ()}),
    "after the activation": (lambda m, x: own.relu(m.a(x)) + x, {"a": ("relu",), "b": ()}),
    "broadcast": (lambda m, x: m.a(x) + m.b(own.relu(x[:, :, :1, :1])), {"a": ("residual",), "b": ()}),
    "another activation": (lambda m, x: own.elu(m.a(x)), {"a": (), "b": ()}),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", COMBINED)
def test_only_proved_parts_are_fused(name: str, x: torch.Tensor) -> None:
    combine, fused = COMBINED[name]
    original = Plain(combine).half().eval()
    model, report = ours.optimize(original, x)
    assert {layer.name: layer.fused for layer in report.layers} == fused
    with torch.no_grad():
        close(model(x), original(x))


def test_a_network_of_two_arguments_is_left_as_it_is(x: torch.Tensor) -> None:
    class Two(nn.Module):  # type: ignore[misc] # as above
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.conv(x).relu() + y

    original = Two().half().eval()
    model, report = ours.optimize(original, x, x)
    assert report.layers[0].fused == ()
    with torch.no_grad():
        close(model(x, x), original(x, x))


def test_tensors_that_a_network_makes_itself_leave_no_trace(x: torch.Tensor) -> None:
    class Making(nn.Module):  # type: ignore[misc] # as above
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x).relu() + torch.rand(1).half()

    model, report = ours.optimize(Making().half().eval(), x)
    assert [n for n in vars(model) if "constant" in n] == []
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))
    assert report.layers[0].fused == ()


class Stateful(nn.Module):  # type: ignore[misc] # as above
    """A network whose code does more than its graph: it keeps values, reads attributes, and asks for classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.scale, self.act = 2.0, own.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.act(self.norm(self.conv(x))) * self.scale
        return y


class Remembering(Stateful):
    seen: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = super().forward(x)
        return self.seen


class Appending(Stateful):
    def __init__(self) -> None:
        super().__init__()
        self.all: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.all.append(super().forward(x))
        return self.all[-1]


class Asking(Stateful):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + self.conv(x) if isinstance(x, torch.Tensor) else y  # torch.fx traces with something else


def test_values_that_a_network_keeps_are_kept(x: torch.Tensor) -> None:
    remembering, appending = (ours.optimize(kind().half().eval(), x) for kind in (Remembering, Appending))
    assert remembering.model.seen is None
    assert appending.model.all == []
    with torch.no_grad():
        for _ in range(2):
            y, z = remembering.model(x), appending.model(x)
            assert remembering.model.seen is y
            assert appending.model.all[-1] is z
    assert len(appending.model.all) == 2
    for _, report in (remembering, appending):
        assert report.folded == (("conv", "norm"),)
        assert report.layers[0].fused == ()


def test_a_graph_that_takes_another_branch_than_the_network_proves_nothing(x: torch.Tensor) -> None:
    original = Asking().half().eval()
    model, report = ours.optimize(original, x)
    assert report.folded == ()
    assert report.layers[0].fused == ()
    assert report.why_not_folded == "the graph of the model computes the example by other operators than the model"
    with torch.no_grad():
        close(model(x), original(x))


@pytest.mark.parametrize(("name", "value"), [("scale", 3.0), ("act", own.silu), ("scale", torch.ones(4, 1, 1).half())])
def test_an_attribute_that_changes_counts(x: torch.Tensor, name: str, value: object) -> None:
    original = Stateful().half().eval()
    model = ours.optimize(original, x).model
    for network in (original, model):
        setattr(network, name, value)
    with torch.no_grad():
        close(model(x), original(x))


class Choosing(Stateful):
    """A network of two branches, whose graphs have nodes of the same names."""

    is_first = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            return super().forward(x).relu()
        x = x.relu()
        return own.silu(self.norm(self.conv(x)))


@pytest.mark.parametrize("again", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_is_made_after_an_attribute_changed(x: torch.Tensor, again: Any) -> None:
    original = Choosing().half().eval()
    model = ours.optimize(original, x).model
    original.is_first = model.is_first = False
    with torch.no_grad():
        close(again(model)(x), original(x))


def test_a_forward_of_an_instance_is_called(x: torch.Tensor) -> None:
    """As wrappers of models set it, which move weights or cast results."""
    original = Stateful().half().eval()
    for name in ("", "conv", "norm"):
        wrapped = copy.deepcopy(original)
        part = wrapped.get_submodule(name)
        part.forward = MethodType(lambda self, x: type(self).forward(self, x) * 2, part)
        exact = copy.deepcopy(wrapped)
        with torch.no_grad():
            close(ours.optimize(wrapped, x, inplace=True).model(x), exact(x))


class Meanwhile(Stateful):
    """A network during whose computation another thread uses another one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        thread = Thread(target=self._use)
        thread.start()
        thread.join()
        return super().forward(x)

    def _use(self) -> None:
        try:
            OTHER(torch.ones(1, 4, 3, 3))
        except Exception as e:
            ERRORS.append(e)


OTHER, ERRORS = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), list[Exception]()


def test_tracing_leaves_other_threads_alone(x: torch.Tensor) -> None:
    report = ours.optimize(Meanwhile().half().eval(), x).report
    assert report.layers[0].fused == ("relu",)
    assert ERRORS == []
