"""The convolution kernels give PyTorch's results: on a GPU at real sizes, elsewhere through Triton's interpreter.

The interpreter multiplies bf16 operands wrongly, so fp16 stands in there; the kernels do not depend on the type.
"""

from __future__ import annotations

import pytest
import torch

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.pool import load_pool
from tilewise.kernels.rules import unsupported
from tilewise.kernels.triton.check import count_mismatches, scale_of
from tilewise.kernels.triton.conv_forward import launches, workspace_elements
from tilewise.kernels.triton.program import interpreted, launch
from tilewise.kernels.triton.reference import conv_forward
from tilewise.ops import GroupedConvProblem, Target

DEVICE = "cpu" if interpreted() else "cuda"
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
# half an ulp of the result's type, and as much again for the order of the fp32 sums
TOLERANCE = {"fp16": 2**-10, "bf16": 2**-7}

TINY = {
    "plain": GroupedConvProblem(1, 8, 16, 1, 5, 6, 3, 3, pad_h=1, pad_w=1),
    "odd channels, stride, dilation": GroupedConvProblem(2, 6, 10, 2, 7, 5, 3, 2, stride_h=2, pad_h=1, dilation_h=2),
    "depthwise": GroupedConvProblem(1, 5, 5, 5, 6, 6, 3, 3, pad_h=1, pad_w=1),
    "depthwise with a multiplier": GroupedConvProblem(1, 4, 8, 4, 6, 6, 3, 3),
    "1x1": GroupedConvProblem(1, 33, 17, 1, 4, 4, 1, 1),
    "1x1, groups, stride": GroupedConvProblem(1, 32, 40, 2, 5, 5, 1, 1, stride_h=2, stride_w=2),
    "3D": GroupedConvProblem(1, 4, 6, 2, 4, 5, 3, 3, pad_h=1, pad_w=1, Di=4, Z=3, pad_d=1, stride_d=2),
    "one pixel": GroupedConvProblem(1, 16, 16, 1, 1, 1, 1, 1),
}
TINY_CONFIGS = (
    "16x16x16_taps_w1_s2_g1_k1", "16x16x16_taps_w1_s2_g3_k2", "16x16x16_flat_w1_s2_g2_k1", "16x16x16_flat_w1_s2_g1_k3",
    "16x16x16_point_w1_s2_g4_k1", "16x16x16_point_w1_s2_g1_k2", "8x8x1_depth_w1_s1_g1_k1", "8x8x1_depth_w1_s1_g2_k1",
)  # fmt: skip
REAL = {
    "resnet 3x3": GroupedConvProblem(8, 64, 64, 1, 56, 56, 3, 3, pad_h=1, pad_w=1),
    "stem": GroupedConvProblem(4, 3, 64, 1, 224, 224, 7, 7, 2, 2, 3, 3),
    "resnext": GroupedConvProblem(4, 128, 128, 32, 28, 28, 3, 3, pad_h=1, pad_w=1),
    "depthwise 5x5, stride 2": GroupedConvProblem(4, 240, 240, 240, 28, 28, 5, 5, 2, 2, 2, 2),
    "depthwise with a multiplier": GroupedConvProblem(2, 96, 192, 96, 30, 30, 3, 3, pad_h=1, pad_w=1),
    "1x1": GroupedConvProblem(8, 256, 512, 1, 28, 28, 1, 1),
    "1x1 on one pixel": GroupedConvProblem(1, 1152, 48, 1, 1, 1, 1, 1),
    "1x1, stride 2": GroupedConvProblem(8, 256, 512, 1, 28, 28, 1, 1, 2, 2),
    "dilated": GroupedConvProblem(2, 256, 128, 1, 33, 33, 3, 3, 1, 1, 6, 6, 6, 6),
    "odd": GroupedConvProblem(3, 37, 53, 1, 19, 23, 3, 5, 1, 2, 1, 2),
    "odd, groups": GroupedConvProblem(2, 33, 27, 3, 17, 17, 3, 3, pad_h=1, pad_w=1),
    "1 x 7": GroupedConvProblem(2, 160, 192, 1, 17, 17, 1, 7, pad_w=3),
    "3D": GroupedConvProblem(2, 32, 48, 1, 14, 14, 3, 3, pad_h=1, pad_w=1, Di=8, Z=3, pad_d=1),
}


def _mismatches(problem: GroupedConvProblem, kernel: Kernel, dtype: str) -> int:
    """Elements of the kernel's result that are wrong or were never written."""
    p = problem
    generator = torch.Generator(DEVICE).manual_seed(7)
    out = p.output_sizes
    x = torch.randn((p.N, p.Di, p.Hi, p.Wi, p.C), generator=generator, device=DEVICE, dtype=DTYPES[dtype])
    w = torch.randn((p.K, p.Z, p.Y, p.X, p.C // p.G), generator=generator, device=DEVICE, dtype=DTYPES[dtype])
    y = torch.full((p.N, out.Do, out.Ho, out.Wo, p.K), float("nan"), device=DEVICE, dtype=DTYPES[dtype])
    workspace = torch.full((max(1, workspace_elements(kernel, p)),), float("nan"), device=DEVICE)
    for item in launches(kernel, p, dtype, x, w, y, workspace):
        launch(item)
    torch.backends.cudnn.allow_tf32 = False
    right = conv_forward(p, x, w)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    count_mismatches(y, right, bad, TOLERANCE[dtype], scale_of(right))
    return int(bad.item())


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize("config", TINY_CONFIGS)
@pytest.mark.parametrize("name", TINY)
def test_interpreted_result_equals_pytorch(name: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    if why := unsupported(kernel, TINY[name], "forward"):
        pytest.skip(why)
    assert _mismatches(TINY[name], kernel, "fp16") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REAL)
def test_every_kernel_of_the_pool_equals_pytorch(name: str, dtype: str) -> None:
    pool = load_pool(Target("grouped_conv", "forward", dtype, "sm90"))
    ran = [k for k in pool.kernels if not unsupported(k, REAL[name], "forward")]
    wrong = {k.config: n for k in ran if (n := _mismatches(REAL[name], k, dtype))}
    assert ran
    assert not wrong


def test_check_counts_wrong_and_unwritten_elements() -> None:
    right = torch.linspace(1, 2, 5000, device=DEVICE)
    got = right.clone()
    got[3], got[4999] = float("nan"), 0.0
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    count_mismatches(got, right, bad, 0.01, scale_of(right))
    assert int(bad.item()) == 2


def test_split_k_rounds_as_one_sum_and_repeats_bit_for_bit() -> None:
    p = TINY["plain"]
    kernel = Kernel.from_config("16x16x16_taps_w1_s2_g1_k4" if interpreted() else "64x64x64_taps_w4_s3_g1_k4")
    x = torch.randn((p.N, p.Di, p.Hi, p.Wi, p.C), device=DEVICE, dtype=torch.float16)
    w = torch.randn((p.K, p.Z, p.Y, p.X, p.C // p.G), device=DEVICE, dtype=torch.float16)
    out = p.output_sizes
    results = []
    for _ in range(2):
        y = torch.empty((p.N, out.Do, out.Ho, out.Wo, p.K), device=DEVICE, dtype=torch.float16)
        workspace = torch.empty(workspace_elements(kernel, p), device=DEVICE)
        for item in launches(kernel, p, "fp16", x, w, y, workspace):
            launch(item)
        results.append(y)
    assert torch.equal(*results)
