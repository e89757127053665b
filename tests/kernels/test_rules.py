"""Each rule at its edge, and the rules over a whole pool against the rules kernel by kernel."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from strategies import CONV_POOL, conv_problems
from tilewise.arch import load_arch
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.pool import load_pool
from tilewise.kernels.rules import accumulators_per_thread, illegal, shared_memory_bytes, supported_mask, unsupported
from tilewise.ops import GemmProblem, GroupedConvProblem, Target

SM90, GFX942 = load_arch("sm90"), load_arch("gfx942")
COLUMNS = SimpleNamespace(**CONV_POOL.columns)
LAYER = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 14, "Wi": 14, "Y": 3, "X": 3}


def kernel(**change: Any) -> Kernel:
    return Kernel(**{**Kernel(64, 64, 32, "taps", 4, 3).to_dict(), **change})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"tile_m": 48}, "powers of two"),
        ({"num_warps": 3}, "powers of two"),
        ({"tile_n": 0}, "powers of two"),
        ({"num_stages": 0}, "at least 1"),
        ({"group_m": 0}, "at least 1"),
        ({"split_k": 0}, "at least 1"),
        ({"pipeline": "spiral"}, "pipeline must be one of taps, flat, point, depth"),
        ({"tile_m": 256, "tile_n": 64}, None),  # 128 accumulators a thread
        ({"tile_m": 256, "tile_n": 128}, "256 accumulators a thread, more than 128"),
        ({"tile_m": 8, "tile_n": 8, "tile_k": 1, "pipeline": "depth"}, "128 threads for 64 outputs"),
        ({"tile_m": 8}, "must be at least 16"),
        ({"tile_k": 8}, "must be at least 16"),
        ({"tile_m": 16, "tile_n": 16, "tile_k": 16, "num_warps": 1}, None),
        ({"tile_k": 1, "pipeline": "depth"}, None),
        ({"tile_k": 32, "pipeline": "depth"}, "depth takes tile_k 1 and split_k 1"),
        ({"tile_k": 1, "split_k": 2, "pipeline": "depth"}, "depth takes tile_k 1 and split_k 1"),
        ({"tile_m": 128, "tile_n": 128, "tile_k": 128, "num_stages": 3, "num_warps": 8}, None),  # 196,608 bytes
        (
            {"tile_m": 128, "tile_n": 128, "tile_k": 128, "num_stages": 4, "num_warps": 8},
            "needs 262144 bytes of shared",
        ),
    ],
)
def test_legality(change: dict[str, Any], reason: str | None) -> None:
    answer = illegal(kernel(**change), "bf16", SM90)
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


def test_legality_depends_on_the_arch_and_the_type() -> None:
    large = kernel(tile_m=128, tile_n=128, tile_k=64, num_stages=3, num_warps=8)
    assert illegal(large, "bf16", SM90) is None
    assert illegal(large, "bf16", GFX942) == "needs 98304 bytes of shared memory, gfx942 has 65536 a block"
    assert illegal(large, "fp8", GFX942) is None


def test_shared_memory_by_hand() -> None:
    assert shared_memory_bytes(kernel(), "bf16") == 3 * (64 + 64) * 32 * 2 == 24_576
    assert shared_memory_bytes(kernel(), "fp8") == 12_288
    assert shared_memory_bytes(kernel(pipeline="depth", tile_k=1), "bf16") == 0


@pytest.mark.parametrize(
    ("change", "layer", "reason"),
    [
        ({}, {}, None),
        ({"pipeline": "point"}, {}, "point needs a 1x1 filter"),
        ({"pipeline": "point"}, {"Y": 1, "X": 1}, None),
        ({"pipeline": "point"}, {"Y": 1, "X": 1, "stride_h": 2}, None),
        ({"pipeline": "point"}, {"Y": 1, "X": 1, "pad_w": 1}, "point needs a 1x1 filter"),
        ({"pipeline": "depth", "tile_k": 1}, {}, "one input channel a group"),
        ({"pipeline": "depth", "tile_k": 1}, {"G": 64}, None),
        ({"pipeline": "depth", "tile_k": 1}, {"G": 64, "K": 128}, None),
        ({"split_k": 18}, {}, None),  # 576 / 32
        ({"split_k": 19}, {}, "split_k leaves programs without work"),
        ({}, {"C": 65536, "K": 65536, "G": 65536}, "more than 65535 groups"),
        ({"pipeline": "depth", "tile_k": 1}, {"C": 65536, "K": 65536, "G": 65536}, None),
        ({}, {"N": 2**14, "Hi": 64, "Wi": 64}, "input has 2"),
        ({}, {"C": 2**14, "K": 2**14}, "filter has 2"),
        ({}, {"C": 1, "K": 2**14, "N": 2**10}, "output has 2"),
        ({"split_k": 16}, {"K": 2**13, "N": 2**6}, "more than 2 GiB of workspace"),
    ],
)
def test_support(change: dict[str, Any], layer: dict[str, int], reason: str | None) -> None:
    answer = unsupported(kernel(**change), GroupedConvProblem(**{**LAYER, **layer}), "forward")
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


def test_an_op_without_kernels_supports_nothing() -> None:
    problem = GemmProblem(M=1, N=1, K=1)
    assert unsupported(kernel(), problem, "universal") == "no kernels for op gemm"
    assert not supported_mask(COLUMNS, problem, "universal").any()


@given(conv_problems())
@settings(deadline=None, max_examples=50)
def test_the_mask_of_a_pool_is_the_rule_of_each_kernel(problem: GroupedConvProblem) -> None:
    expected = [unsupported(k, problem, "forward") is None for k in CONV_POOL.kernels]
    assert supported_mask(COLUMNS, problem, "forward").tolist() == expected


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_formulas_over_columns_equal_those_of_each_kernel(dtype: str) -> None:
    each = CONV_POOL.kernels
    assert shared_memory_bytes(COLUMNS, dtype).tolist() == [shared_memory_bytes(k, dtype) for k in each]
    accumulators = accumulators_per_thread(COLUMNS, SM90)
    assert accumulators.tolist() == [accumulators_per_thread(k, SM90) for k in each]
    assert np.issubdtype(accumulators.dtype, np.integer)


@given(conv_problems())
@settings(deadline=None, max_examples=50)
def test_the_shipped_pool_has_a_default_for_whatever_fits_32_bits(problem: GroupedConvProblem) -> None:
    pool = load_pool(Target("grouped_conv", "forward", "bf16", "sm90"))
    default = pool.default_for(problem)
    reason = unsupported(pool.default, problem, "forward") or ""
    assert default is not None or "2^31 elements" in reason
