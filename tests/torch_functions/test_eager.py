"""Eager calls that PyTorch computes by itself go to its function, and come back when something else is selected."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.runtime import eager_overhead
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as own
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.dispatch import Dispatcher, Switches
from tilewise.kernels import Epilogue, EpilogueKind, Pool
from tilewise.kernels.triton.programs import interpreted
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import OPS, GroupedConvProblem, Target
from tilewise.torch import _ended as ended
from tilewise.torch import _operators as operators
from tilewise.torch import eager as eager_calls
from tilewise.torch._layers import replace_layer
from tilewise.torch.eager import _known as eager
from torch_functions.compare import assert_same, close, half
from torch_functions.predicting import CALLS, KERNELS

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


def serve(op: str, *left: str) -> Any:
    """Install dispatchers that leave these variants to PyTorch, and have a kernel for the others."""
    configs = {v: CALLS[op] if v in left else KERNELS[op] for v in OPS[op].variants}
    return ours.use(*(dispatcher_of(op, variant, config) for variant, config in configs.items()))


LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by number of axes


def last(*shape: int) -> torch.Tensor:
    return half(*shape).contiguous(memory_format=LAST[len(shape)])


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of problems that reach a dispatcher's `run`."""
    names: list[str] = []
    run = Dispatcher.run

    def noted(self: Dispatcher, *args: Any, **options: Any) -> Any:
        names.append(self.target.variant)
        return run(self, *args, **options)

    monkeypatch.setattr(Dispatcher, "run", noted)
    return names


