"""Graphs get kernels where these are predicted to be faster, with equal results and gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from small_model import write_model
from tilewise.dispatch import Dispatcher
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import inductor
from torch_functions.compare import CONVS, assert_same, close, half
from torch_functions.inductor.graphs import compiled, fixed, serve

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")

VARIANTS = ("forward", "bwd_data", "bwd_weight")
OPERATORS = {"forward": "tilewise.conv", "bwd_data": "tilewise.conv_bwd_data", "bwd_weight": "tilewise.conv_bwd_weight"}


def net(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return own.conv2d(x, w, padding=1)


@pytest.mark.long
@pytest.mark.parametrize("won", [(), ("forward",), ("bwd_data",), ("bwd_weight",), VARIANTS])
def test_each_pass_of_a_convolution_is_decided_by_itself(won: tuple[str, ...]) -> None:
    function, graphs = compiled(net)
    with serve(*won):
        assert_same(function, net, half(1, 4, 6, 5), half(6, 4, 3, 3))
    forward, backward = graphs.closed()
    assert forward == Counter([OPERATORS["forward"] if "forward" in won else "aten.convolution"])
    gradients = [OPERATORS[v] for v in VARIANTS[1:] if v in won]
    assert backward == Counter(gradients + (["aten.convolution_backward"] if len(gradients) < 2 else []))


@pytest.mark.long
@pytest.mark.parametrize("won", [("bwd_weight",), VARIANTS])
def test_gradient_of_a_bias(won: tuple[str, ...]) -> None:
    function, graphs = compiled(own.conv2d)
    with serve(*won):
        assert_same(function, own.conv2d, half(2, 4, 6, 5), half(6, 4, 3, 3), half(6))
    assert ("aten.sum.dim_IntList" in graphs.backward) is (won == VARIANTS)


@pytest.mark.long
@pytest.mark.parametrize("name", ["groups, stride, dilation", "same, even", "3D, no batch"])
def test_geometries(name: str) -> None:
    x, w, options = CONVS[name]
    f = own.conv2d if len(w) == 4 else own.conv3d
    function, graphs = compiled(f)
    with serve(*VARIANTS):
        assert_same(function, f, half(*x), half(*w), **options)
    assert graphs.closed()[0] == Counter(["tilewise.conv"])


@pytest.mark.long
@pytest.mark.parametrize("last", [True, False])
def test_memory_of_the_results_is_that_of_the_network(last: bool) -> None:
    """Results keep the strides that PyTorch's own would have where the input is channels-last."""
    layout = torch.channels_last if last else torch.contiguous_format
    x, w = (t.to(memory_format=layout) for t in (half(2, 4, 6, 5), half(8, 4, 3, 3)))
    function, graphs = compiled(lambda x, w: net(net(x, w).relu(), half(4, 8, 3, 3)))
    with torch.no_grad(), serve("forward"):
        y = function(x, w)
    assert graphs.closed()[0] == Counter(["tilewise.conv_ended", "tilewise.conv"])
    assert y.is_contiguous(memory_format=torch.channels_last)
    forced = [n for n in graphs.forward if "force_stride_order" in n]
    assert len(forced) == (1 if last else 3)  # the filter that the function makes itself; also the operands


@pytest.mark.long
@pytest.mark.parametrize("won", [True, False])
@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (torch.matmul, (half(5, 8), half(8, 7))),
        (torch.matmul, (half(8, 5).t(), half(7, 8).t())),
        (torch.matmul, (half(2, 3, 8), half(8, 7))),
        (own.linear, (half(5, 8), half(7, 8), half(7))),
        (own.linear, (half(2, 3, 8), half(7, 8), half(7))),
        (torch.addmm, (half(5, 7), half(5, 8), half(8, 7))),
        (torch.addmm, (half(7), half(5, 8), half(8, 7))),
    ],
)
def test_products(function: Callable[..., Any], operands: tuple[torch.Tensor, ...], won: bool) -> None:
    compiled_function, graphs = compiled(function)
    with serve(*(["universal"] if won else [])):
        assert_same(compiled_function, function, *operands)
    forward, backward = graphs.closed()
    assert (sum(forward.values()), sum(backward.values())) == (1, 2)
    assert all(name.startswith("tilewise.") is won for name in (*forward, *backward))


@pytest.mark.long
@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (torch.bmm, (half(2, 3, 8), half(2, 8, 7))),
        (own.conv1d, (half(1, 4, 6), half(6, 4, 3))),
        (own.conv_transpose2d, (half(1, 4, 6, 5), half(4, 6, 3, 3))),
        (own.conv2d, (torch.randn(1, 4, 6, 5), torch.randn(6, 4, 3, 3))),
        (lambda c, a, b: torch.addmm(c, a, b, beta=2), (half(5, 7), half(5, 8), half(8, 7))),
        (torch.addmm, (half(1, 7), half(5, 8), half(8, 7))),
        (torch.mm, (half(5, 16)[:, ::2], half(8, 7))),  # cuBLAS reads rows with gaps, kernels would copy them
    ],
)
def test_what_kernels_do_not_compute_stays(function: Callable[..., Any], operands: tuple[torch.Tensor, ...]) -> None:
    compiled_function, graphs = compiled(function)
    with torch.no_grad(), serve(*VARIANTS, "universal"):
        close(compiled_function(*operands), function(*operands))
    assert not any(name.startswith("tilewise.") for name in graphs.forward)


