"""Transposed convolutions: PyTorch's results and gradients by kernels of a convolution's gradient for its input."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.dispatch import Dispatcher
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.kernels.triton import TRITON, Kernel
from tilewise.kernels.triton.programs import interpreted
from tilewise.ops import GroupedConvProblem, Target
from tilewise.torch import _transposed as transposed
from tilewise.torch.decision import _host_costs as host_costs
from tilewise.torch.decision._host_costs import LaunchForm
from torch_functions.compare import assert_same, close, half
from torch_functions.predicting import Predicting, predicting

needs_interpreter = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
CALLS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {  # input, filter, arguments
    "plain": ((2, 3, 3, 4), (3, 4, 3, 2), {}),
    "as U-Nets have it": ((1, 4, 3, 3), (4, 2, 2, 2), {"stride": 2}),
    "output padding": ((1, 2, 3, 2), (2, 3, 3, 3), {"stride": 2, "padding": 1, "output_padding": (1, 0)}),
    "groups, dilation": ((1, 4, 4, 3), (4, 3, 3, 2), {"groups": 2, "stride": (2, 1), "dilation": (1, 2)}),
    "no batch": ((3, 4, 4), (3, 2, 3, 3), {"padding": [1]}),
    "3D": ((1, 4, 2, 3, 3), (4, 1, 2, 2, 3), {"groups": 2, "stride": (1, 2, 1), "padding": (1, 0, 1)}),
}
PROBLEM = GroupedConvProblem(1, 8, 4, 1, 4, 4, 2, 2, stride_h=2, stride_w=2)
KERNELS = ("16x16x16_flat_w1_s2_g1_k1", "16x16x16_flat_w1_s2_g1_k2")


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serve convolutions by kernels, and return the variants that dispatchers run."""
    variants, run = [], Dispatcher.run

    def record(self: Dispatcher, *args: Any, **kwargs: Any) -> Any:
        variants.append(self.target.variant)
        return run(self, *args, **kwargs)

    monkeypatch.setattr(Dispatcher, "run", record)
    with ours.use(*(dispatcher_of("grouped_conv", v, *KERNELS) for v in GroupedConvProblem.variants)):
        yield variants


def functions(ndim: int) -> tuple[Any, Any]:
    return (ours.conv_transpose2d, own.conv_transpose2d) if ndim == 2 else (ours.conv_transpose3d, own.conv_transpose3d)


