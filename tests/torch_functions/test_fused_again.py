"""A fused graph computes only where the network's code would compute the same: after changes, and inside of others."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as own

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch._graph import _Tracer
from torch_functions.compare import close, half
from torch_functions.networks import small
from torch_functions.predicting import predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


@pytest.fixture(autouse=True)
def _winning() -> Iterator[None]:
    with ours.use(*predicting()):
        yield


@pytest.fixture
def x() -> torch.Tensor:
    return half(2, 4, 3, 3)


class Scaled(nn.Module):  # type: ignore[misc] # torch has no types here
    """A network that a function ends."""

    scale = 2.0

    def __init__(self, k: object = None, end: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.conv, self.k, self.end = nn.Conv2d(4, 4, 1), k, end
        self.register_buffer("factor", torch.tensor(2.0))
        self.register_buffer("table", torch.tensor([2.0, 3.0]))
        self.register_buffer("flag", torch.tensor(False))
        self.register_buffer("mask", None)
        self.plain = torch.tensor(2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if isinstance(x, list):
            x = torch.cat(x)
        y = own.relu(self.conv(x))
        return y if self.end is None else self.end(self, y)


def load(m: nn.Module, **values: torch.Tensor) -> None:
    m.load_state_dict(m.state_dict() | values)


def optimised(original: nn.Module, x: object, **options: Any) -> tuple[nn.Module, nn.Module, ours.OptimizeReport]:
    """Return a network without gradients, its optimised copy, and the report."""
    model, report = ours.optimize(original.half().eval().requires_grad_(False), x, launch="graph", **options)
    return original, model, report


KEPT: dict[str, tuple[Callable[[], object], Callable[[Any], float], Callable[[Any], object]]] = {
    "list": (lambda: [2.0], lambda m: m.k[0], lambda m: m.k.__setitem__(0, 5.0)),
    "dict": (lambda: {"a": 2.0}, lambda m: m.k["a"], lambda m: m.k.update(a=5.0)),
    "set": (lambda: {2.0}, lambda m: sum(m.k), lambda m: m.k.add(5.0)),
    "list in a tuple": (lambda: ([2.0],), lambda m: m.k[0][0], lambda m: m.k[0].__setitem__(0, 5.0)),
    "dict in a list": (lambda: [{"a": 2.0}], lambda m: m.k[0]["a"], lambda m: m.k[0].update(a=5.0)),
    "object": (lambda: SimpleNamespace(a=2.0), lambda m: m.k.a, lambda m: setattr(m.k, "a", 5.0)),
    "object in an object": (
        lambda: SimpleNamespace(h=SimpleNamespace(a=2.0)), lambda m: m.k.h.a, lambda m: setattr(m.k.h, "a", 5.0),
    ),
    "list in an object": (
        lambda: SimpleNamespace(h=[2.0]), lambda m: m.k.h[0], lambda m: m.k.h.__setitem__(0, 5.0),
    ),
    "object with a new attribute": (
        lambda: SimpleNamespace(a=2.0), lambda m: getattr(m.k, "b", 2.0), lambda m: setattr(m.k, "b", 5.0),
    ),
    "default of the class": (lambda: None, lambda m: m.scale, lambda m: setattr(m, "scale", 5.0)),
    "buffer that was None": (
        lambda: None, lambda m: 2.0 if m.mask is None else 5.0, lambda m: setattr(m, "mask", torch.ones(1)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_contents_of_attributes_that_change_count(x: torch.Tensor, name: str) -> None:
    k, read, change = KEPT[name]
    original, model, report = optimised(Scaled(k(), lambda m, y: y * read(m)), x)
    assert report.layers[0].fused == ("relu",)
    with torch.no_grad():
        close(model(x), original(x))
        for network in (original, model):
            change(network)
        close(model(x), original(x))


def circle() -> list[object]:
    made: list[object] = [2.0]
    made.append(SimpleNamespace(all=made))
    return made


@pytest.mark.parametrize(("k", "is_fused"), [(circle(), True), ([*range(20_000)], False)])
def test_attributes_are_looked_at_once_and_not_without_end(
    x: torch.Tensor, k: list[Any], is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, model, _ = optimised(Scaled(k, lambda m, y: y * m.k[0]), x)
    fused = model.forward.__self__
    assert fused._applies(x) is is_fused
    with torch.no_grad():
        close(model(x), original(x))
        for network in (original, model):
            network.k[0] = 5.0
        assert not fused._applies(x)
        close(model(x), original(x))


def test_marks_of_compilers_do_not_count(x: torch.Tensor) -> None:
    _, model, _ = optimised(Scaled(), x)
    model._is_torch_compile = model._compiled_call_impl = None
    assert model.forward.__self__._applies(x)


READ: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], dict[str, torch.Tensor]]] = {
    "item": (lambda m, y: y * m.factor.item(), {"factor": torch.tensor(5.0)}),
    "float": (lambda m, y: y * float(m.factor), {"factor": torch.tensor(5.0)}),
    "of a view": (lambda m, y: y * m.table[0].item(), {"table": torch.tensor([5.0, 3.0])}),
    "tolist": (lambda m, y: y * m.table.tolist()[0], {"table": torch.tensor([5.0, 3.0])}),
    "numpy": (lambda m, y: y * float(m.table.numpy()[0]), {"table": torch.tensor([5.0, 3.0])}),
    "equal": (lambda m, y: y * 2 if torch.equal(m.factor, m.table[0]) else y, {"factor": torch.tensor(5.0)}),
    "branch": (lambda m, y: y * 2 if m.flag else y, {"flag": torch.tensor(True)}),
    "count": (lambda m, y: y * (1 + m.table.nonzero().shape[0]), {"table": torch.zeros(2)}),
}


@pytest.mark.parametrize("name", READ)
def test_a_network_that_reads_values_of_buffers_is_not_fused(x: torch.Tensor, name: str) -> None:
    end, values = READ[name]
    original, model, report = optimised(Scaled(end=end), x)
    assert report.layers[0].replaced
    assert report.layers[0].fused == ()
    with torch.no_grad():
        for network in (original, model):
            load(network, **values)
        close(model(x), original(x))


def test_values_of_other_tensors_are_read_anew(x: torch.Tensor) -> None:
    original, model, _ = optimised(Scaled(end=lambda m, y: y * m.plain.item()), x)
    with torch.no_grad():
        for network in (original, model):
            network.plain.fill_(5.0)
        close(model(x), original(x))


def test_buffers_that_are_operands_may_change(x: torch.Tensor) -> None:
    original, model, report = optimised(Scaled(end=lambda m, y: y * m.factor), x)
    assert report.layers[0].fused == ("relu",)
    with torch.no_grad():
        for network in (original, model):
            load(network, factor=torch.tensor(5.0))
        close(model(x), original(x))


def test_buffers_that_a_network_changes_are_changed_by_calls_alone(x: torch.Tensor) -> None:
    original, model, report = optimised(Scaled(end=lambda m, y: y * (1 + 0 * m.factor.add_(1).sum())), x)
    assert report.layers[0].fused == ()
    assert original.factor == model.factor == 2
    with torch.no_grad():
        model(x)
    assert model.factor == 3


def test_arguments_have_the_example_s_type(x: torch.Tensor) -> None:
    original, model, report = optimised(Scaled(), x)
    assert report.layers[0].fused == ("relu",)
    with torch.no_grad():
        close(model([x, x]), original([x, x]))
        close(model(x), original(x))


def test_an_example_may_be_a_list(x: torch.Tensor) -> None:
    class First(Scaled):
        def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
            return own.relu(self.conv(x[0]))

    original, model, report = optimised(First(), [x])
    assert report.layers[0].fused == ("relu",)
    fused = model.forward.__self__
    assert fused._applies([x])
    assert not fused._applies(x)
    with torch.no_grad():
        close(model([x]), original([x]))
        close(model(x), original(x))


def asking(m: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return y if torch.is_grad_enabled() else y * 2


def setting(m: nn.Module, y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return y * 2


@pytest.mark.parametrize("end", [asking, setting])
@pytest.mark.parametrize("at_first", [False, True])
@pytest.mark.parametrize("again", [lambda m: m, lambda m: pickle.loads(pickle.dumps(m))], ids=["made", "pickled"])
def test_a_network_that_asks_for_gradients_or_sets_them(
    x: torch.Tensor, end: Any, at_first: bool, again: Callable[[nn.Module], nn.Module]
) -> None:
    with torch.set_grad_enabled(at_first):
        original, model, _ = optimised(Scaled(end=end), x)
    model = again(model)
    for mode in (True, False, True):
        a, b = (x.clone().requires_grad_() for _ in range(2))
        with torch.set_grad_enabled(mode):
            y, exact = model(a), original(b)
        close(y, exact)
        assert y.requires_grad is exact.requires_grad
        assert model.forward.__self__._applies(x) is not torch.is_grad_enabled()
        if y.requires_grad:
            y.sum().backward()
            exact.sum().backward()
            close(a.grad, b.grad)


def test_other_networks_are_fused_with_and_without_gradients(x: torch.Tensor) -> None:
    fused = optimised(Scaled(), x)[1].forward.__self__
    for mode in (True, False):
        with torch.set_grad_enabled(mode):
            assert fused._applies(x)


class Around(nn.Module):  # type: ignore[misc] # as above
    """A network with another one as a part, which it calls by a position or by a name."""

    def __init__(self, part: nn.Module, by_name: bool = False) -> None:
        super().__init__()
        self.part, self.head, self.by_name = part, nn.Conv2d(4, 4, 1).half(), by_name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x=x) if self.by_name else self.part(x)
        return own.relu(self.head(y))


def with_norm() -> nn.Module:
    layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())
    nn.init.normal_(layers[1].running_mean)

    class Normed(Scaled):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x)

    return Normed()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("inplace", [False, True])
def test_a_network_with_an_optimised_part_is_optimised(x: torch.Tensor, by_name: bool, inplace: bool) -> None:
    plain, part, _ = optimised(with_norm(), x)
    exact = Around(plain, by_name).eval()
    around = Around(part, by_name).eval()
    around.head.load_state_dict(exact.head.state_dict())
    model, report = ours.optimize(around, x, launch="graph", inplace=inplace)
    rows = {layer.name: layer.fused for layer in report.layers}
    assert rows["head"] == ("relu",)
    with torch.no_grad():
        close(model(x), exact(x))
        close(part(x), plain(x))
    assert part.forward.__self__._compute is not None


def test_graphs_of_an_optimised_network_are_those_of_its_code(x: torch.Tensor) -> None:
    _, part, _ = optimised(with_norm(), x)
    nodes = _Tracer().trace(Around(part).eval()).nodes
    assert [node.target for node in nodes if node.op == "call_module"] == [
        "part.layers.0", "part.layers.1", "part.layers.2", "head",
    ]  # fmt: skip
    assert not any(node.kwargs.get("activation") for node in nodes)


@pytest.mark.long
@pytest.mark.timeout(60)
def test_an_optimised_network_can_be_optimised_again() -> None:
    x, original = half(2, 4, 5, 4), small()
    model, report = ours.optimize(nn.Sequential(ours.optimize(original, x, launch="graph").model), x, launch="graph")
    assert not any(layer.fused for layer in report.layers)  # layers that are replaced are not looked at again
    with torch.no_grad():
        close(model(x), original(x))
