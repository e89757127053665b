"""A convolution computes the batch normalisation folded into it only while both layers are as they were folded."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, jvp
from torch.nn.utils.parametrizations import weight_norm

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch._layers import fold_layers
from torch_functions.compare import close, half
from torch_functions.predicting import predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


class Net(nn.Module):  # type: ignore[misc] # torch has no types here
    """A convolution, a batch normalisation and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        nn.init.normal_(self.b.weight)
        nn.init.normal_(self.b.running_mean)
        nn.init.uniform_(self.b.running_var, 0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(self.c(x)).relu()
        return y


class Apart(nn.Module):  # type: ignore[misc] # as above
    """The same, of layers that have no parent in common."""

    def __init__(self) -> None:
        super().__init__()
        net = Net()
        self.first, self.second = nn.ModuleList([net.c]), nn.ModuleDict({"b": net.b})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second["b"](self.first[0](x)).relu()
        return y


@pytest.fixture(autouse=True)
def _winning() -> Iterator[None]:
    with ours.use(*predicting()):
        yield


@pytest.fixture
def x() -> torch.Tensor:
    return half(2, 4, 6, 5)


@pytest.fixture
def net() -> Net:
    made = Net()
    made.half().eval()
    return made


def folded(net: nn.Module, x: torch.Tensor, fuse: bool = True) -> nn.Module:
    """Return the network with its pair folded, and with the activation computed by the convolution if wanted."""
    model, report = ours.optimize(net, x, launch="graph", fuse=fuse)
    assert len(report.folded) == 1
    assert ("forward" in vars(model)) is fuse
    return model


def same(model: nn.Module) -> nn.Module:
    return model


def pickled(model: nn.Module) -> nn.Module:
    again: nn.Module = pickle.loads(pickle.dumps(model))
    return again


def is_active(model: nn.Module) -> bool:
    with torch.no_grad():
        return bool(model.c.folded_pair.is_active)


def doubled(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: 2 * t.detach() for name, t in tensors.items()}


@pytest.mark.parametrize("fuse", [False, True])
class TestParameters:
    """Others than those that were folded."""

    @pytest.mark.parametrize("owner", ["c", "b", ""])
    def test_of_a_functional_call(self, net: Net, x: torch.Tensor, fuse: bool, owner: str) -> None:
        model = folded(net, x, fuse)
        others = {n: t for n, t in doubled(dict(net.named_parameters())).items() if n.startswith(owner)}
        others["b.running_mean"] = torch.ones(4).half()
        with torch.no_grad():
            close(functional_call(model, others, (x,)), functional_call(net, others, (x,)))
            assert is_active(model)
            close(model(x), net(x))

    def test_of_a_derivative(self, net: Net, x: torch.Tensor, fuse: bool) -> None:
        model = folded(net, x, fuse)
        at = {name: t.detach().clone() for name, t in net.named_parameters()}
        along = {name: torch.ones_like(t) for name, t in at.items()}
        mine, theirs = (jvp(lambda p, m=m: functional_call(m, p, (x,)), (at,), (along,)) for m in (model, net))
        for a, b in zip(mine, theirs, strict=True):
            close(a, b)

    @pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
    @pytest.mark.parametrize("name", ["c.weight", "c.bias", "b.weight", "b.bias", "b.running_mean", "b.running_var"])
    def test_changed_in_place(self, net: Net, x: torch.Tensor, fuse: bool, name: str, guard: Any) -> None:
        model = folded(net, x, fuse)
        with guard():
            for network in (model, net):
                network.get_parameter(name).mul_(2) if "running" not in name else network.get_buffer(name).mul_(2)
            assert not is_active(model)
            close(model(x), net(x))
            model.eval()
            assert is_active(model)
            close(model(x), net(x))

    def test_put_in_their_place(self, net: Net, x: torch.Tensor, fuse: bool) -> None:
        model = folded(net, x, fuse)
        for network in (model, net):
            network.c.bias = None
            network.b.weight = nn.Parameter(torch.ones(4).half())
        with torch.no_grad():
            assert not is_active(model)
            close(model(x), net(x))
            model.eval()
            assert is_active(model)
            close(model(x), net(x))

    def test_computed_from_others(self, net: Net, x: torch.Tensor, fuse: bool) -> None:
        model = folded(net, x, fuse)
        for network in (model, net):
            weight_norm(network.c).eval()
        with torch.no_grad():
            for network in (model, net):
                network.c.parametrizations.weight.original0.mul_(2)
            assert not is_active(model)
            close(model(x), net(x))

    def test_without_statistics(self, net: Net, x: torch.Tensor, fuse: bool) -> None:
        model = folded(net, x, fuse)
        for network in (model, net):
            network.b.running_mean = network.b.running_var = None
            network.eval()
        with torch.no_grad():
            close(model(x), net(x))


def sequence() -> nn.Sequential:
    net = Net()
    return nn.Sequential(nn.Identity(), net.c, net.b, nn.ReLU())


def aliased() -> Net:
    net = Net()
    net.again = nn.ModuleList([net.b])
    return net


APART = ("first.0", "second.b")  # the layers of :class:`Apart`


class TestPlaces:
    @pytest.mark.parametrize(
        ("make", "conv", "norm", "change"),
        [
            pytest.param(Net, "c", "b", lambda m, other: setattr(m, "b", nn.Identity()), id="norm"),
            pytest.param(Net, "c", "b", lambda m, other: setattr(m, "c", other), id="conv"),
            pytest.param(aliased, "c", "b", lambda m, other: setattr(m, "b", nn.Identity()), id="one of two names"),
            pytest.param(Apart, *APART, lambda m, other: m.second.update({"b": nn.Identity()}), id="in a dict"),
            pytest.param(Apart, *APART, lambda m, other: setattr(m, "first", nn.ModuleList([other])), id="parent"),
            pytest.param(sequence, "1", "2", lambda m, other: m.__delitem__(2), id="deleted"),
            pytest.param(sequence, "1", "2", lambda m, other: m.__setitem__(1, other), id="in a sequence"),
            pytest.param(
                sequence, "1", "2", lambda m, other: (m.__delitem__(3), m.__setitem__(2, nn.Tanh())), id="after another"
            ),
            pytest.param(
                sequence, "1", "2", lambda m, other: (m.__delitem__(0), m.__setitem__(1, nn.Tanh())), id="moved"
            ),
        ],
    )
    @pytest.mark.parametrize("again", [same, copy.deepcopy, pickled])
    def test_a_layer_whose_partner_is_gone_computes_itself_alone(
        self, x: torch.Tensor, make: Any, conv: str, norm: str, change: Any, again: Any
    ) -> None:
        net, other = make().half().eval(), nn.Conv2d(4, 4, 3, padding=1).half()
        model = copy.deepcopy(net)
        fold_layers(model.get_submodule(conv), model.get_submodule(norm), model)
        model = again(model)
        with torch.no_grad():
            assert model.get_submodule(conv).folded_pair.is_active
            close(model(x), net(x))
            change(model, other)
            change(net, other)
            close(model(x), net(x))

    def test_a_change_elsewhere_does_not_matter(self, x: torch.Tensor) -> None:
        model = nn.Sequential(Net(), nn.ReLU()).half().eval()
        fold_layers(model[0].c, model[0].b, model)
        model[1] = nn.Tanh()
        moved = nn.Sequential(nn.Identity(), model[0])
        assert is_active(moved[1])


class TestInferenceMode:
    def test_gradients_follow_after_folding_in_it(self, net: Net, x: torch.Tensor) -> None:
        nn.init.constant_(net.requires_grad_(False).b.bias, 20)  # so that no rounding changes a sign
        model = folded(net, x)
        a, b = (x.clone().requires_grad_() for _ in range(2))
        with torch.inference_mode():
            model.load_state_dict(Net().half().state_dict())
            model.load_state_dict(net.state_dict())
            model.eval()
        assert model.c.folded_pair.is_active
        model(a).sum().backward()
        net(b).sum().backward()
        close(a.grad, b.grad)

    def test_parameters_that_are_made_in_it_are_folded(self, x: torch.Tensor) -> None:
        with torch.inference_mode():
            net = Net().half().eval()
            model = folded(net, x)
            assert is_active(model)
            close(model(x), net(x))
            close(copy.deepcopy(model)(x), net(x))
            others = doubled(dict(net.named_parameters()))
            close(functional_call(model, others, (x,)), functional_call(net, others, (x,)))


class TestMemory:
    def test_it_stays_the_same_where_captured_graphs_read_it(self, net: Net, x: torch.Tensor) -> None:
        model, other = folded(net, x), Net().half().eval()
        weight, bias = model.c.folded_weight, model.c.folded_bias
        before = weight.clone()
        model.load_state_dict(other.state_dict())
        model.eval()
        assert not torch.equal(weight, before)
        assert model.c.folded_weight is weight
        assert model.c.folded_bias is bias
        with torch.no_grad():
            close(model(x), other(x))

    def test_folding_the_same_leaves_saved_tensors_alone(self, net: Net, x: torch.Tensor) -> None:
        model = folded(net.requires_grad_(False), x)
        y = model(x.requires_grad_())
        model.eval()
        y.sum().backward()  # else: a variable needed for gradient computation has been modified in place
        assert x.grad is not None


@pytest.mark.parametrize("fuse", [False, True])
def test_results_beyond_the_dtype_are_left_to_the_layers(net: Net, x: torch.Tensor, fuse: bool) -> None:
    for tensor, value in ((net.c.weight, 0), (net.c.bias, 0), (net.b.running_mean, 300), (net.b.running_var, 1e-6)):
        nn.init.constant_(tensor, value)
    nn.init.constant_(net.c.weight[:, :, 1, 1], 75)  # whose sum over the channels is the mean
    x = torch.ones_like(x)
    model, other = folded(net, x, fuse), Net().half().eval()
    with torch.no_grad():
        assert net(x).isfinite().all()
        assert not is_active(model)
        close(model(x), net(x))
        model.load_state_dict(other.state_dict())
        assert is_active(model)
        close(model(x), other(x))


@pytest.mark.parametrize("convert", [
    lambda m: m.float(), lambda m: m.bfloat16(), lambda m: m.double(), lambda m: m.to("cpu"),
    lambda m: m.to(memory_format=torch.channels_last),
])  # fmt: skip
def test_conversions_fold_again(net: Net, x: torch.Tensor, convert: Callable[[nn.Module], nn.Module]) -> None:
    model = convert(folded(net, x))
    convert(net)
    with torch.no_grad():
        x = x.to(net.c.weight.dtype)
        assert is_active(model)
        close(model(x), net(x))
        exact = net.c.weight * (net.b.weight / (net.b.running_var + net.b.eps).sqrt())[:, None, None, None]
        close(model.c.folded_weight, exact)


def test_parameters_without_values_are_folded_when_they_have_some(net: Net, x: torch.Tensor) -> None:
    model = folded(net, x).to("meta").eval()
    model.to_empty(device="cpu").load_state_dict(net.state_dict())
    with torch.no_grad():
        assert is_active(model)
        close(model(x), net(x))


class TestCopies:
    @pytest.mark.parametrize("again", [copy.deepcopy, pickled])
    def test_they_notice_changes_of_their_own(self, net: Net, x: torch.Tensor, again: Any) -> None:
        with torch.no_grad():
            net.c.weight.mul_(2)  # is a change that copies do not count
            model = folded(net, x)
            made = again(model)
            assert is_active(made)
            made.c.weight.mul_(2)
            assert not is_active(made)
            assert is_active(model)
            close(model(x), net(x))
            net.c.weight.mul_(2)
            close(made(x), net(x))

    @pytest.mark.parametrize("again", [copy.deepcopy, pickled])
    def test_one_of_a_changed_pair_is_changed(self, net: Net, x: torch.Tensor, again: Any) -> None:
        model = folded(net, x)
        with torch.no_grad():
            for network in (model, net):
                network.c.weight.mul_(2)
            made = again(model)
            close(made(x), net(x))
            close(made.eval()(x), net(x))
            assert is_active(made)


@pytest.mark.long
class TestCompiled:
    @pytest.fixture(autouse=True)
    def _fresh_traces(self) -> Iterator[None]:
        torch._dynamo.reset()
        yield
        torch._dynamo.reset()

    @pytest.mark.parametrize("fuse", [False, True])
    def test_the_graph_has_no_normalisation_and_follows_loaded_parameters(
        self, net: Net, x: torch.Tensor, fuse: bool
    ) -> None:
        model, other, graphs = folded(net, x, fuse), Net().half().eval(), []

        def keep(module: torch.fx.GraphModule, inputs: Any) -> Any:
            graphs.append((module.code, sum(isinstance(i, torch.Tensor) for i in inputs)))
            return module.forward

        compiled = torch.compile(model, fullgraph=True, dynamic=False, backend=keep)
        with torch.no_grad():
            close(compiled(x), net(x))
            model.load_state_dict(other.state_dict())
            close(compiled(x), other(x))
        ((code, count),) = graphs
        assert "batch_norm" not in code
        assert count == 3  # the input, and the folded filter and bias

    @pytest.mark.parametrize("fuse", [False, True])
    def test_parameters_of_a_functional_call_count(self, net: Net, x: torch.Tensor, fuse: bool) -> None:
        model, others = folded(net, x, fuse), doubled(dict(net.named_parameters()))
        compiled = torch.compile(lambda p, x: functional_call(model, p, (x,)), fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            close(compiled(others, x), functional_call(net, others, (x,)))

    @pytest.mark.parametrize("change", [
        lambda m: setattr(m, "b", nn.Identity()), lambda m: setattr(m.c, "weight", nn.Parameter(2 * m.c.weight)),
    ])  # fmt: skip
    def test_a_change_afterwards_counts(self, net: Net, x: torch.Tensor, change: Any) -> None:
        model = copy.deepcopy(net)
        fold_layers(model.c, model.b, model)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            close(compiled(x), net(x))
            change(model)
            change(net)
            close(compiled(x), net(x))
