"""Dispatchers launch kernels with an epilogue, and follow those that leave a part of it by a pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from kernels.dispatchers import dispatcher_of
from kernels.test_epilogue import KINDS, close, drawn, expected
from tilewise.arch import load_arch
from tilewise.dispatch import Dispatcher, Epilogue, Selection
from tilewise.dispatch._recent import Recent
from tilewise.dispatch.launching import _launch as launch
from tilewise.errors import ProblemError
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.kernels.triton import PIPELINES
from tilewise.kernels.triton.programs import family_of, interpreted
from tilewise.kernels.triton.programs._operand_tensors import integer_operands
from tilewise.kernels.vendor import VendorCall, leaves
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

DEVICE = "cpu" if interpreted() else "cuda"
CONV, PRODUCT = ("grouped_conv", "forward"), ("gemm", "universal")
LAYER = GroupedConvProblem(1, 16, 24, 1, 5, 6, 3, 3, pad_h=1, pad_w=1)
MATRICES = GemmProblem(24, 32, 48)
CASES: list[tuple[tuple[str, str], Problem, str]] = [
    (CONV, LAYER, "16x16x16_taps_w1_s2_g1_k1"),
    (CONV, LAYER, "16x16x16_taps_w1_s2_g3_k2"),
    (PRODUCT, MATRICES, "16x16x16_plain_w1_s2_g2_k1"),
]
BOTH = EpilogueKind(True, True, "relu")


@pytest.fixture(autouse=True)
def _nothing_failed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_failed", Recent(16))


def operands_of(key: tuple[str, str], problem: Problem) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Return operands, and the exact plain result in fp32."""
    family = family_of(*key)
    operands = integer_operands(family, problem, "fp16", DEVICE, seed=5)
    return operands, family.reference(problem, *operands).round()


def check(dispatcher: Dispatcher, key: tuple[str, str], problem: Problem, kind: EpilogueKind) -> None:
    """Run a problem by a new binding and by a known one, with and without a given result."""
    operands, right = operands_of(key, problem)
    epilogue = drawn(kind, tuple(right.shape), torch.float16)
    for _ in range(2):
        assert close(dispatcher.run(problem, *operands, epilogue=epilogue), expected(right, epilogue), "fp16")
    out = torch.empty_like(right, dtype=torch.float16)
    assert dispatcher.run(problem, *operands, out=out, epilogue=epilogue) is out
    assert close(out, expected(right, epilogue), "fp16")
    assert torch.equal(dispatcher.run(problem, *operands).float(), right)  # the plain binding is another


@pytest.mark.long
@pytest.mark.parametrize(("key", "problem", "config"), CASES)
def test_a_kernel_runs_with_its_epilogue(key: tuple[str, str], problem: Problem, config: str) -> None:
    check(dispatcher_of(*key, config), key, problem, BOTH)


