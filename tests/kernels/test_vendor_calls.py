"""The vendor's calls compute the same as the reference of tilewise's own kernels, on a GPU and on a CPU."""

from __future__ import annotations

import pytest
import torch

from tilewise.errors import KernelError
from tilewise.kernels.triton.programs import RESULT_TYPES, TORCH_TYPES, family_of, random_operands, scale_of
from tilewise.kernels.vendor import CALLS, VendorCall, bind_call
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

LAYER = GroupedConvProblem(N=2, C=16, K=32, G=2, Hi=9, Wi=7, Y=3, X=3, pad_h=1, pad_w=1, stride_h=2, stride_w=2)
VOLUME = GroupedConvProblem(N=1, C=8, K=8, G=1, Di=4, Hi=5, Wi=6, Z=3, Y=3, X=1, pad_d=1, pad_h=1, dilation_h=2)
DEPTHWISE = GroupedConvProblem(N=2, C=32, K=32, G=32, Hi=6, Wi=6, Y=3, X=3, pad_h=1, pad_w=1)
CONVOLUTIONS: list[tuple[Problem, Target, str]] = [
    (problem, Target("grouped_conv", variant, "bf16", "sm90"), call)
    for problem in (LAYER, VOLUME, DEPTHWISE)
    for variant in ("forward", "bwd_data", "bwd_weight")
    for call in CALLS["grouped_conv"]
]
PRODUCTS: list[tuple[Problem, Target, str]] = [
    (GemmProblem(M=24, N=40, K=32, layout=layout), Target("gemm", "universal", "bf16", "sm90"), "cublas")
    for layout in ("rcr", "rrr", "crr", "ccr")
]
DEVICES = [
    pytest.param("cpu", id="cpu"),
    pytest.param(
        "cuda",
        id="cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("problem", "target", "algorithm"), CONVOLUTIONS + PRODUCTS)
def test_a_call_computes_the_problem(problem: Problem, target: Target, algorithm: str, device: str) -> None:
    if device == "cpu" and target.op == "gemm":
        pytest.skip("PyTorch prefers a BLAS library on a CUDA device only")
    family = family_of(target.op, target.variant)
    operands = random_operands(family, problem, target.dtype, device, 1)
    before = torch.backends.cudnn.benchmark
    found = bind_call(VendorCall(algorithm), problem, target.variant)(operands)
    assert torch.backends.cudnn.benchmark is before
    expected = family.reference(problem, *(o.double() for o in operands)).float()
    assert found.dtype is TORCH_TYPES[RESULT_TYPES[target.dtype]]
    assert found.shape == expected.shape
    assert found.is_contiguous()
    assert float((found.float() - expected).abs().max()) <= 2e-2 * scale_of(expected)


def test_operands_may_omit_the_depth_axis() -> None:
    x, w = random_operands(family_of("grouped_conv", "forward"), LAYER, "bf16", "cpu", 1)
    run = bind_call(VendorCall("cudnn"), LAYER, "forward")
    assert torch.equal(run((x.squeeze(1), w.squeeze(1))), run((x, w)).squeeze(1))


def test_a_variant_without_a_call_is_refused() -> None:
    with pytest.raises(KernelError, match="vendor_cudnn computes no grouped_conv sideways"):
        bind_call(VendorCall("cudnn"), LAYER, "sideways")