@needs_interpreter
class TestFunctions:
    @pytest.mark.long
    @pytest.mark.parametrize("with_bias", [False, True])
    @pytest.mark.parametrize("name", CALLS)
    def test_results_and_gradients_are_pytorchs(self, name: str, with_bias: bool, ran: list[str]) -> None:
        x, w, options = CALLS[name]
        bias = [half(w[1] * options.get("groups", 1))] if with_bias else []
        y = assert_same(*functions(len(w) - 2), half(*x), half(*w), *bias, **options)
        assert sorted(ran) == ["bwd_data", "bwd_weight", "forward"]
        if y.dim() == len(w):
            assert y.is_contiguous(memory_format=torch.channels_last if len(w) == 4 else torch.channels_last_3d)

    def test_gradients_of_a_known_shape_are_computed_by_kernels_whoever_needed_them_first(
        self, ran: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        x, w, b = half(1, 4, 3, 3), half(4, 2, 2, 2), half(2).requires_grad_()
        with ours.use(dispatcher_of("grouped_conv", "bwd_data", "vendor_cudnn")):
            ours.conv_transpose2d(x, w, b).sum().backward()
            for _ in range(2):
                ran.clear()
                ours.conv_transpose2d(x.clone().requires_grad_(), w.clone().requires_grad_(), b).sum().backward()
                assert sorted(ran) == ["bwd_data", "bwd_weight", "forward"]

    def test_gradients_can_be_differentiated(self, ran: list[str]) -> None:
        x, w = half(1, 2, 3, 3), half(2, 3, 2, 2)

        def penalty(function: Any) -> tuple[torch.Tensor, ...]:
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            dx, dw = torch.autograd.grad(function(a, b, stride=2).square().sum(), (a, b), create_graph=True)
            second: tuple[torch.Tensor, ...] = torch.autograd.grad(dx.square().sum() + dw.square().sum(), (a, b))
            return second

        for mine, theirs in zip(*map(penalty, functions(2)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max()))
        assert len(ran) > 3

    def test_autocast(self, ran: list[str]) -> None:
        x, w, b = torch.randn(1, 2, 3, 3), torch.randn(2, 2, 2, 2), torch.randn(2)
        with torch.autocast("cpu", torch.float16):
            y = ours.conv_transpose2d(x, w, b)
            close(y, own.conv_transpose2d(x, w, b))
        assert y.dtype == torch.float16
        assert ran == ["bwd_data"]

    @pytest.mark.parametrize(("left", "trains", "later"), [
        (("bwd_data",), False, 0), (("bwd_data",), True, 3), (GroupedConvProblem.variants, True, 0),
    ])  # fmt: skip
    def test_a_known_call_that_is_left_to_pytorch_is_its_own(
        self, left: tuple[str, ...], trains: bool, later: int, ran: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
        x, w, b = half(1, 4, 3, 3), half(4, 2, 2, 2), half(2)
        with ours.use(*(dispatcher_of("grouped_conv", v, "vendor_cudnn") for v in left)):
            for count in (3 if trains else 1, later):
                ran.clear()
                if trains:
                    assert_same(ours.conv_transpose2d, own.conv_transpose2d, x, w, b, stride=2)
                else:
                    close(ours.conv_transpose2d(x, w, b, stride=2), own.conv_transpose2d(x, w, b, stride=2))
                assert len(ran) == count

    @pytest.mark.long
    def test_compiled_whole(self, ran: list[str]) -> None:
        def net(function: Any) -> Any:
            return lambda x, w, b: function(x, w, b, stride=2, output_padding=1).relu()

        compiled = torch.compile(net(ours.conv_transpose2d), fullgraph=True, backend="aot_eager")
        assert_same(compiled, net(own.conv_transpose2d), half(1, 4, 3, 3), half(4, 2, 3, 3), half(2))
        assert sorted(ran) == ["bwd_data", "bwd_weight", "forward"]

    @pytest.mark.parametrize(
        ("x", "w", "options"),
        [
            (half(1, 4, 3, 3), half(4, 2, 3, 3), {"dilation": 3, "output_padding": 2}),
            (torch.randn(1, 4, 3, 3), torch.randn(4, 2, 3, 3), {}),
        ],
        ids=["output padding that a dilation allows", "fp32"],
    )
    def test_other_calls_are_pytorchs(
        self, x: torch.Tensor, w: torch.Tensor, options: dict[str, Any], ran: list[str]
    ) -> None:
        close(ours.conv_transpose2d(x, w, **options), own.conv_transpose2d(x, w, **options))
        assert ran == []

    @pytest.mark.parametrize(
        ("x", "w", "bias", "options"),
        [
            ((1, 4, 3, 3), (3, 2, 3, 3), None, {}),
            ((1, 4, 3, 3), (4, 2, 3, 3), None, {"groups": 3}),
            ((1, 4, 3, 3), (4, 2, 3, 3), None, {"output_padding": 1}),
            ((1, 4, 1, 1), (4, 2, 1, 1), None, {"padding": 1}),
            ((1, 4, 3, 3), (4, 2, 3, 3), 3, {}),
            ((1, 4, 3, 3), (4, 2, 3, 3), None, {"stride": (1, 1, 1)}),
        ],
    )
    def test_mistakes_are_pytorchs_errors(
        self, x: Sequence[int], w: Sequence[int], bias: int | None, options: dict[str, Any], ran: list[str]
    ) -> None:
        operands = (half(*x), half(*w), None if bias is None else half(bias))
        messages = []
        for function in functions(2):
            with pytest.raises((RuntimeError, ValueError)) as raised:
                function(*operands, **options)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
        assert ran == []


SIZES, PAIRS = st.integers(1, 4), st.tuples(st.integers(0, 2), st.integers(0, 2))
STEPS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None)
@given(
    x=st.tuples(SIZES, SIZES), w=st.tuples(SIZES, SIZES), stride=STEPS, padding=PAIRS, end=PAIRS, dilation=STEPS,
    groups=st.integers(1, 2),
)  # fmt: skip
def test_the_result_has_pytorchs_size(
    x: tuple[int, int], w: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], end: tuple[int, int],
    dilation: tuple[int, int], groups: int,
) -> None:  # fmt: skip
    """The convolution with a result of the input's size, if there is one, and only where PyTorch computes the call."""
    tensors = torch.empty(2, 2 * groups, *x, device="meta"), torch.empty(2 * groups, 3, *w, device="meta")
    try:
        right = own.conv_transpose2d(*tensors, None, stride, padding, end, groups, dilation)
    except RuntimeError:
        right = None
    found = transposed.geometry_of(*tensors, transposed.Arguments(2, stride, padding, end, groups, dilation))
    if found is None:
        assert right is None or right.numel() == 0 or any(e >= s for e, s in zip(end, stride, strict=True))
        return
    assert right is not None
    assert tuple(found.sizes) == right.shape
    again = own.conv2d(torch.empty(right.shape, device="meta"), tensors[1], None, stride, padding, dilation, groups)
    assert again.shape == tensors[0].shape