@pytest.mark.long
@pytest.mark.parametrize(("key", "problem", "config"), CASES)
def test_a_pipeline_that_fuses_nothing_is_followed_by_a_pass(
    key: tuple[str, str], problem: Problem, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pipeline in list(PIPELINES.items()):
        monkeypatch.setitem(PIPELINES, name, replace(pipeline, fuses=()))
    check(dispatcher_of(*key, config), key, problem, BOTH)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_call_of_the_vendor_has_every_epilogue(kind: EpilogueKind) -> None:
    check(dispatcher_of(*CONV, "vendor_cudnn"), CONV, LAYER, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("call", ["vendor_cublas", "vendor_cublaslt"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_product_of_the_vendor_has_every_epilogue(kind: EpilogueKind, call: str) -> None:
    check(dispatcher_of(*PRODUCT, call), PRODUCT, MATRICES, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [EpilogueKind(b, r, "relu") for b in (False, True) for r in (False, True)], ids=str)
def test_cudnn_computes_relu_in_its_own_kernel(kind: EpilogueKind, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        check(dispatcher_of(*CONV, "vendor_cudnn"), CONV, GroupedConvProblem(8, 64, 64, 1, 28, 28, 3, 3), kind)
    assert "has no kernel with" not in caplog.text


def test_a_fused_call_that_the_library_lacks_is_replaced_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    if not interpreted():
        pytest.skip("cuDNN has these calls; PyTorch has none of them for a CPU")
    with caplog.at_level(logging.INFO):
        check(dispatcher_of(*CONV, "vendor_cudnn"), CONV, LAYER, BOTH)
    assert "vendor_cudnn has no kernel with" in caplog.text
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


def test_the_vendor_leaves_the_part_that_its_calls_lack() -> None:
    conv, product = Target(*CONV, "bf16", "sm90"), Target(*PRODUCT, "bf16", "sm90")
    groups = GroupedConvProblem(1, 16, 24, 8, 5, 6, 3, 3)
    assert leaves(VendorCall("cudnn"), LAYER, conv, BOTH).is_empty
    assert leaves(VendorCall("cudnn"), groups, conv, BOTH) == BOTH
    for kind in (EpilogueKind(True), EpilogueKind(True, True, "silu")):
        assert leaves(VendorCall("cudnn"), LAYER, conv, kind) == kind
    for activation in ("relu", "gelu_tanh"):
        assert leaves(VendorCall("cublaslt"), MATRICES, product, EpilogueKind(True, False, activation)).is_empty
    assert leaves(VendorCall("cublas"), MATRICES, product, BOTH) == EpilogueKind(False, True, "relu")
    assert leaves(VendorCall("cublas"), MATRICES, product, EpilogueKind(True, False, "gelu")) == EpilogueKind(
        activation="gelu"
    )
    relu = EpilogueKind(activation="relu")
    assert leaves(VendorCall("cublas"), MATRICES, product, relu) == relu
    assert leaves(VendorCall("cublaslt_scaled"), MATRICES, product, EpilogueKind(True, False, "relu")) == relu


@pytest.mark.parametrize(("epilogue", "message"), [
    (Epilogue(bias=torch.zeros(23).half()), r"bias: must have the shape \(24,\), has \(23,\)"),
    (Epilogue(bias=torch.zeros(24)), r"bias: must be torch\.float16, is torch\.float32"),
    (Epilogue(residual=torch.zeros(1, 1, 5, 6, 8).half()), r"residual: must have the shape \(1, 1, 5, 6, 24\)"),
    (Epilogue(residual=torch.zeros(1, 24, 1, 5, 6).half().permute(0, 2, 3, 4, 1)), "residual: must be contiguous"),
])  # fmt: skip
def test_a_wrong_tensor_is_named(epilogue: Epilogue, message: str) -> None:
    operands, _ = operands_of(CONV, LAYER)
    if DEVICE == "cuda":
        bias, residual = (t if t is None else t.cuda() for t in (epilogue.bias, epilogue.residual))  # type: ignore[attr-defined]
        epilogue = Epilogue(bias, residual)
    with pytest.raises(ProblemError, match=message):
        dispatcher_of(*CONV, CASES[0][2]).run(LAYER, *operands, epilogue=epilogue)


def test_a_gradient_has_no_epilogue() -> None:
    operands, _ = operands_of(("grouped_conv", "bwd_data"), LAYER)
    with pytest.raises(ProblemError, match="epilogue: grouped_conv bwd_data has none; compute it afterwards"):
        dispatcher_of("grouped_conv", "bwd_data", CASES[0][2]).run(
            LAYER, *operands, epilogue=Epilogue(activation="relu")
        )


class TestChoice:
    """A kernel that computes the epilogue wins over a faster one that needs a pass, if the pass costs more."""

    OWN, CALL = "16x16x16_taps_w1_s2_g1_k1", "vendor_cudnn"

    def dispatcher(self, monkeypatch: pytest.MonkeyPatch, own_ms: float, call_ms: float) -> Dispatcher:
        """Return a dispatcher whose model predicts these times."""
        dispatcher = dispatcher_of(*CONV, self.OWN, self.CALL)
        generation = dispatcher._selector.generation
        times = {self.OWN: own_ms, self.CALL: call_ms}

        class Model:
            arch = load_arch("sm90")

            def best(self, problem: Problem, top_k: int | None) -> tuple[Sequence[int], Sequence[float]]:
                tflops = [problem.flops / (times[k.config] * 1e9) for k in generation.pool.kernels]
                order = sorted(range(len(tflops)), key=lambda i: -tflops[i])[:top_k]
                return order, [tflops[i] for i in order]

        monkeypatch.setattr(generation, "model", Model())
        return dispatcher

    def pick(self, dispatcher: Dispatcher, problem: Problem, kind: EpilogueKind) -> Selection:
        generation = dispatcher._selector.generation
        return dispatcher._selector.decide_with(generation, problem, kind)

    def test_the_pass_decides(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatcher = self.dispatcher(monkeypatch, own_ms=0.0105, call_ms=0.01)
        silu, relu = EpilogueKind(activation="silu"), EpilogueKind(activation="relu")
        assert self.pick(dispatcher, LAYER, EMPTY_KIND).kernel.config == self.CALL
        assert self.pick(dispatcher, LAYER, silu).kernel.config == self.OWN
        assert self.pick(dispatcher, LAYER, relu).kernel.config == self.CALL  # cuDNN computes it too
        assert (dispatcher.is_left_to_pytorch(LAYER, silu), dispatcher.is_left_to_pytorch(LAYER, relu)) == (False, True)

    def test_a_slow_kernel_does_not_win_by_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatcher = self.dispatcher(monkeypatch, own_ms=0.02, call_ms=0.01)
        assert self.pick(dispatcher, LAYER, EpilogueKind(activation="silu")).kernel.config == self.CALL

    def test_the_comparison_counts_the_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        dispatcher = self.dispatcher(monkeypatch, own_ms=0.02, call_ms=0.01)
        found = dispatcher.compare_with_pytorch(LAYER, EpilogueKind(activation="silu"))
        assert found.is_pytorch
        assert found.pytorch_ms == pytest.approx(0.01)
        assert found.pick_ms == pytest.approx(0.01 + 0.0017)

    def test_without_a_model_the_order_of_the_pool_holds(self) -> None:
        dispatcher = dispatcher_of(*CONV, self.CALL, self.OWN)
        assert self.pick(dispatcher, LAYER, EpilogueKind(activation="silu")).kernel.config == self.CALL