@pytest.mark.long
def test_sizes_that_are_symbols_stay() -> None:
    function, graphs = compiled(net, dynamic=True)
    with torch.no_grad(), serve(*VARIANTS):
        for height in (6, 7):
            x, w = half(2, 4, height, 5), half(6, 4, 3, 3)
            close(function(x, w), net(x, w))
    assert set(graphs.closed()[0]) == {"aten.convolution"}


@pytest.mark.parametrize("kernel", ["16x16x16_point_w1_s2_g1_k1", "16x16x16_flat_w1_s2_g1_k1"])
def test_what_nothing_compares_stays(kernel: str) -> None:
    """No kernel computes it, or there is no model."""
    function, graphs = compiled(net)
    with torch.no_grad(), ours.use(dispatcher_of("grouped_conv", "forward", kernel)):
        function(half(1, 4, 6, 5), half(6, 4, 3, 3))
    assert graphs.closed()[0] == Counter(["aten.convolution"])


@pytest.mark.parametrize(
    ("after", "won"),
    [
        (lambda y, w: net(y.relu(), w), True),  # the plain call needs a pass for the activation
        (lambda y, w: y.relu().sum((2, 3)), False),  # that the sum takes with it
        (lambda y, w: net(y.relu().reshape(1, 6, 6, 5), w), True),
    ],
)
def test_a_pass_counts_where_the_result_is_written(after: Callable[..., Any], won: bool) -> None:
    function, graphs = compiled(lambda x, v, w: after(net(x, v), w), launch="graph")
    with torch.no_grad(), fixed("grouped_conv", 0.0085, 0.009):  # the pass takes 0.0017 ms
        function(half(1, 4, 6, 5), half(6, 4, 3, 3), half(4, 6, 3, 3))
    assert graphs.closed()[0]["tilewise.conv_ended"] == won


@pytest.mark.parametrize(
    ("launch", "cudagraphs", "pytorch_ms", "won"),
    [
        ("eager", False, 0.04, False),  # the host takes longer to launch the kernel
        ("eager", False, 0.06, True),
        ("eager", True, 0.04, True),  # Inductor captures a CUDA graph
        ("graph", False, 0.04, True),  # the caller does
    ],
)
def test_short_kernels_need_cuda_graphs(launch: str, cudagraphs: bool, pytorch_ms: float, won: bool) -> None:
    function, graphs = compiled(net, launch=launch)
    settings = torch._inductor.config.patch({"triton.cudagraphs": cudagraphs})
    with torch.no_grad(), fixed("grouped_conv", 0.01, pytorch_ms), settings:
        function(half(1, 4, 6, 5), half(6, 4, 3, 3))
    assert graphs.closed()[0]["tilewise.conv"] == won


@pytest.mark.parametrize(("kernel_ms", "won"), [(1.75, True), (1.85, False)])
def test_little_gain_is_left_to_pytorch(kernel_ms: float, won: bool) -> None:
    function, graphs = compiled(net)
    with torch.no_grad(), fixed("grouped_conv", kernel_ms, 2.0):
        function(half(1, 4, 6, 5), half(6, 4, 3, 3))
    assert graphs.closed()[0]["tilewise.conv"] == won


def test_programs_without_python_stay_plain() -> None:
    function, graphs = compiled(net)
    with torch.no_grad(), serve("forward"), torch._inductor.config.patch(cpp_wrapper=True):
        function(half(1, 4, 6, 5), half(6, 4, 3, 3))
    assert graphs.closed()[0] == Counter(["aten.convolution"])


def test_other_passes_run_first() -> None:
    order = []

    def first(graph: torch.fx.Graph) -> None:
        order.append([n.target for n in graph.nodes if n.op == "call_function"])

    module = torch.fx.Graph()
    inductor.GraphPass([first, first])(module)
    assert order == [[], []]


class TestIdentity:
    @pytest.mark.long
    def test_another_model_or_switch_is_another_identity(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        found = []
        for sign in (1.0, -1.0):
            write_model(tmp_path / str(sign), trees=20, sign=sign, target="grouped_conv_forward_fp16_sm90", vendor=True)
            for _ in range(2):
                with ours.use(Dispatcher.from_folder(tmp_path / str(sign))):
                    found.append(inductor.GraphPass().uuid())
        monkeypatch.setenv("TILEWISE_VENDOR", "off")
        with ours.use(Dispatcher.from_folder(tmp_path / "1.0")):
            found.append(inductor.GraphPass().uuid())
        assert found[0] == found[1] != found[2] == found[3]
        assert len(set(found)) == 3

    @pytest.mark.long
    def test_a_pass_without_identity_keeps_graphs_out_of_the_cache(self) -> None:
        assert inductor.GraphPass(lambda graph: None).uuid() is None
        assert inductor.GraphPass(inductor.GraphPass()).uuid() != inductor.GraphPass().uuid()

    @pytest.mark.long
    def test_missing_models_are_not_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        """The identity asks for all dtypes, of which a network uses one."""
        assert inductor.GraphPass().uuid()
        assert not caplog.records
