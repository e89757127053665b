"""The shared memory of features equals that of Triton's binaries, compiled without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

from alone import compiling
from tilewise.arch import load_arch
from tilewise.features import feature_table
from tilewise.kernels.triton import BARRIER_BYTES, Kernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

pytestmark = pytest.mark.long

pytest.importorskip("triton")

SM90 = load_arch("sm90")

_COMPILE = """
import json, sys
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of
from tilewise.ops import OPS, Target
for target, dims, config in json.loads(sys.stdin.read()):
    target, kernel = Target.parse(target), Kernel.from_config(config)
    problem = OPS[target.op].from_dict(dims)
    first, *_ = family_of(target.op, target.variant).programs(kernel, problem, target.dtype)
    print(compile_program(first, cuda_target("sm90")).metadata.shared)
"""


def gemm(m: int, n: int, k: int, layout: str = "rcr") -> GemmProblem:
    return GemmProblem(m, n, k, layout)


def conv(c: int, k: int, groups: int = 1) -> GroupedConvProblem:
    return GroupedConvProblem(8, c, k, groups, 28, 28, 3, 3, pad_h=1, pad_w=1)


BF16, FP8 = "gemm_universal_bf16_sm90", "gemm_universal_fp8_sm90"
FORWARD, BWD_DATA, BWD_WEIGHT = (f"grouped_conv_{v}_bf16_sm90" for v in ("forward", "bwd_data", "bwd_weight"))
CASES: Sequence[tuple[str, Problem, str]] = (
    (BF16, gemm(512, 512, 512), "64x64x64_plain_w4_s4_g8_k1"),
    (BF16, gemm(512, 512, 511), "64x64x64_plain_w4_s4_g8_k1"),  # neither operand is copied asynchronously
    (BF16, gemm(511, 512, 512, "crr"), "128x64x32_plain_w4_s5_g8_k1"),  # A is not
    (BF16, gemm(512, 511, 512, "rrr"), "16x64x128_plain_w4_s4_g1_k1"),  # B is not; units that read registers
    (BF16, gemm(512, 512, 512), "16x64x256_tma_w4_s3_g1_k1"),
    (BF16, gemm(512, 512, 512), "128x128x64_tma_w8_s3_g8_k1"),
    (BF16, gemm(512, 512, 512), "128x128x64_persistent_w8_s3_g8_k1"),  # and the result's tile
    (FP8, gemm(512, 512, 512), "128x128x128_tma_w4_s4_g8_k1"),
    (FP8, gemm(512, 512, 520), "64x64x64_plain_w4_s3_g8_k1"),  # 8 elements are not enough
    (FORWARD, conv(64, 64), "64x64x32_taps_w4_s3_g1_k1"),
    (FORWARD, conv(35, 64), "64x64x32_taps_w4_s3_g1_k1"),
    (FORWARD, conv(64, 36), "64x64x32_taps_w4_s3_g1_k1"),  # outputs are stored only
    (BWD_DATA, conv(64, 35), "64x64x32_taps_w4_s3_g1_k1"),
    (BWD_DATA, conv(35, 64), "64x64x32_taps_w4_s3_g1_k1"),
    (BWD_WEIGHT, conv(64, 35), "64x32x64_flat_w4_s3_g1_k8"),
    (FORWARD, conv(64, 64, 8), "128x64x64_merged_w4_s3_g1_k1"),
    (FORWARD, conv(64, 64, 8), "128x64x64_mergedbox_w4_s3_g1_k1"),
    (BWD_DATA, conv(64, 64, 8), "128x64x64_merged_w4_s3_g1_k1"),
    (BWD_WEIGHT, conv(64, 64, 8), "64x128x64_merged_w4_s3_g1_k4"),
    (FORWARD, conv(64, 64, 64), "32x32x1_depth_w1_s1_g1_k1"),
)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """Return the bytes of shared memory of each case."""
    cases = json.dumps([[target, problem.to_dict(), config] for target, problem, config in CASES])
    env = compiling(tmp_path_factory.mktemp("triton"))
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, input=cases, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda i: f"{CASES[i][2]}-{i}")
def test_shared_memory_is_as_compiled(compiled: list[int], case: int) -> None:
    name, problem, config = CASES[case]
    target = Target.parse(name)
    row = feature_table(target.op).select(["shared_bytes"]).matrix(
        problem.to_dict(), Kernel.from_config(config).to_dict(), variant=target.variant, dtype=target.dtype, arch=SM90
    )  # fmt: skip
    assert 0 <= compiled[case] - row[0, 0] <= BARRIER_BYTES
