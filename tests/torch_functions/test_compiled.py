"""Graphs that ``torch.compile`` traces have PyTorch's own calls where these are selected, and operators elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.kernels.triton.programs import interpreted
from tilewise.ops import OPS
from torch_functions.compare import CONVS, assert_same, close, half

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")

KERNEL = {"grouped_conv": "16x16x16_flat_w1_s2_g1_k1", "gemm": "16x16x16_plain_w1_s2_g2_k1"}
CALL = {"grouped_conv": "vendor_cudnn", "gemm": "vendor_cublas"}
ATEN = {
    "forward": "aten.convolution",
    "bwd_data": "aten.convolution_backward",
    "bwd_weight": "aten.convolution_backward",
}
OPERATORS = {"forward": "tilewise.conv", "bwd_data": "tilewise.conv_bwd_data", "bwd_weight": "tilewise.conv_bwd_weight"}


class Graphs:
    """A compiler that runs graphs as they are and counts their calls."""

    def __init__(self) -> None:
        self.forward: Counter[str] = Counter()
        self.backward: Counter[str] = Counter()
        self.backend = aot_autograd(fw_compiler=self._into(self.forward), bw_compiler=self._into(self.backward))

    def _into(self, counter: Counter[str]) -> Callable[..., Any]:
        def compile_graph(module: torch.fx.GraphModule, _: Any) -> Any:
            targets = (str(node.target).removesuffix(".default") for node in module.graph.nodes)
            counter.update(t for t in targets if t.startswith(("tilewise.", "aten.conv", "aten.mm")))
            return make_boxed_func(module.forward)

        return compile_graph


@pytest.fixture(autouse=True)
def _fresh_traces() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def serve(op: str, *left: str) -> Any:
    """Install dispatchers whose first candidate is PyTorch's call for the variants `left`, and a kernel for others."""
    orders = {v: (CALL[op], KERNEL[op]) if v in left else (KERNEL[op], CALL[op]) for v in OPS[op].variants}
    return ours.use(*(dispatcher_of(op, variant, *configs) for variant, configs in orders.items()))


def net(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ours.conv2d(x, w, padding=1).relu()


def theirs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return own.conv2d(x, w, padding=1).relu()


@pytest.mark.long
@pytest.mark.parametrize(
    "left", [(), ("forward",), ("bwd_data",), ("bwd_weight",), ("forward", "bwd_data", "bwd_weight")]
)
def test_each_pass_of_a_convolution_is_decided_by_itself(left: tuple[str, ...]) -> None:
    graphs = Graphs()
    compiled = torch.compile(net, fullgraph=True, dynamic=False, backend=graphs.backend)
    with serve("grouped_conv", *left):
        assert_same(compiled, theirs, half(1, 4, 6, 5), half(6, 4, 3, 3))
    names = {v: (ATEN if v in left else OPERATORS)[v] for v in OPERATORS}
    assert graphs.forward == Counter([names["forward"]])
    assert graphs.backward == Counter([names["bwd_data"], names["bwd_weight"]])


@pytest.mark.parametrize("vendor", [True, False])
def test_products(vendor: bool) -> None:
    graphs = Graphs()
    compiled = torch.compile(ours.matmul, fullgraph=True, dynamic=False, backend=graphs.backend)
    with serve("gemm", *(["universal"] if vendor else [])):
        assert_same(compiled, torch.matmul, half(5, 8), half(7, 8).t())
    name = "aten.mm" if vendor else "tilewise.mm"
    assert (graphs.forward, graphs.backward) == (Counter([name]), Counter([name, name]))


@pytest.mark.long
def test_sizes_that_are_symbols_are_decided_when_the_operator_runs() -> None:
    graphs = Graphs()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend=graphs.backend)
    with serve("grouped_conv", *OPERATORS):
        for height in (6, 7):
            x, w = half(2, 4, height, 5), half(6, 4, 3, 3)
            close(compiled(x, w), theirs(x, w))
    assert set(graphs.forward) == {"tilewise.conv"}


def test_what_no_kernel_computes_is_pytorch_s_call() -> None:
    graphs = Graphs()
    compiled = torch.compile(net, fullgraph=True, dynamic=False, backend=graphs.backend)
    narrow = dispatcher_of("grouped_conv", "forward", "16x16x16_point_w1_s2_g1_k1")  # computes 1x1 filters alone
    with torch.no_grad(), ours.use(narrow):
        x, w = half(1, 4, 6, 5), half(6, 4, 3, 3)
        close(compiled(x, w), theirs(x, w))
    assert graphs.forward == Counter(["aten.convolution"])


@pytest.mark.long
@pytest.mark.parametrize("name", ["groups, stride, dilation", "same, even", "3D", "no batch"])
def test_memory_format_of_results_does_not_depend_on_the_choice(name: str) -> None:
    """Dynamo knows the operator's result only, so PyTorch's must have the same strides."""
    x, w, options = CONVS[name]
    f = ours.conv2d if len(w) == 4 else ours.conv3d
    strides = []
    for left in ((), ("forward",)):
        torch._dynamo.reset()
        compiled = torch.compile(f, fullgraph=True, dynamic=False, backend="aot_eager")
        with torch.no_grad(), serve("grouped_conv", *left):
            strides.append(compiled(half(*x), half(*w), **options).stride())
    assert strides[0] == strides[1]


@pytest.mark.long
def test_graphs_name_the_dispatchers_that_chose() -> None:
    """Compilers keep graphs on disk by their text; one that another model chose for must not be found."""
    texts = []

    def keep(module: torch.fx.GraphModule, _: Any) -> Any:
        texts.append(module.code)
        return module.forward

    for left in ((), ("forward",), ("forward",)):
        torch._dynamo.reset()
        with torch.no_grad(), serve("grouped_conv", *left):
            torch.compile(net, fullgraph=True, dynamic=False, backend=keep)(half(1, 4, 6, 5), half(6, 4, 3, 3))
    assert texts[0] != texts[1] == texts[2]


@pytest.mark.long
def test_inductor_takes_the_graph() -> None:
    compiled = torch.compile(net, fullgraph=True, dynamic=False)
    with serve("grouped_conv", "forward", "bwd_weight"):
        assert_same(compiled, theirs, half(1, 4, 6, 5), half(6, 4, 3, 3))
