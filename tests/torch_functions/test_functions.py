"""The drop-in functions give PyTorch's results and gradients, and call PyTorch where there is no kernel.

They run in Triton's interpreter on tiny fp16 tensors; test_on_gpu.py has real sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.kernels import NO_EPILOGUE, TENSORS, Epilogue, EpilogueKind, accepted_shapes
from tilewise.kernels.triton.programs import interpreted
from tilewise.ops import GemmProblem, GroupedConvProblem, Target
from tilewise.torch import _operators as operators
from tilewise.torch import _serving as serving
from torch_functions.compare import CONVS, MATRICES, assert_same, close, conv_of, half

needs_interpreter = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")
CONV_KERNELS = ("16x16x16_flat_w1_s2_g1_k1", "16x16x16_flat_w1_s2_g1_k2")


@pytest.fixture
def _served() -> Iterator[None]:
    convs = [dispatcher_of("grouped_conv", variant, *CONV_KERNELS) for variant in GroupedConvProblem.variants]
    with ours.use(*convs, dispatcher_of("gemm", "universal", "16x16x16_plain_w1_s2_g2_k1")):
        yield


@needs_interpreter
@pytest.mark.usefixtures("_served")
class TestInterpreted:
    @pytest.mark.long
    @pytest.mark.parametrize("name", CONVS)
    def test_convolution(self, name: str) -> None:
        x, w, options = CONVS[name]
        y = assert_same(*conv_of(w), half(*x), half(*w), half(w[0]), **options)
        if y.dim() == len(w):
            assert y.is_contiguous(memory_format=torch.channels_last if len(w) == 4 else torch.channels_last_3d)

    @pytest.mark.parametrize("name", MATRICES)
    def test_matrix_product(self, name: str) -> None:
        a, b, _ = MATRICES[name]
        assert_same(ours.matmul, torch.matmul, a(), b())

    def test_gradients_of_gradients(self) -> None:
        """A gradient penalty: the norm of the input's gradient, differentiated for input and filter."""
        x, w = half(1, 2, 4, 4), half(3, 2, 2, 2)

        def penalty(conv: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            dx, dw = torch.autograd.grad(conv(a, b, stride=2).square().sum(), (a, b), create_graph=True)
            second: tuple[torch.Tensor, ...] = torch.autograd.grad(dx.square().sum() + dw.square().sum(), (a, b))
            return second

        for mine, theirs in zip(penalty(ours.conv2d), penalty(own.conv2d), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max()))

    @pytest.mark.parametrize("with_bias", [False, True])
    def test_an_activation_in_place_may_follow_in_training(self, with_bias: bool) -> None:
        x, w, b = half(1, 2, 4, 4), half(3, 2, 2, 2), half(3) if with_bias else None

        def gradient(conv: Callable[..., torch.Tensor]) -> torch.Tensor:
            leaf = w.clone().requires_grad_()
            own.silu(conv(x, leaf, b), inplace=True).sum().backward()
            assert leaf.grad is not None
            return leaf.grad

        mine, theirs = gradient(ours.conv2d), gradient(own.conv2d)
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2 * float(theirs.abs().max()))

    def test_only_gradients_that_are_asked_for_are_computed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operators, "conv_bwd_data", None)
        w = half(3, 2, 2, 2).requires_grad_()
        ours.conv2d(half(1, 2, 4, 4), w).sum().backward()
        assert w.grad is not None

    @pytest.mark.long
    def test_compiled_whole_with_sizes_as_symbols(self) -> None:
        def net(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            y = ours.conv2d(x, w, b, padding="same", groups=2).relu()
            return ours.matmul(y.permute(0, 2, 3, 1), v)

        def theirs(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return own.conv2d(x, w, b, padding="same", groups=2).relu().permute(0, 2, 3, 1) @ v

        compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
        assert_same(compiled, theirs, half(1, 4, 3, 5), half(6, 2, 3, 3), half(6), half(6, 4))

    @pytest.mark.long
    @pytest.mark.parametrize("compiled", [False, True])
    def test_autocast(self, compiled: bool) -> None:
        x, w, b = torch.randn(1, 2, 3, 3), torch.randn(2, 2, 2, 2), torch.randn(2)
        conv = torch.compile(ours.conv2d, fullgraph=True, backend="aot_eager") if compiled else ours.conv2d
        with torch.autocast("cpu", torch.float16):
            y, z = conv(x, w, b), ours.matmul(x[0, 0], w[0, 0].repeat(2, 1)[:3])
            close(y, own.conv2d(x, w, b))
        assert y.dtype == z.dtype == torch.float16

    @pytest.mark.long
    @pytest.mark.parametrize(("operator", "shapes", "rest"), [
        (operators.conv, ((1, 4, 4, 3), (2, 2, 2, 2)), ([1, 1], [1, 0], [1, 1], 2)),
        (operators.conv_bwd_data, ((1, 2, 5, 2), (2, 2, 2, 2)), ([1, 4, 4, 3], [1, 1], [1, 0], [1, 1], 2)),
        (operators.conv_bwd_weight, ((1, 2, 5, 2), (1, 4, 4, 3)), ([2, 2, 2, 2], [1, 1], [1, 0], [1, 1], 2)),
        (operators.mm, ((3, 4), (4, 5)), ()),
    ])  # fmt: skip
    def test_operators_keep_pytorch_s_rules(self, operator: Any, shapes: Any, rest: tuple[Any, ...]) -> None:
        """Check schema, registration with autograd, the fake result's shapes and strides, and tracing."""
        torch.library.opcheck(operator, (*(half(*s).requires_grad_() for s in shapes), *rest))


class Recording:
    """A dispatcher that records the problems and the tensors' addresses."""

    def __init__(self, op: str, variant: str) -> None:
        self.target = Target(op, variant, "fp16", "sm90")
        self.problems: list[Any] = []
        self.pointers: list[list[int]] = []

    def is_left_to_pytorch(self, problem: Any, kind: EpilogueKind) -> bool:
        return False

    def run(
        self, problem: Any, *tensors: torch.Tensor, out: torch.Tensor | None = None, epilogue: Epilogue = NO_EPILOGUE
    ) -> torch.Tensor:
        assert epilogue is NO_EPILOGUE
        assert all(t.is_contiguous() for t in tensors)
        self.problems.append(problem)
        self.pointers.append([t.data_ptr() for t in tensors])
        shapes = accepted_shapes(TENSORS[self.target.op, self.target.variant], problem)
        return torch.zeros(shapes[tuple(t.shape for t in tensors)]).half() if out is None else out.zero_()


def recording(monkeypatch: pytest.MonkeyPatch, *variants: str) -> tuple[Recording, ...]:
    found = tuple(Recording("gemm" if v == "universal" else "grouped_conv", v) for v in variants)
    monkeypatch.setattr(serving, "_installed", {r.target.name: r for r in found})
    return found


@needs_interpreter
class TestNoCopies:
    @pytest.mark.parametrize("name", list(MATRICES)[:4])
    def test_matrices_are_read_as_they_are_stored_also_by_the_gradients(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (dispatcher,) = recording(monkeypatch, "universal")
        make_a, make_b, layout = MATRICES[name]
        a, b = make_a().requires_grad_(), make_b().requires_grad_()
        y = ours.matmul(a, b)
        dy = torch.ones_like(y)
        gradients = torch.autograd.grad(y, (a, b), dy)
        forward = GemmProblem(5, 7, 8, layout)
        assert dispatcher.problems == [forward, *operators.mm_gradients(forward)]
        at = [a.data_ptr(), b.data_ptr(), dy.data_ptr()]
        for_a, for_b = ([at[2], at[1]], [at[0], at[2]])
        assert dispatcher.pointers == [
            [at[0], at[1]], for_a if layout[0] == "r" else for_a[::-1], for_b if layout[1] == "r" else for_b[::-1],
        ]  # fmt: skip
        assert [g.stride() for g in gradients] == [a.stride(), b.stride()]

    def test_channels_last_tensors_are_read_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        forward, data, weight = recording(monkeypatch, *GroupedConvProblem.variants)
        x, w = (t.to(memory_format=torch.channels_last).requires_grad_() for t in (half(2, 4, 6, 5), half(6, 2, 3, 3)))
        y = ours.conv2d(x, w, stride=(1, 2), padding=(1, 0), groups=2)
        dy = torch.ones_like(y)
        torch.autograd.grad(y, (x, w), dy)
        problem = GroupedConvProblem(2, 4, 6, 2, 6, 5, 3, 3, 1, 2, 1, 0)
        assert forward.problems == data.problems == weight.problems == [problem]
        at = [x.data_ptr(), w.data_ptr(), dy.data_ptr()]
        assert (forward.pointers, data.pointers) == ([[at[0], at[1]]], [[at[2], at[1]]])
        assert weight.pointers == [[at[2], at[0]]]

    def test_axes_of_3d_are_in_their_places(self, monkeypatch: pytest.MonkeyPatch) -> None:
        (forward,) = recording(monkeypatch, "forward")
        ours.conv3d(half(1, 2, 9, 8, 7), half(4, 2, 3, 2, 1), None, (1, 2, 3), (4, 5, 6), (3, 2, 1))
        assert forward.problems == [GroupedConvProblem(
            1, 2, 4, 1, Di=9, Hi=8, Wi=7, Z=3, Y=2, X=1, stride_d=1, stride_h=2, stride_w=3, pad_d=4, pad_h=5, pad_w=6,
            dilation_d=3, dilation_h=2, dilation_w=1,
        )]  # fmt: skip
