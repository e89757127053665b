"""The pass is installed for a block, for a thread or for one network, and nothing stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.utils import fresh_cache

from tilewise.errors import ConfigError
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import _operators as operators
from tilewise.torch import inductor
from torch_functions.compare import close, half
from torch_functions.inductor.graphs import serve


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    torch._dynamo.reset()
    with config.patch(post_grad_custom_pre_pass=None):
        yield
        inductor.disable()
        assert config.post_grad_custom_pre_pass is None


def installed() -> Any:
    return config.post_grad_custom_pre_pass


class TestEnable:
    def test_a_block_ends_with_the_setting_before(self) -> None:
        with inductor.enable():
            assert isinstance(installed(), inductor.GraphPass)
        assert installed() is None
        with pytest.raises(KeyError), inductor.enable():
            raise KeyError
        assert installed() is None

    def test_until_it_is_disabled(self) -> None:
        inductor.enable()
        assert isinstance(installed(), inductor.GraphPass)
        inductor.disable()
        assert installed() is None

    def test_a_second_time_changes_nothing(self) -> None:
        with inductor.enable():
            outer = installed()
            with inductor.enable():
                assert installed() is outer
            assert installed() is outer

    def test_another_library_s_pass_goes_on_running(self) -> None:
        ran: list[torch.fx.Graph] = []
        config.post_grad_custom_pre_pass = ran.append
        inductor.enable()
        graph = torch.fx.Graph()
        installed()(graph)
        assert ran == [graph]
        inductor.disable()
        assert installed() == ran.append
        config.post_grad_custom_pre_pass = None

    def test_what_others_installed_later_stays(self) -> None:
        inductor.enable()
        config.post_grad_custom_pre_pass = other = [torch.fx.Graph()].append
        inductor.disable()
        assert installed() == other
        config.post_grad_custom_pre_pass = None


class TestOptions:
    def test_of_a_mode(self) -> None:
        options = inductor.options("reduce-overhead")
        assert isinstance(options.pop("post_grad_custom_pre_pass"), inductor.GraphPass)
        assert options == torch._inductor.list_mode_options("reduce-overhead")
        assert installed() is None

    def test_torch_compile_takes_them(self) -> None:
        torch.compile(lambda x: x, options=inductor.options())


@pytest.mark.parametrize("version", ["2.10.1", "2.14.0+cpu"])
@pytest.mark.parametrize("install", [inductor.enable, inductor.options])
def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch, install: Any, version: str) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ConfigError, match=rf"tested with PyTorch 2\.11 to 2\.13, got {version[:4]}.*install one of"):
        install()
    assert installed() is None


class Net(nn.Module):  # type: ignore[misc] # torch has no types here
    """Convolutions and linear layers as networks have them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.point = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.point(nn.functional.silu(self.stem(x) + x)).relu()
        tokens = x.flatten(2).transpose(1, 2)
        return tokens + self.down(nn.functional.gelu(self.up(tokens)))


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
class TestInductor:
    def test_results_and_gradients(self) -> None:
        net, x = Net().half(), half(2, 8, 4, 4)
        compiled = torch.compile(net, options=inductor.options())
        with serve("forward", "bwd_data", "bwd_weight", "universal"), fresh_cache():
            with torch.no_grad():
                close(compiled(x), net(x))
            compiled(x).float().square().sum().backward()
        found = [p.grad for p in net.parameters()]
        net.zero_grad()
        net(x).float().square().sum().backward()
        for a, p in zip(found, net.parameters(), strict=True):
            close(a, p.grad)

    def test_operands_are_stored_as_kernels_read_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        last, stored = torch.channels_last, []

        def channels_last(t: torch.Tensor) -> torch.Tensor:
            stored.append(t.is_contiguous(memory_format=last))
            return as_before(t)

        as_before = operators.channels_last
        monkeypatch.setattr(operators, "channels_last", channels_last)
        before, after = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1, bias=False)
        net = nn.Sequential(before, nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1), after).half().eval()
        net, x = net.to(memory_format=last), half(2, 8, 16, 16).to(memory_format=last)
        with serve("forward"), fresh_cache(), torch.no_grad():
            torch.compile(net, options=inductor.options())(x)
        assert stored == [True] * 4

    def test_compiled_graphs_on_disk_belong_to_the_models(self) -> None:
        net, x = Net().half(), half(2, 8, 4, 4)
        hits = []
        with fresh_cache(), torch.no_grad():
            for won in (("forward",), ("forward",), ("universal",)):
                torch._dynamo.reset()
                counters.clear()
                with serve(*won), inductor.enable():
                    close(torch.compile(net)(x), net(x))
                hits.append(counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"])
        assert (hits[0], hits[1] > 0, hits[2]) == (0, True, 0)
