"""Each rule at its edge, and the rules over a whole pool against the rules kernel by kernel."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.shapes import REAL, TINY_STRIPS, wide_pool
from model.test_ranker import ck_kernels
from strategies import CONV_POOL, conv_problems, gemm_problems
from tilewise.arch import load_arch
from tilewise.kernels import Pool, load_pool, supported_mask, unsupported
from tilewise.kernels._backends import backend, reasons
from tilewise.kernels.triton import PIPELINES, Kernel, illegal, pipelines_of
from tilewise.kernels.triton._limits import STORED_ROWS
from tilewise.kernels.triton._rules import TRITON_DTYPES, shared_memory_bytes
from tilewise.kernels.triton._shapes import accumulators_per_thread
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, GroupedConvProblem, Target

SM90, GFX942 = load_arch("sm90"), load_arch("gfx942")
FORWARD = Target("grouped_conv", "forward", "bf16", "sm90")
BWD_WEIGHT = Target("grouped_conv", "bwd_weight", "bf16", "sm90")
GEMM = Target("gemm", "universal", "bf16", "sm90")
GEMM8 = Target("gemm", "universal", "fp8", "sm90")
GEMM_POOLS = {target.dtype: load_pool(target) for target in (GEMM, GEMM8)}
COLUMNS = SimpleNamespace(**CONV_POOL.columns)
LARGE = {"tile_m": 128, "tile_n": 256, "tile_k": 64, "num_warps": 8}
RELAY: dict[str, Any] = {
    "pipeline": "relay", "tile_m": 128, "tile_n": 128, "tile_k": 64, "num_warps": 8, "num_stages": 5,
}  # fmt: skip
MERGED: dict[str, Any] = {"pipeline": "merged", "tile_n": 32, "tile_k": 16}
MERGEDBOX: dict[str, Any] = {"pipeline": "mergedbox", "tile_n": 64}
SLIDE: dict[str, Any] = {"pipeline": "slide", "tile_k": 64}
STRIP: dict[str, Any] = {"pipeline": "strip", "tile_k": 4, "num_stages": 1}
BOX: dict[str, Any] = {"pipeline": "box", "tile_k": 64}
LAYER: dict[str, Any] = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 14, "Wi": 14, "Y": 3, "X": 3}


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
        ({"tile_m": 256, "tile_n": 128, "num_warps": 16}, None),
        ({"tile_m": 256, "tile_n": 256, "num_warps": 16}, "128 accumulators a thread, more than 64"),
        ({"tile_m": 8, "tile_n": 8, "tile_k": 1, "pipeline": "depth"}, "128 threads for 64 outputs"),
        ({"tile_m": 8}, "tile_m and tile_n must be at least 16"),
        ({"tile_k": 8}, "tile_k at least 16"),
        ({"tile_m": 16, "tile_n": 16, "tile_k": 16, "num_warps": 1}, None),
        ({"tile_k": 1, "pipeline": "depth"}, None),
        ({"tile_k": 32, "pipeline": "depth"}, "depth takes tile_k 1"),
        ({"tile_k": 1, "split_k": 2, "pipeline": "depth"}, "depth takes split_k 1"),
        (STRIP, None),
        (MERGED, None),
        ({**RELAY, "tile_n": 256, "num_stages": 3}, None),  # 147,456 bytes of operands, 65,536 of results, barriers
        ({**RELAY, "tile_n": 256, "num_stages": 4}, "needs 262656 bytes of shared"),
        (RELAY, None),
        ({**RELAY, "num_stages": 6}, "needs 262656 bytes of shared"),  # two sets of results
        ({**RELAY, "tile_k": 32}, "relay takes a tile_k of 128 bytes"),
        ({**RELAY, "num_warps": 4}, "relay takes 8 warps and split_k 1"),
        ({**RELAY, "split_k": 2}, "relay takes 8 warps and split_k 1"),
        ({**RELAY, "tile_n": 32}, "a tile_n of 64 to 256"),
        ({**MERGED, "pipeline": "mergedbox", "tile_n": 64}, None),
        ({**MERGED, "pipeline": "mergedbox"}, "and a tile_n of at least 64"),
        ({**MERGED, "pipeline": "mergedbox", "tile_n": 64, "group_m": 8}, "mergedbox takes group_m 1"),
        ({**MERGED, "group_m": 2}, "merged takes group_m 1"),
        (SLIDE, None),  # 15 rows of 8,192 bytes, 9 taps of as many, and 16,384 of results
        ({**SLIDE, "num_stages": 4}, "needs 238"),
        ({**SLIDE, "tile_n": 32, "tile_k": 32, "num_stages": 4}, None),
        ({**SLIDE, "tile_n": 32, "tile_k": 32, "num_stages": 6}, "needs 250"),
        ({**SLIDE, "tile_n": 32}, "slide takes tiles of 64x32x32 or 64x64x64"),
        ({**SLIDE, "tile_m": 128}, "slide takes tiles of 64x32x32 or 64x64x64"),
        ({**SLIDE, "num_warps": 8}, "slide takes 4 warps, group_m 1"),
        ({**SLIDE, "split_k": 2}, "but for bwd_weight, split_k 1"),
        ({**STRIP, "tile_k": 1}, "strip takes a tile_k of 2 to 8"),
        ({**STRIP, "tile_k": 16}, "strip takes a tile_k of 2 to 8"),
        ({**STRIP, "tile_m": 8, "tile_k": 8}, "the accumulators a thread, here 4"),
        (
            {**STRIP, "tile_m": 4, "tile_n": 256, "tile_k": 8},
            "tile_m and the accumulators a thread, here 4",
        ),
        ({**STRIP, "split_k": 2}, "strip takes split_k 1"),
        ({**STRIP, "num_stages": 2}, "strip takes num_stages 1"),
        ({"pipeline": "plain"}, "pipeline must be one of taps"),
        ({"tile_m": 128, "tile_n": 128, "tile_k": 128, "num_stages": 3, "num_warps": 8}, None),  # 196,608 bytes
        (
            {"tile_m": 128, "tile_n": 128, "tile_k": 128, "num_stages": 4, "num_warps": 8},
            "needs 262144 bytes of shared",
        ),
    ],
)
def test_legality(change: dict[str, Any], reason: str | None) -> None:
    answer = illegal(kernel(**change), FORWARD, SM90)
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


@pytest.mark.parametrize(
    ("target", "change", "reason"),
    [
        (BWD_WEIGHT, {"tile_k": 1, "split_k": 64, "pipeline": "depth"}, None),
        (BWD_WEIGHT, {"tile_k": 32, "pipeline": "depth"}, "depth takes tile_k 1"),
        (BWD_WEIGHT, {**RELAY, "split_k": 7, "num_stages": 7}, None),  # 229,376 bytes of operands, barriers
        (BWD_WEIGHT, {**RELAY, "split_k": 7, "num_stages": 8}, "needs 262"),
        (BWD_WEIGHT, {**RELAY, "num_warps": 4}, "relay takes 8 warps"),
        (BWD_WEIGHT, {**SLIDE, "split_k": 64, "num_stages": 5}, None),
        (BWD_WEIGHT, {**SLIDE, "num_stages": 6}, "needs 246"),
        (BWD_WEIGHT, {**SLIDE, "tile_n": 32, "tile_k": 32}, "slide takes tiles of 64x64x64"),
        (
            BWD_WEIGHT,
            {"pipeline": "lanes", "tile_k": 1},
            "pipeline must be one of taps, flat, point, depth, box, strip",
        ),
        (BWD_WEIGHT, {**STRIP, "split_k": 64}, None),
        (BWD_WEIGHT, BOX, None),
        (BWD_WEIGHT, {**BOX, "tile_k": 32}, "box takes a tile_k of 64, 128, 256"),
        (BWD_WEIGHT, {**BOX, "tile_m": 32}, "and a tile_m of at least 64"),
        (BWD_WEIGHT, {**BOX, "tile_n": 192}, None),  # three taps of 64 channels
        (BWD_WEIGHT, {**BOX, "tile_n": 48}, None),
        (BWD_WEIGHT, {**BOX, "tile_n": 24}, "tile_m and tile_n must be at least 16"),
        (BWD_WEIGHT, {**BOX, "tile_n": 144}, "powers of two"),
        (FORWARD, {**BOX, "tile_n": 192}, "powers of two"),
        (Target("grouped_conv", "forward", "fp8", "sm90"), {}, "there are no fp8 kernels for grouped_conv"),
        (GEMM, {}, "pipeline must be one of plain, tma, persistent"),
        # 196,608 bytes of operands, 65,536 of a result that is stored while the next loads, barriers
        (GEMM, {**LARGE, "num_stages": 4, "pipeline": "tma"}, None),
        (GEMM, {**LARGE, "num_stages": 3, "pipeline": "persistent"}, None),
        (GEMM, {**LARGE, "num_stages": 4, "pipeline": "persistent"}, "needs 262656 bytes of shared memory"),
        (GEMM, {**LARGE, "tile_n": 192, "pipeline": "tma"}, None),
        (GEMM, {**LARGE, "tile_n": 192, "pipeline": "persistent"}, "powers of two"),
        (GEMM, {**LARGE, "tile_n": 24, "pipeline": "tma"}, "tile_m and tile_n must be at least 16"),
        (GEMM, {"pipeline": "plain", "tile_k": 16}, None),
        (GEMM8, {"pipeline": "plain"}, None),
        (GEMM8, {"pipeline": "plain", "tile_k": 16}, "tile_k at least 32"),
    ],
)
def test_legality_depends_on_the_target(target: Target, change: dict[str, Any], reason: str | None) -> None:
    answer = illegal(kernel(**change), target, SM90)
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


def test_legality_depends_on_the_arch_and_the_type() -> None:
    large = kernel(tile_m=128, tile_n=128, tile_k=64, num_stages=3, num_warps=8, pipeline="plain")
    assert illegal(large, GEMM, SM90) is None
    assert illegal(large, GEMM, GFX942) == "needs 98304 bytes of shared memory, gfx942 has 65536 a block"
    assert illegal(large, GEMM8, GFX942) is None


def test_a_block_s_registers_limit_its_threads_accumulators() -> None:
    large = kernel(tile_m=256, tile_n=256, num_warps=16)
    assert illegal(large, FORWARD, SM90) == "128 accumulators a thread, more than 64"


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
        (STRIP, {"G": 64}, None),
        (STRIP, {}, "strip needs one input and one output channel"),
        (STRIP, {"G": 64, "K": 128}, "strip needs one input and one output channel"),
        (STRIP, {"G": 64, "stride_h": 3, "stride_w": 3}, None),
        (STRIP, {"G": 64, "X": 11}, None),
        (STRIP, {"G": 64, "X": 12}, "strip takes filters at most 11 wide"),
        ({**STRIP, "tile_k": 8}, {"G": 64, "Wi": 28, "dilation_w": 12}, None),  # 7 + 2 x 12 + 1
        ({**STRIP, "tile_k": 8}, {"G": 64, "Wi": 28, "dilation_w": 13}, "at most 32 columns"),
        (MERGED, {}, "merged needs a tile that holds two groups"),
        (MERGED, {"G": 2}, "merged needs a tile that holds two groups"),  # a column for each of 32 channels
        (MERGED, {"G": 4}, None),
        (RELAY, {}, None),
        (RELAY, {"G": 2}, "relay takes no groups, and strides of rows and columns up to 2"),
        (RELAY, {"stride_h": 2, "stride_w": 2}, None),
        (RELAY, {"stride_h": 3}, "relay takes no groups, and strides of rows and columns up to 2"),
        (RELAY, {"Di": 4, "stride_d": 2}, "relay takes no groups, and strides of rows and columns up to 2"),
        (RELAY, {"Wi": 1, "stride_w": 2, "pad_w": 1}, "relay takes no image that is smaller than a stride"),
        (RELAY, {"C": 61, "K": 59}, None),
        (RELAY, {"C": 1025, "N": 2**13}, "copies of operands need more than 2 GiB of workspace"),
        (MERGEDBOX, {"G": 2}, None),
        (MERGEDBOX, {"G": 2, "stride_h": 3}, "a strided box needs 2D images that the stride divides"),
        (MERGEDBOX, {"C": 60, "G": 4}, "8 must divide the rows that descriptors load"),
        (SLIDE, {"G": 2}, None),
        (SLIDE, {}, "slide needs groups of at most the channels of its tile"),
        (SLIDE, {"C": 256, "G": 2}, "slide needs groups of at most the channels of its tile"),
        (SLIDE, {"C": 60, "K": 60, "G": 4}, "8 must divide the rows that descriptors load"),
        (SLIDE, {"G": 8, "stride_h": 2, "stride_w": 2, "dilation_h": 3}, None),
        (SLIDE, {"G": 8, "stride_w": 3}, "slide needs images whose width the stride divides"),
        (SLIDE, {"G": 8, "Y": 5}, "slide keeps a filter of at most 3 x 3 taps"),
        (SLIDE, {"G": 8, "Di": 3, "Z": 3}, "slide keeps a filter of at most 3 x 3 taps"),
        ({**MERGED, "split_k": 18}, {"G": 16}, None),  # 9 taps x 32 channels, in steps of 16
        ({**MERGED, "split_k": 19}, {"G": 16}, "split_k leaves programs without work"),
        ({**MERGED, "tile_n": 256, "num_warps": 8}, {"G": 64, "N": 1024}, "times the leanest tile's work"),
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
def test_support(change: dict[str, Any], layer: dict[str, Any], reason: str | None) -> None:
    answer = unsupported(kernel(**change), GroupedConvProblem(**{**LAYER, **layer}), "forward", "bf16")
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


@pytest.mark.parametrize(
    ("change", "layer", "variant", "reason"),
    [
        (RELAY, {}, "bwd_data", None),
        (RELAY, {"stride_w": 2}, "bwd_data", None),
        (RELAY, {"stride_w": 3}, "bwd_data", "relay takes no groups, and strides of rows and columns up to 2"),
        (RELAY, {"stride_h": 2}, "bwd_weight", None),
        (RELAY, {"C": 61, "K": 59}, "bwd_data", None),
        (RELAY, {"C": 61, "K": 59}, "bwd_weight", None),
        (RELAY, {"K": 1025, "N": 2**13}, "bwd_weight", "copies of operands need more than 2 GiB of workspace"),
        ({**RELAY, "split_k": 18}, {}, "bwd_weight", None),  # 8 x 12 x 12 pixels in boxes of 64
        ({**RELAY, "split_k": 19}, {}, "bwd_weight", "split_k leaves programs without work"),
        (SLIDE, {"G": 8, "stride_h": 2}, "bwd_data", "slide needs a stride of 1 in bwd_data"),
        ({**SLIDE, "split_k": 60}, {"G": 8, "Y": 5, "Di": 3, "Z": 3, "pad_d": 1}, "bwd_weight", None),  # 2 x 30 rows
        (
            {**SLIDE, "split_k": 61},
            {"G": 8, "Y": 5, "Di": 3, "Z": 3, "pad_d": 1},
            "bwd_weight",
            "programs without work",
        ),
        ({"split_k": 18}, {}, "bwd_data", None),  # 9 taps x 64 channels / 32
        ({"split_k": 19}, {}, "bwd_data", "split_k leaves programs without work"),
        ({"split_k": 8}, {"stride_h": 2, "stride_w": 2}, "bwd_data", None),  # 2 x 2 taps reach a pixel
        ({"split_k": 9}, {"stride_h": 2, "stride_w": 2}, "bwd_data", "split_k leaves programs without work"),
        ({"split_k": 18}, {"stride_h": 2, "stride_w": 2, "dilation_h": 2, "dilation_w": 2}, "bwd_data", None),
        ({"split_k": 32}, {"Hi": 66, "Wi": 66, "stride_h": 64, "stride_w": 64}, "bwd_data", "65535 residue classes"),
        (STRIP, {"G": 64, "dilation_h": 2}, "bwd_data", None),
        (
            STRIP,
            {"G": 64, "stride_h": 2},
            "bwd_data",
            "strip needs a stride of 1 in bwd_data",
        ),
        ({"split_k": 36}, {}, "bwd_weight", None),  # 8 x 12 x 12 pixels / 32
        ({"split_k": 37}, {}, "bwd_weight", "split_k leaves programs without work"),
        ({"pipeline": "depth", "tile_k": 1, "split_k": 18}, {"G": 64}, "bwd_weight", None),  # / 64 pixels a step
        ({"pipeline": "depth", "tile_k": 1, "split_k": 19}, {"G": 64}, "bwd_weight", "programs without work"),
        ({"split_k": 16}, {"C": 2**12, "K": 2**12, "N": 64}, "bwd_weight", "more than 2 GiB of workspace"),
        ({"split_k": 16}, {"C": 2**13, "N": 2**6}, "bwd_data", "more than 2 GiB of workspace"),
        ({"tile_n": 256}, {"C": 16, "N": 512}, "bwd_weight", "more than 8 times the leanest tile's work"),
        ({"tile_n": 256, "pipeline": "flat"}, {"C": 16, "N": 512}, "bwd_weight", None),  # columns are taps x channels
        ({**BOX, "split_k": 18}, {}, "bwd_weight", None),  # 8 x 12 x 12 pixels in boxes of 4 x 4 x 4
        ({**BOX, "split_k": 19}, {}, "bwd_weight", "split_k leaves programs without work"),
        ({**BOX, "split_k": 27}, {"N": 9}, "bwd_weight", None),  # these boxes cover 12 images
        ({**BOX, "split_k": 28}, {"N": 9}, "bwd_weight", "split_k leaves programs without work"),
        (BOX, {"C": 72, "K": 24}, "bwd_weight", None),
        ({**STRIP, "split_k": 6}, {"G": 64}, "bwd_weight", None),  # 8 x 12 rows / 16 a step
        ({**STRIP, "split_k": 7}, {"G": 64}, "bwd_weight", "split_k leaves programs without work"),
        (STRIP, {"G": 64, "stride_h": 2, "stride_w": 2}, "bwd_weight", None),
        (BOX, {"C": 68}, "bwd_weight", "8 must divide the rows that descriptors load"),
        (BOX, {"K": 68}, "bwd_weight", "8 must divide the rows that descriptors load"),
        (BOX, {"C": 16, "G": 4}, "bwd_weight", "8 must divide the rows"),  # 4 channels a group of rows of 16
        (BOX, {"C": 32, "G": 4}, "bwd_weight", None),
        (BOX, {"K": 16, "G": 4}, "bwd_weight", "8 must divide the rows that descriptors load"),
        (BOX, {"stride_h": 2, "stride_w": 2}, "bwd_weight", None),
        (BOX, {"stride_h": 3, "stride_w": 2}, "bwd_weight", "a strided box needs 2D images that the stride divides"),
        ({**BOX, "tile_n": 96}, {"C": 16, "N": 512}, "bwd_weight", None),
        ({**BOX, "tile_n": 384}, {"C": 8, "N": 4096}, "bwd_weight", "more than 8 times the leanest tile's work"),
        ({"pipeline": "tma", "split_k": 49}, {"Y": 1, "X": 1}, "bwd_weight", None),  # 8 x 14 x 14 pixels / 32
        ({"pipeline": "tma"}, {"Y": 1, "X": 1, "stride_h": 2}, "bwd_weight", "a matrix product needs a 1x1 filter"),
        ({"pipeline": "tma"}, {"Y": 1, "X": 1, "C": 68}, "bwd_weight", "8 must divide the rows that descriptors load"),
    ],
)
def test_support_of_gradients(change: dict[str, Any], layer: dict[str, Any], variant: str, reason: str | None) -> None:
    answer = unsupported(kernel(**change), GroupedConvProblem(**{**LAYER, **layer}), variant, "bf16")
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


@pytest.mark.parametrize(
    ("change", "sizes", "reason"),
    [
        ({}, {}, None),
        ({}, {"M": 1, "N": 3, "K": 5}, None),
        ({"pipeline": "tma"}, {}, None),
        ({"pipeline": "tma"}, {"M": 7, "N": 9}, None),  # rows of both operands lie along K
        ({"pipeline": "tma"}, {"K": 68}, "8 must divide the rows that descriptors load"),
        ({"pipeline": "persistent"}, {"K": 68}, "8 must divide the rows that descriptors load"),
        ({"pipeline": "tma"}, {"N": 252}, None),
        ({"pipeline": "persistent"}, {"N": 248}, None),
        ({"pipeline": "persistent"}, {"N": 252}, "8 must divide the rows that descriptors store"),
        ({"pipeline": "persistent", "split_k": 2}, {"N": 252}, None),  # shares go through pointers
        ({"pipeline": "tma"}, {"K": 68, "layout": "crr"}, None),
        ({"pipeline": "tma"}, {"N": 68, "layout": "crr"}, "8 must divide the rows that descriptors load"),
        ({"split_k": 4}, {}, None),
        ({"split_k": 5}, {}, "split_k leaves programs without work"),
        ({}, {"M": 2**16, "K": 2**15}, "A has 2^31 elements"),
        ({}, {"M": 2**16, "N": 2**15}, "C has 2^31 elements"),
        ({"split_k": 4}, {"M": 2**14, "N": 2**14}, "more than 2 GiB of workspace"),
        ({"tile_m": 256}, {"M": 1, "N": 4096, "K": 4096}, "more than 8 times"),
    ],
)
def test_support_of_gemm(change: dict[str, Any], sizes: dict[str, Any], reason: str | None) -> None:
    problem = GemmProblem(**{"M": 128, "N": 256, "K": 128, **sizes})
    answer = unsupported(kernel(**{"pipeline": "plain", **change}), problem, "universal", "bf16")
    assert (answer is None) if reason is None else (answer is not None and reason in answer)


@pytest.mark.parametrize("pipeline", [n for n in pipelines_of("gemm") if PIPELINES[n].described])
@pytest.mark.parametrize(("dtype", "elements"), [("bf16", 8), ("fp16", 8), ("fp8", 16)])
@pytest.mark.parametrize(
    ("layout", "row"),
    [("rcr", "K"), ("rrr", "K"), ("rrr", "N"), ("crr", "M"), ("crr", "N"), ("ccr", "M"), ("ccr", "K")],
)
def test_descriptors_load_rows_of_whole_16_bytes(
    pipeline: str, dtype: str, elements: int, layout: str, row: str
) -> None:
    """In every layout, for each size that is the length of a stored row of A or B."""
    loader, reason = kernel(pipeline=pipeline), f"{elements} must divide the rows that descriptors load"
    sizes: dict[str, Any] = {"M": 128, "N": 128, "K": 128, "layout": layout}
    for length in (elements, 17 * elements):
        for taken, answer in ((length, None), (length - elements // 2, reason)):
            assert unsupported(loader, GemmProblem(**sizes | {row: taken}), "universal", dtype) == answer


@pytest.mark.parametrize(("dtype", "rows"), [("bf16", 8), ("fp16", 8), ("fp8", 16)])
def test_the_loaded_type_does_not_change_what_descriptors_store(dtype: str, rows: int) -> None:
    """Results have 16 bits whatever the type of the operands."""
    store, problem = kernel(pipeline="persistent"), GemmProblem(128, 136, 128 + rows)
    assert unsupported(store, problem, "universal", dtype) is None
    assert unsupported(store, replace(problem, N=132), "universal", dtype) == STORED_ROWS


@pytest.mark.long
@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
@given(problem=conv_problems())
@settings(max_examples=30)
def test_the_mask_of_a_pool_is_the_rule_of_each_kernel(variant: str, problem: GroupedConvProblem) -> None:
    expected = [unsupported(k, problem, variant, CONV_POOL.dtype) for k in CONV_POOL.kernels]
    asked = backend("triton"), CONV_POOL.columns, problem, variant, CONV_POOL.dtype
    assert reasons(*asked).tolist() == expected
    mask = supported_mask(*asked)
    assert mask.tolist() == [reason is None for reason in expected]


@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
def test_masks_of_many_convolutions_are_those_of_each(variant: str) -> None:
    pool = load_pool(Target("grouped_conv", variant, "bf16", "sm90"))
    problems = [*REAL["grouped_conv"].values(), *TINY_STRIPS.values()]
    masks = pool.supported_of(problems * 10)  # more than are computed at a time
    assert masks.any()
    assert not masks.all()
    assert masks.tolist() == [pool.supported(p).tolist() for p in problems] * 10


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@given(problems=st.lists(gemm_problems(), max_size=4))
@settings(max_examples=20)
def test_masks_of_many_products_are_those_of_each(dtype: str, problems: list[GemmProblem]) -> None:
    masks = GEMM_POOLS[dtype].supported_of(problems)
    assert masks.shape == (len(problems), len(GEMM_POOLS[dtype]))
    assert masks.tolist() == [GEMM_POOLS[dtype].supported(p).tolist() for p in problems]


def test_a_mask_beside_a_problem_that_int64_hardly_holds_is_that_of_each() -> None:
    pool, problems = GEMM_POOLS["bf16"], [GemmProblem(512, 512, 512), GemmProblem(2**20, 2**20, 2**20)]
    assert pool.supported_of(problems).tolist() == [pool.supported(p).tolist() for p in problems]


@pytest.mark.long
@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
def test_the_mask_of_a_wide_pool_is_the_rule_of_each_kernel(variant: str) -> None:
    pool = wide_pool(Target("grouped_conv", variant, "bf16", "sm90"))
    for problem in (*REAL["grouped_conv"].values(), *TINY_STRIPS.values()):
        expected = [unsupported(k, problem, variant, pool.dtype) for k in pool.kernels]
        assert pool.unsupported(problem).tolist() == expected


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
@given(problem=gemm_problems())
@settings(max_examples=30)
def test_the_mask_of_a_gemm_pool_is_the_rule_of_each_kernel(dtype: str, problem: GemmProblem) -> None:
    pool = GEMM_POOLS[dtype]
    expected = [unsupported(k, problem, "universal", dtype) for k in pool.kernels]
    assert pool.unsupported(problem).tolist() == expected
    assert pool.supported(problem).tolist() == [reason is None for reason in expected]


@pytest.mark.parametrize("pool", [CONV_POOL, GEMM_POOLS["fp8"]], ids=["conv", "gemm"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_formulas_over_columns_equal_those_of_each_kernel(dtype: str, pool: Pool) -> None:
    each, columns = pool.kernels, SimpleNamespace(**pool.columns)
    assert shared_memory_bytes(columns, dtype).tolist() == [shared_memory_bytes(k, dtype) for k in each]
    accumulators = accumulators_per_thread(columns, SM90)
    assert accumulators.tolist() == [accumulators_per_thread(k, SM90) for k in each]
    assert np.issubdtype(accumulators.dtype, np.integer)


@pytest.mark.long
@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
@given(problem=conv_problems())
@settings(max_examples=30)
def test_the_shipped_pools_have_a_default_for_whatever_fits_32_bits(variant: str, problem: GroupedConvProblem) -> None:
    pool = load_pool(Target("grouped_conv", variant, "bf16", "sm90"))
    default = pool.default_for(problem)
    reason = unsupported(pool.default, problem, variant, pool.dtype) or ""
    assert default is not None or "2^31 elements" in reason


@pytest.mark.long
@pytest.mark.parametrize("dtype", TRITON_DTYPES["gemm"])
@given(problem=gemm_problems())
@settings(max_examples=30)
def test_the_shipped_pool_has_a_default_for_every_matrix_product(dtype: str, problem: GemmProblem) -> None:
    assert load_pool(Target("gemm", "universal", dtype, "sm90")).default_for(problem) is not None


@pytest.mark.parametrize("sizes", [(1, 1, 2**20), (1, 2**20, 17), (2**20, 1, 17), (3, 5, 2**19), (1, 1, 1)])
def test_the_shipped_pool_has_a_default_for_extreme_matrix_products(sizes: tuple[int, int, int]) -> None:
    pool = load_pool(Target("gemm", "universal", "fp8", "sm90"))
    assert all(pool.default_for(GemmProblem(*sizes, layout)) for layout in GEMM_LAYOUTS)


def test_shares_are_counted_in_32_bits() -> None:
    problem = GemmProblem(1, 1, 2**31 - 1)
    thin = kernel(pipeline="plain", tile_m=16, tile_n=16, tile_k=16, num_warps=1)
    assert unsupported(replace(thin, split_k=14), problem, "universal", "bf16") is None
    reason = "split_k x steps along K is 2^31 or more"
    assert unsupported(replace(thin, split_k=15), problem, "universal", "bf16") == reason


@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
@pytest.mark.parametrize("is_triton", [True, False])
def test_kernels_that_take_channels_last_say_so(variant: str, is_triton: bool) -> None:
    """Alone and, as arrays, in a whole pool; the rule is the first, so it is the reason that a table holds."""
    shipped = load_pool(Target("grouped_conv", variant, "bf16", "sm90"))
    pool = shipped if is_triton else Pool("grouped_conv", variant, "bf16", ck_kernels("grouped_conv"))
    for layout, reason in (("NHWGC", None), ("NGCHW", "take channels last (NHWGC) only")):
        problem = replace(GroupedConvProblem(**LAYER), layout=layout)
        assert pool.supported(problem).any() == (reason is None)
        assert reason is None or reason in (unsupported(pool.default, problem, variant, pool.dtype) or "")


def test_there_are_no_fp32_kernels() -> None:
    target = Target("grouped_conv", "forward", "fp32", "sm90")
    default = load_pool(Target("grouped_conv", "forward", "bf16", "sm90")).default
    assert illegal(default, target, load_arch("sm90")) == "there are no fp32 kernels for grouped_conv"