@pytest.fixture
def asked(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of problems that reach a dispatcher's `run`, or are launched without it."""
    direct = Dispatcher.direct

    def noted(self: Dispatcher, *args: Any) -> Any:
        found = direct(self, *args)
        if found is not None:
            ran.append(self.target.variant)
        return found

    monkeypatch.setattr(Dispatcher, "direct", noted)
    return ran


FUNCTIONS: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "conv2d": ("grouped_conv", ours.conv2d, own.conv2d, lambda: [last(2, 4, 5, 6), last(6, 4, 3, 3), half(6)]),
    "matmul": ("gemm", ours.matmul, torch.matmul, lambda: [half(2, 3, 8), half(8, 4)]),
    "linear": ("gemm", ours.linear, own.linear, lambda: [half(3, 8), half(4, 8), half(4)]),
    "linear of rows apart": ("gemm", ours.linear, own.linear, lambda: [half(3, 2, 8)[:, 0], half(4, 8), half(4)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_calls_that_are_left_to_pytorch_run_no_candidate(name: str, ran: list[str]) -> None:
    op, mine, theirs, make = FUNCTIONS[name]
    with serve(op, *OPS[op].variants), torch.no_grad():
        for _ in range(3):
            operands = make()
            y, right = mine(*operands), theirs(*operands)
            close(y, right)
            assert y.stride() == right.stride()
    assert not ran


@pytest.mark.parametrize(
    ("op", "layer", "shape"), [("grouped_conv", nn.Conv2d(4, 6, 3), (2, 4, 5, 6)), ("gemm", nn.Linear(8, 4), (3, 8))]
)
def test_a_layer_that_spares_the_host_says_so_to_the_dispatcher(
    op: str, layer: nn.Module, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds, run = list[EpilogueKind](), Dispatcher.run

    def noted(self: Dispatcher, *args: Any, epilogue: Epilogue) -> torch.Tensor:
        kinds.append(epilogue.kind)
        return run(self, *args, epilogue=epilogue)

    monkeypatch.setattr(Dispatcher, "run", noted)
    layer, x = layer.half().eval(), half(*shape)
    with torch.no_grad(), serve(op):
        right = layer(x).relu()
        replace_layer(layer, in_one_launch=True)
        for _ in range(2):
            close(layer(x, activation="relu"), right)
    assert kinds == [EpilogueKind(has_bias=True, activation="relu", in_one_launch=True)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_right_before_and_after(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    op, mine, theirs, make = FUNCTIONS[name]
    with serve(op, *OPS[op].variants):
        for _ in range(3):
            assert_same(mine, theirs, *make())


@pytest.mark.long
@pytest.mark.parametrize("left", [(), ("forward",), ("forward", "bwd_data"), GroupedConvProblem.variants])
def test_a_call_with_gradients_is_pytorch_s_only_if_all_are(
    left: tuple[str, ...], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with serve("grouped_conv", *left):
        for _ in range(2):
            asked.clear()
            assert_same(ours.conv2d, own.conv2d, last(1, 4, 5, 5), last(4, 4, 3, 3))
    assert sorted(asked) == ([] if len(left) == 3 else sorted(GroupedConvProblem.variants))


def test_gradients_outside_benchmark_mode_are_the_dispatcher_s(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidate cuDNN was measured in benchmark mode, and PyTorch's gradients would run without it."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with serve("grouped_conv", *GroupedConvProblem.variants):
        for _ in range(2):
            asked.clear()
            assert_same(ours.conv2d, own.conv2d, last(1, 4, 5, 5), last(4, 4, 3, 3))
            assert len(asked) == 3
        with torch.no_grad():
            asked.clear()
            for _ in range(2):
                ours.conv2d(last(1, 4, 5, 5), last(4, 4, 3, 3))
            assert not asked
    assert not torch.backends.cudnn.benchmark


def test_another_dispatcher_is_asked_at_once(ran: list[str]) -> None:
    x, w = last(1, 4, 5, 5), last(4, 4, 3, 3)
    with torch.no_grad(), serve("grouped_conv", "forward"):
        for _ in range(2):
            ours.conv2d(x, w)
        assert not ran
        with serve("grouped_conv"):
            ours.conv2d(x, w)
            assert ran == ["forward"]
        ours.conv2d(x, w)
        assert ran == ["forward"]


@pytest.mark.parametrize("changed", ["shape", "filter", "stride", "groups", "dtype", "memory", "gradient", "bias"])
def test_what_decides_a_call_separates_calls(changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key separates whatever the problems separate, so the changed call is remembered by itself."""
    x, w, bias = last(2, 4, 5, 5), last(4, 4, 3, 3), None
    options: dict[str, Any] = {"stride": 1, "groups": 1}
    remembered, remember = list[Any](), eager_calls.remember

    def noted(key: Any, *args: Any, **settings: Any) -> None:
        remembered.append(key)
        remember(key, *args, **settings)

    monkeypatch.setattr(eager_calls, "remember", noted)
    with torch.no_grad(), serve("grouped_conv", *GroupedConvProblem.variants):
        for _ in range(2):
            ours.conv2d(x, w, bias, **options)
        assert len(remembered) == 1
        match changed:
            case "shape":
                x = last(2, 4, 6, 5)
            case "filter":
                w = last(8, 4, 3, 3)
            case "stride":
                options["stride"] = 2
            case "groups":
                w, options["groups"] = last(4, 2, 3, 3), 2
            case "dtype":
                x, w = x.bfloat16(), w.bfloat16()
            case "memory":
                x = x.contiguous()
            case "gradient":
                w.requires_grad_()
            case "bias":
                bias = half(4)
        with torch.set_grad_enabled(changed == "gradient"):
            ours.conv2d(x, w, bias, **options)
    assert len(set(remembered)) == len(remembered) == 2


@pytest.mark.parametrize("name", FUNCTIONS)
def test_repeated_calls_of_a_kernel_need_no_operator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, mine, theirs, make = FUNCTIONS[name]
    with serve(op), torch.no_grad():
        mine(*make())
        for module, operator in ((operators, "conv"), (operators, "mm"), (ended, "conv_ended"), (ended, "mm_ended")):
            monkeypatch.setattr(module, operator, None)
        for _ in range(2):
            operands = make()
            y, right = mine(*operands), theirs(*operands)
            close(y, right)
            assert y.stride() == right.stride()


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_repeated_steps_of_kernels_need_no_operator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation may change the result in place, and gradients come expanded or apart in memory."""
    op, mine, theirs, make = FUNCTIONS[name]

    def step(function: Callable[..., Any], operands: list[torch.Tensor]) -> list[torch.Tensor]:
        learnt = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in operands]
        y = function(*learnt).relu_()
        found: list[torch.Tensor] = [y, *torch.autograd.grad(y.sum(), learnt)]
        return found

    with serve(op):
        step(mine, make())
        for module, names in (
            (operators, ("conv", "mm", "conv_bwd_data", "conv_bwd_weight")),
            (ended, ("conv_ended", "mm_ended")),
        ):
            for operator in names:
                monkeypatch.setattr(module, operator, None)
        for _ in range(2):
            operands = make()
            for got, right in zip(step(mine, operands), step(theirs, operands), strict=True):
                close(got, right)
                assert got.stride() == right.stride()


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_hooks_may_store_saved_tensors_otherwise(name: str) -> None:
    """``torch.autograd.graph.save_on_cpu`` brings tensors back without their order in memory."""
    op, mine, theirs, make = FUNCTIONS[name]
    hooks = torch.autograd.graph.saved_tensors_hooks(
        lambda t: t.clone(memory_format=torch.contiguous_format), lambda t: t
    )
    with serve(op), hooks:
        for _ in range(3):
            assert_same(mine, theirs, *make())


@pytest.mark.long
@pytest.mark.parametrize("name", ["conv2d", "linear"])
def test_gradients_of_a_repeated_step_have_gradients(name: str) -> None:
    op, mine, theirs, make = FUNCTIONS[name]

    def twice(function: Callable[..., Any], operands: list[torch.Tensor]) -> list[torch.Tensor]:
        learnt = [t.clone(memory_format=torch.preserve_format).requires_grad_() for t in operands]
        first = torch.autograd.grad(function(*learnt).square().mean(), learnt, create_graph=True)
        found: list[torch.Tensor] = list(torch.autograd.grad(sum(g.square().sum() for g in first), learnt))
        return found

    with serve(op):
        for _ in range(2):
            operands = make()
            for got, right in zip(twice(mine, operands), twice(theirs, operands), strict=True):
                close(got, right)


@pytest.mark.long
def test_a_step_whose_kernel_fails_is_computed_by_the_next_in_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(operands: object) -> torch.Tensor:
        raise RuntimeError("too many resources requested for launch")

    for name in ("conv2d", "linear"):
        op, mine, theirs, make = FUNCTIONS[name]
        with serve(op), monkeypatch.context() as patched:
            for _ in range(2):
                assert_same(mine, theirs, *make())
                patched.setattr(Dispatcher, "direct", lambda *args: fail)


ENDED: dict[str, tuple[str, Callable[..., Any], Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "conv2d": (
        "grouped_conv",
        lambda x, w, b, r: ours.conv2d(x, w, b, padding=1, residual=r, activation="relu"),
        lambda x, w, b, r: own.relu(own.conv2d(x, w, b, padding=1) + r),
        lambda: [last(2, 4, 5, 6), last(6, 4, 3, 3), half(6), last(2, 6, 5, 6)],
    ),
    "conv3d": (
        "grouped_conv",
        lambda x, w, b, r: ours.conv3d(x, w, b, padding=1, residual=r, activation="silu"),
        lambda x, w, b, r: own.silu(own.conv3d(x, w, b, padding=1) + r),
        lambda: [last(1, 4, 3, 5, 6), last(6, 4, 3, 3, 3), half(6), last(1, 6, 3, 5, 6)],
    ),
    "linear": (
        "gemm",
        lambda a, w, b, r: ours.linear(a, w, b, residual=r, activation="relu"),
        lambda a, w, b, r: own.relu(own.linear(a, w, b) + r),
        lambda: [half(2, 3, 8), half(4, 8), half(4), half(2, 3, 4)],
    ),
    "transposed": (
        "gemm",
        lambda a, b, *ends: ours.matmul(a.t(), b, bias=ends[0], residual=ends[1]),
        lambda a, b, *ends: torch.matmul(a.t(), b) + ends[0] + ends[1],
        lambda: [half(8, 3), half(8, 4), half(4), half(3, 4)],
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("name", ENDED)
def test_repeated_calls_go_straight_to_the_launch(
    name: str, left: bool, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    op, mine, theirs, make = ENDED[name]
    asked, direct = [], Dispatcher.direct

    def noted(*args: Any) -> Any:
        asked.append(direct(*args))
        return asked[-1]

    monkeypatch.setattr(Dispatcher, "direct", noted)
    with serve(op, *OPS[op].variants if left else ()), torch.no_grad():
        for _ in range(3):
            operands = make()
            y, right = mine(*operands), theirs(*operands)
            close(y, right)
            assert y.is_contiguous(memory_format=LAST.get(y.dim(), torch.contiguous_format))
    assert len(ran) == 1
    assert len([launch for launch in asked if launch is not None]) == 2


def test_a_failing_launch_is_followed_by_the_next_in_rank(ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(operands: object) -> torch.Tensor:
        raise RuntimeError("too many resources requested for launch")

    with serve("grouped_conv"), torch.no_grad():
        for _ in range(2):
            x, w = last(2, 4, 5, 6), last(6, 4, 3, 3)
            close(ours.conv2d(x, w), own.conv2d(x, w))
            monkeypatch.setattr(Dispatcher, "direct", lambda *args: fail)
    assert len(ran) == 2


class Marked(torch.Tensor):  # type: ignore[misc] # torch has no types here
    """A tensor of a class of its own."""


def test_a_tensor_of_another_class_takes_no_short_way(ran: list[str]) -> None:
    with serve("grouped_conv"), torch.no_grad():
        for kind in (torch.Tensor, Marked, Marked):
            x, w = last(2, 4, 5, 6).as_subclass(kind), last(6, 4, 3, 3)
            close(ours.conv2d(x, w).as_subclass(torch.Tensor), own.conv2d(x, w).as_subclass(torch.Tensor))
    assert len(ran) == 3


def test_an_input_that_is_not_channels_last_is_copied(ran: list[str]) -> None:
    with serve("grouped_conv"), torch.no_grad():
        for _ in range(3):
            x, w = half(2, 4, 5, 6), last(6, 4, 3, 3)
            close(ours.conv2d(x, w), own.conv2d(x, w))
    assert len(ran) == 1


def test_an_input_with_a_depth_of_one_is_checked_each_time(ran: list[str]) -> None:
    with serve("grouped_conv"), torch.no_grad():
        for _ in range(3):
            x, w = last(2, 4, 1, 5, 6), last(6, 4, 1, 3, 3)  # the problem is that of a 2D convolution
            close(ours.conv3d(x, w), own.conv3d(x, w))
    assert len(ran) == 3


@pytest.mark.parametrize("gaps", ["bias", "residual"])
def test_a_tensor_with_gaps_is_read_right(gaps: str) -> None:
    with serve("grouped_conv"), torch.no_grad():
        for _ in range(3):
            x, w, bias, residual = last(2, 4, 5, 6), last(6, 4, 3, 3), half(12)[::2], half(2, 6, 3, 4)
            if gaps == "bias":
                residual = residual.contiguous(memory_format=torch.channels_last)
            else:
                bias = bias.contiguous()
            close(ours.conv2d(x, w, bias, residual=residual), own.conv2d(x, w, bias) + residual)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_who_watches_operators_sees_them_in_every_call(name: str) -> None:
    op, mine, _, make = FUNCTIONS[name]
    operands = make()
    with serve(op), torch.no_grad():
        mine(*operands)
        with Seen() as seen:
            mine(*operands)
        assert any(function.startswith("tilewise.") for function in seen.functions)
        traced = torch.jit.trace(mine, operands, check_trace=False)
        others = make()
        close(traced(*others), mine(*others))


def test_a_bias_alone_may_need_a_gradient() -> None:
    x, w = last(1, 4, 5, 5), last(4, 4, 3, 3)
    with serve("grouped_conv"):
        for _ in range(2):
            bias = half(4).requires_grad_()
            ours.conv2d(x, w, bias).float().sum().backward()
            assert torch.equal(bias.grad, torch.full_like(bias, 9))


class Seen(TorchDispatchMode):  # type: ignore[misc] # torch has no types here
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(str(function))
        return function(*args, **(kwargs or {}))


TRANSFORMED: dict[str, Callable[[Callable[..., torch.Tensor], torch.Tensor], torch.Tensor]] = {
    "gradients": lambda f, x: torch.func.grad(lambda t: f(t).sum())(x),
    "derivatives": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "a batch": lambda f, x: torch.func.vmap(f)(torch.stack([x, x])),
    "forward mode": lambda f, x: forward_mode(f, x),
}


def forward_mode(f: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        derivative: torch.Tensor = forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent
    return derivative


@pytest.mark.parametrize("transform", TRANSFORMED)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_transformed_functions_are_pytorch_s(name: str, transform: str) -> None:
    op, mine, theirs, make = FUNCTIONS[name]
    x, *rest = make()
    with serve(op):
        for _ in range(2):
            found, right = (TRANSFORMED[transform](lambda t, f=f: f(t, *rest), x) for f in (mine, theirs))
            close(found, right)
            with torch.no_grad():
                mine(x, *rest)  # whose short way must not be taken by the next call


def test_tensors_without_values_in_memory_are_pytorch_s() -> None:
    x, w = half(4, 8), half(4, 8)
    with serve("gemm"), torch.no_grad():
        for _ in range(2):
            ours.linear(x, w)
            both = ours.linear(x, TwoTensor(w, w + 1))  # stands for distributed and quantised weights
            close(both.a, own.linear(x, w))
            close(both.b, own.linear(x, w + 1))
            rows = [half(3, 8), half(2, 8)]
            for y, row in zip(ours.linear(torch.nested.nested_tensor(rows), w).unbind(), rows, strict=True):
                close(y, own.linear(row, w))
        x, w = (torch.empty(shape, dtype=torch.half, device="meta") for shape in ((1, 4, 5, 5), (6, 4, 3, 3)))
        assert ours.conv2d(x, w).shape == (1, 6, 3, 3)


def test_a_bias_elsewhere_is_pytorch_s_error() -> None:
    """The call would be remembered, and the next one hand its pointer to the launch."""
    x, w, bias = half(3, 8), half(4, 8), torch.empty(4, dtype=torch.half, device="meta")
    with serve("gemm"), pytest.raises(RuntimeError, match="expected device"):
        ours.linear(x, w, bias)
    assert not eager._calls


def test_watched_calls_reach_the_dispatcher_each_time(ran: list[str], tmp_path: Path) -> None:
    target = Target("grouped_conv", "forward", "fp16", "sm90")
    pool = Pool(target.op, target.variant, target.dtype, (VendorCall("cudnn"),))
    switches = Switches(record=str(tmp_path / "requests.jsonl"))
    with torch.no_grad(), ours.use(Dispatcher(target, pool, None, switches=switches)):
        for _ in range(3):
            ours.conv2d(last(1, 4, 5, 5), last(4, 4, 3, 3))
    assert len(ran) == 3


def test_sizes_in_a_list_are_served_too(ran: list[str]) -> None:
    with torch.no_grad(), serve("grouped_conv", "forward"):
        for _ in range(2):
            x, w = last(1, 4, 5, 5), last(4, 4, 3, 3)
            close(ours.conv2d(x, w, stride=[2, 1]), own.conv2d(x, w, stride=[2, 1]))
    assert len(ran) == 2


def test_under_autocast_the_result_has_its_type() -> None:
    x, w = torch.randn(1, 4, 5, 5).contiguous(memory_format=torch.channels_last), torch.randn(4, 4, 3, 3)
    with torch.no_grad(), serve("grouped_conv", "forward"), torch.autocast("cpu", torch.float16):
        for _ in range(2):
            y = ours.conv2d(x, w)
            assert y.dtype == torch.float16
            close(y, own.conv2d(x, w))
    assert ours.conv2d(x, w).dtype == torch.float32


def test_the_benchmark_runs_without_a_gpu() -> None:
    found = eager_overhead.measure(2, 2)
    assert [row["function"] for row in found] == list(eager_overhead.cases("cpu"))
    assert all(row["tilewise_us"] > 0 and row["pytorch_us"] > 0 for row in found)
    assert "conv2d for training" in eager_overhead.text(found)