@pytest.mark.long
def test_its_host_part_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_known": {}, "_BATCHES": 1, "_CALLS": 2, "_SIZE": 16}.items():
        monkeypatch.setattr(host_costs, name, value)
    layer, targets = nn.ConvTranspose2d(4, 4, 2), ["grouped_conv_bwd_data_fp16_sm90"]
    with ours.use(*predicting()):
        for form in LaunchForm:
            found = host_costs.host_cost(layer.eval(), form, targets, torch.float16, torch.device("cpu"))
            assert found.kernel_ms > 0


class Up(nn.Module):  # type: ignore[misc] # torch has no types here
    """A step up of a U-Net, and a layer whose size the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.to_size = nn.ConvTranspose2d(4, 8, 2, 2), nn.ConvTranspose2d(8, 4, 3, stride=2)
        self.conv = nn.Conv2d(8, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.to_size(torch.relu(self.conv(torch.relu(self.up(x)))), output_size=(10, 10)).sum((2, 3))


@needs_interpreter
class TestOptimize:
    @pytest.mark.long
    @pytest.mark.parametrize("trains", [False, True])
    def test_layers_are_replaced_by_prediction(self, trains: bool) -> None:
        model, x = Up().half().train(trains), half(1, 4, 2, 2)
        with ours.use(*predicting()):
            optimised, report = ours.optimize(model, x, launch="graph")
            assert type(optimised.up) is ours.ConvTranspose2d
            assert {layer.name: layer.replaced for layer in report.layers} == {
                "up": True, "to_size": True, "conv": True,
            }  # fmt: skip
            up, to_size, _ = report.layers
            assert [p.target.split("_sm90")[0].split("conv_")[1] for p in up.passes] == (
                ["bwd_data_fp16", "bwd_weight_fp16"] if trains else ["bwd_data_fp16"]  # the example needs no gradient
            )
            assert up.fused == ()
            assert to_size.passes[0].problem["Hi"] == 10
            assert optimised.state_dict().keys() == model.state_dict().keys()
            close(optimised(x), model(x))
            for again in (copy.deepcopy(optimised), pickle.loads(pickle.dumps(optimised))):
                close(again(x), model(x))

    def test_a_normalisation_after_one_stays(self) -> None:
        model, x = nn.Sequential(nn.ConvTranspose2d(4, 8, 2, 2), nn.BatchNorm2d(8), nn.ReLU()).half(), half(1, 4, 2, 2)
        with ours.use(*predicting()):
            optimised, report = ours.optimize(model.eval(), x, launch="graph")
            assert report.layers[0].replaced
            assert (report.folded, report.layers[0].fused) == ((), ())
            close(optimised(x), model(x))

    def test_a_class_that_computes_its_size_is_left(self) -> None:
        class Own(nn.ConvTranspose2d):  # type: ignore[misc] # as above
            def _output_padding(self, *args: Any) -> list[int]:
                return [1, 1]

        with ours.use(*predicting()):
            report = ours.optimize(Own(4, 8, 3, 2).half().eval(), half(1, 4, 2, 2), launch="graph").report
        assert report.layers[0].reason == "Own redefines PyTorch's layer"

    def test_the_caller_may_give_the_size(self) -> None:
        layer = nn.ConvTranspose3d(2, 2, 3, stride=2, padding=1).half()
        mine = ours.ConvTranspose3d(2, 2, 3, stride=2, padding=1).half()
        mine.load_state_dict(layer.state_dict())
        x = half(1, 2, 2, 3, 2)
        with ours.use(*predicting()):
            close(mine(x, output_size=[4, 6, 3]), layer(x, output_size=[4, 6, 3]))

    def test_arguments_by_name(self) -> None:
        class Named(nn.Module):  # type: ignore[misc] # as above
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.ConvTranspose2d(4, 8, 3, 2)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.up(output_size=[6, 6], input=x)

        model, x = Named().half().eval(), half(1, 4, 2, 2)
        with ours.use(*predicting()):
            optimised, report = ours.optimize(model, x, launch="graph")
            assert report.layers[0].replaced
            close(optimised(x), model(x))

    def test_no_lighter_way_is_chosen_than_calls_take(self) -> None:
        with ours.use(*predicting()):
            layer = nn.ConvTranspose2d(4, 8, 2, 2, bias=False).half().eval()
            report = ours.optimize(layer, half(1, 4, 2, 2)).report
        assert report.layers[0].replaced
        assert not report.layers[0].in_one_launch
        assert next(iter(report.host)) == "ConvTranspose2d without bias float16 inference by a kernel"

    def test_a_padding_mode_is_pytorchs_error(self) -> None:
        layer = ours.ConvTranspose2d(4, 8, 2, 2)
        layer.padding_mode = "reflect"
        with pytest.raises(ValueError, match="Only `zeros` padding mode is supported for ConvTranspose2d"):
            layer(half(1, 4, 2, 2))

    def test_the_bias_is_a_pass_on_either_side(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kinds, compare = [], Predicting.compare_with_pytorch

        def noted(self: Predicting, problem: Any, kind: EpilogueKind = EMPTY_KIND) -> Any:
            kinds.append(kind)
            return compare(self, problem, kind)

        monkeypatch.setattr(Predicting, "compare_with_pytorch", noted)
        with ours.use(*predicting()):
            layers = [
                ours.optimize(nn.ConvTranspose2d(4, 8, 2, 2, bias=bias).half().eval(), half(1, 4, 2, 2), launch="graph")
                for bias in (False, True)
            ]
        without, with_bias = (found.report.layers[0] for found in layers)
        assert with_bias.pytorch_ms == pytest.approx((without.pytorch_ms or 0) + 0.0017)
        assert kinds == [EMPTY_KIND, EpilogueKind(has_bias=True)]
        kernel, target = Kernel.from_config(KERNELS[0]), Target("grouped_conv", "bwd_data", "fp16", "sm90")
        assert TRITON.leaves(kernel, PROBLEM, target, kinds[1]) == kinds[1]  # so comparisons count its pass
