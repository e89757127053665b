"""Golden values by hand, and invariants for every problem and kernel."""

from __future__ import annotations

import dataclasses
from math import log2, prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.shapes import REAL, TINY, TINY_BOXES, TINY_MERGED, TINY_PATCHES, TINY_STRIPS
from strategies import CONV_POOL, conv_kernels, conv_problems
from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.features import feature_table
from tilewise.features._block_inputs import CLASSES_PER_PIPELINE
from tilewise.features._conv_inputs import ConvInputs
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.ck import CkKernel
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton._limits import RESULT_BYTES
from tilewise.kernels.triton._rules import shared_memory_bytes, stores_tiles
from tilewise.kernels.triton._shapes import merged_groups
from tilewise.kernels.triton.programs import family_of
from tilewise.kernels.triton.programs.conv._merged import merged_constants
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import GroupedConvProblem

SM90 = load_arch("sm90")
CONVS: list[Any] = [
    p
    for shapes in (TINY["grouped_conv"], TINY_BOXES, TINY_STRIPS, TINY_MERGED, TINY_PATCHES, REAL["grouped_conv"])
    for p in shapes.values()
]
TABLE = feature_table("grouped_conv")
# a grouped 3x3 layer: 8 x 14 x 14 = 1568 pixels, 48 input and 96 output channels a group, 2 groups
GROUPED = GroupedConvProblem(N=8, C=96, K=192, G=2, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
# a strided depthwise 3x3 layer: 4 x 14 x 14 = 784 pixels, 64 channels
DEPTHWISE = GroupedConvProblem(N=4, C=64, K=64, G=64, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1, stride_h=2, stride_w=2)
MERGED = [kernel for kernel in CONV_POOL.kernels if kernel.pipeline == "merged"]
# a 1x1 layer with few pixels and many channels
POINT = GroupedConvProblem(N=1, C=2048, K=512, G=1, Hi=7, Wi=7, Y=1, X=1)


def features(problem: GroupedConvProblem, kernel: Kernel | str, **change: Any) -> dict[str, float]:
    kernel = Kernel.from_config(kernel) if isinstance(kernel, str) else kernel
    settings_: dict[str, Any] = {"variant": "forward", "dtype": "bf16", "arch": SM90} | change
    row = TABLE.matrix(problem.to_dict(), kernel.to_dict(), **settings_)[0]
    return dict(zip(TABLE.names, row.tolist(), strict=True))


def check(problem: GroupedConvProblem, config: str, expected: dict[str, float]) -> None:
    seen = features(problem, config)
    assert {k: seen[k] for k in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("variant", "config"),
    [
        ("forward", "64x64x32_taps_w4_s3_g1_k1"),
        ("forward", "64x64x32_flat_w4_s3_g1_k2"),
        ("forward", "64x64x32_box_w4_s3_g1_k1"),
        ("forward", "32x16x1_lanes_w1_s3_g1_k1"),
        ("forward", "32x16x8_strip_w1_s1_g1_k1"),
        ("forward", "32x32x16_merged_w1_s3_g1_k2"),
        ("forward", "64x64x32_mergedbox_w4_s3_g1_k1"),
        ("bwd_data", "64x64x32_mergedbox_w4_s3_g1_k2"),
        ("bwd_data", "128x64x32_box_w4_s3_g1_k2"),
        ("bwd_data", "16x16x4_strip_w1_s1_g1_k1"),
        ("bwd_weight", "32x32x16_merged_w1_s3_g1_k2"),
        ("bwd_weight", "64x64x64_slide_w4_s3_g1_k1"),
    ],
)
def test_the_grid_is_the_launched_one(variant: str, config: str) -> None:
    family, kernel = family_of("grouped_conv", variant), Kernel.from_config(config)
    problems = [p for p in CONVS if not unsupported(kernel, p, variant, "bf16")]
    assert problems
    for problem in problems:
        tensors = [torch.empty(s, device="meta") for s in (*family.operands(problem), family.result(problem), (0,))]
        grid = family.launches(kernel, problem, "bf16", *tensors)[0].grid
        seen = features(problem, kernel, variant=variant)["grid_programs_log2"]
        assert seen == pytest.approx(log2(prod(grid))), problem


def test_problem_golden() -> None:
    check(
        GROUPED,
        "128x64x32_taps_w4_s3_g8_k1",
        {
            "N": 8, "C": 96, "K": 192, "G": 2, "Hi": 14, "Wi": 14, "Ho": 14, "Wo": 14, "taps": 9,
            "group_channels": 48, "group_filters": 96, "channel_alignment": 16, "filter_alignment": 16,
            "gemm_m_log2": log2(1568), "gemm_n_log2": log2(96), "gemm_k_log2": log2(432),
            "gemm_mn_log2": log2(1568 * 192),
            "aspect_mn_log2": log2(1568 / 96), "aspect_mk_log2": log2(1568 / 432), "aspect_nk_log2": log2(96 / 432),
            "flops_log2": log2(260_112_384),  # 2 x 1568 x 192 x 432
            "a_bytes_log2": log2(301_056),  # 2 x 8 x 14 x 14 x 96
            "b_bytes_log2": log2(165_888),  # 2 x 192 x 9 x 48
            "result_bytes_log2": log2(602_112),  # 2 x 1568 x 192
            "min_bytes_log2": log2(1_069_056),
            "intensity_log2": log2(260_112_384 / 1_069_056),
            "ridge_log2": log2(260_112_384 / 1_069_056 / (989.5e12 / 4800e9)),
            "l2_log2": log2(1_069_056 / 62_914_560),
            "overlap_log2": log2(9),
            "is_pointwise": 0, "is_grouped": 1, "is_depthwise": 0, "is_strided": 0, "is_dilated": 0, "is_padded": 1,
            "is_3d": 0,
        },
    )  # fmt: skip


def test_kernel_golden() -> None:
    check(
        GROUPED,
        "128x64x32_taps_w4_s3_g8_k1",
        {
            "tile_m": 128, "tile_n": 64, "tile_k": 32, "num_warps": 4, "num_stages": 3, "group_m": 8, "split_k": 1,
            "tile_area_log2": 13, "tile_aspect_log2": 1, "tile_intensity": 8192 / 192,
            "accumulators": 64,  # 8192 / 128 threads
            "step_bytes": 12_288,  # (128 + 64) x 32 x 2
            "step_bytes_thread": 96,
            "shared_bytes": 36_864, "shared_share": 36_864 / 232_448,
            "registers": 116,  # 64 sums + 40 + a quarter of 192 x 32 / 128 elements
            "resident": 4,  # registers: 65536 / (120 x 128); shared memory would allow 6
            "resident_warps": 16,
            "bytes_in_flight": 98_304,  # 4 blocks x 2 stages ahead x 12,288
            "warpgroup": 1,
            "pipeline_taps": 1, "pipeline_flat": 0, "pipeline_point": 0, "pipeline_depth": 0,
        },
    )  # fmt: skip


def test_interaction_golden() -> None:
    check(
        GROUPED,
        "128x64x32_taps_w4_s3_g8_k1",
        {
            "tiles_m_log2": log2(13), "tiles_n_log2": 1,
            "steps_log2": log2(18),  # 9 taps x 2, as 48 channels need two steps of 32
            "efficiency_m": 1568 / 1664, "efficiency_n": 0.75, "efficiency_k": 0.75,
            "efficiency": 1568 / 1664 * 0.75 * 0.75,
            "flat_efficiency_k": 432 / 448,
            "programs_log2": log2(52), "programs_per_unit": 52 / 132,  # 13 x 2 x 2 groups
            "waves": 52 / 528, "wave_efficiency": 52 / 528, "unit_efficiency": 52 / 132,
            "program_steps_log2": log2(18), "fill_efficiency": 0.9, "steps_balance": 1,
            "a_traffic_log2": log2(18),  # each pixel in 9 taps, for 2 column tiles
            "b_traffic_log2": log2(13),  # each weight for 13 row tiles
            "traffic_log2": log2((18 * 301_056 + 13 * 165_888 + 602_112) / 1_069_056),
            "workspace_log2": 0,
            "run_bytes": 64, "run_efficiency": 1, "store_bytes": 128, "store_efficiency": 1,
            "channels_over_tile_log2": log2(1.5),
        },
    )  # fmt: skip


def test_flat_rounds_once_over_all_taps() -> None:
    check(
        GROUPED,
        "128x64x32_flat_w4_s3_g1_k1",
        {"steps_log2": log2(14), "efficiency_k": 432 / 448, "pipeline_flat": 1, "pipeline_taps": 0},
    )


def test_depthwise_golden() -> None:
    check(
        DEPTHWISE,
        "32x64x1_depth_w4_s2_g1_k1",
        {
            "is_depthwise": 1, "is_strided": 1, "channel_alignment": 1,
            "tiles_m_log2": log2(25), "tiles_n_log2": 0,  # all 64 channels are columns of one product
            "programs_log2": log2(25),
            "efficiency_m": 0.98, "efficiency_n": 1, "efficiency_k": 1, "steps_log2": log2(9),
            "shared_bytes": 0, "warpgroup": 0, "accumulators": 16,
            "step_bytes": 4_224,  # 32 x 64 inputs and 64 weights of two bytes
            "a_traffic_log2": log2(2.25),  # 9 taps, of which a stride of 2 x 2 shares out 4 pixels
            "b_traffic_log2": log2(25),
            "run_bytes": 128, "store_bytes": 128,
        },
    )  # fmt: skip


def test_depthwise_by_matrix_units_wastes_them() -> None:
    check(
        DEPTHWISE,
        "64x32x64_flat_w4_s2_g1_k1",
        {
            "efficiency_n": 1 / 32, "efficiency_k": 9 / 64, "programs_log2": log2(13 * 64),
            "run_bytes": 2, "run_efficiency": 2 / 32, "store_efficiency": 2 / 32,
        },
    )  # fmt: skip


def test_split_k_golden() -> None:
    check(
        POINT,
        "64x64x64_taps_w4_s4_g1_k16",
        {
            "is_pointwise": 1, "tiles_m_log2": 0, "tiles_n_log2": 3, "steps_log2": 5, "program_steps_log2": 1,
            "programs_log2": 7, "steps_balance": 1, "fill_efficiency": 0.4,
            # 16 shares of 49 x 512 sums of 4 bytes, over 2 x (49 x 2048 + 512 x 2048 + 49 x 512)
            "workspace_log2": log2(1 + 1_605_632 / 2_348_032),
        },
    )  # fmt: skip


def test_backward_variants_swap_their_operands() -> None:
    kernel = "128x64x32_taps_w4_s3_g8_k1"
    data = features(GROUPED, kernel, variant="bwd_data")
    assert data["a_bytes_log2"] == pytest.approx(log2(602_112))
    assert data["result_bytes_log2"] == pytest.approx(log2(301_056))
    assert data["gemm_n_log2"] == pytest.approx(log2(48))
    assert data["steps_log2"] == pytest.approx(log2(9 * 3))  # 96 output channels a tap
    weight = features(GROUPED, kernel, variant="bwd_weight")
    assert weight["gemm_k_log2"] == pytest.approx(log2(1568))
    assert weight["steps_log2"] == pytest.approx(log2(49))
    assert weight["result_bytes_log2"] == pytest.approx(log2(165_888))


def test_estimated_efficiency_by_hand() -> None:
    """One program, one step, one wave: the pipeline model step by step."""
    p = GroupedConvProblem(N=1, C=32, K=64, G=1, Hi=8, Wi=16, Y=1, X=1)
    seen = features(p, "128x64x32_taps_w4_s3_g1_k1")
    latency, launch = 800, 4000
    flops_per_clock = 989.5e6 / (1980 * 132)
    compute = 2 * 128 * 64 * 32 / flops_per_clock
    grid = max(compute, 12_288 / 64, latency / 2) + 2 * latency + 128 * 64 * 2 / 64
    least = max(2 * 128 * 64 * 32 / (flops_per_clock * 132), 2 * (4096 + 2048 + 8192) / (4800e3 / 1980))
    expected = (least + launch) / (max(grid, least) + launch)
    assert seen["estimated_efficiency_log2"] == pytest.approx(log2(expected))
    assert seen["compute_time_log2"] == pytest.approx(log2(compute / (least + launch)))


# ---- invariants ----------------------------------------------------------------------------------------------------

SHARES = (
    "efficiency_m", "efficiency_n", "efficiency_k", "efficiency", "flat_efficiency_k", "wave_efficiency",
    "unit_efficiency", "fill_efficiency", "steps_balance", "run_efficiency", "store_efficiency",
)  # fmt: skip


@given(conv_problems(), conv_kernels())
def test_shares_lie_between_0_and_1(problem: GroupedConvProblem, kernel: Kernel) -> None:
    # A wider group than its tile is refused, and its steps say nothing.
    assume(kernel.pipeline != "slide" or not unsupported(kernel, problem, "forward", "bf16"))
    seen = features(problem, kernel)
    assert {name: seen[name] for name in SHARES if not 0 < seen[name] <= 1} == {}


@pytest.mark.long
@given(conv_problems(), conv_kernels())
def test_doubling_a_tile_never_raises_its_count(problem: GroupedConvProblem, kernel: Kernel) -> None:
    assume(kernel.pipeline in ("taps", "flat", "point"))
    base = features(problem, kernel)
    for tile, count in (("tile_m", "tiles_m_log2"), ("tile_n", "tiles_n_log2"), ("tile_k", "steps_log2")):
        doubled = features(problem, dataclasses.replace(kernel, **{tile: 2 * getattr(kernel, tile)}))
        assert doubled[count] <= base[count]
        assert doubled["programs_log2"] <= base["programs_log2"]
        assert doubled["efficiency"] <= base["efficiency"] * (1 + 1e-12)


@given(conv_kernels())
def test_exact_multiples_waste_nothing(kernel: Kernel) -> None:
    assume(kernel.pipeline in ("taps", "flat", "point"))
    problem = GroupedConvProblem(
        N=kernel.tile_m, C=2 * kernel.tile_k * kernel.split_k, K=3 * kernel.tile_n, G=1, Hi=3, Wi=1, Y=1, X=1
    )
    seen = features(problem, kernel)
    for name in ("efficiency_m", "efficiency_n", "efficiency_k", "efficiency", "steps_balance"):
        assert seen[name] == 1
    assert (seen["tiles_m_log2"], seen["tiles_n_log2"]) == pytest.approx((log2(3), log2(3)))
    one_more = features(dataclasses.replace(problem, K=problem.K + 1), kernel)
    assert one_more["efficiency_n"] < 1
    assert one_more["tiles_n_log2"] == 2


@given(conv_problems(), conv_kernels())
def test_taps_never_wastes_less_than_flat(problem: GroupedConvProblem, kernel: Kernel) -> None:
    assume(kernel.pipeline != "depth")
    taps = features(problem, dataclasses.replace(kernel, pipeline="taps"))
    flat = features(problem, dataclasses.replace(kernel, pipeline="flat"))
    assert taps["efficiency_k"] <= flat["efficiency_k"] == flat["flat_efficiency_k"]
    if problem.Z * problem.Y * problem.X == 1:
        assert taps["efficiency_k"] == flat["efficiency_k"]


@pytest.mark.parametrize(
    ("c", "k", "copied"),
    [(64, 64, 0), (64, 61, 0), (61, 64, (1568 + 64 * 9) * 64), (61, 59, (1568 + 59 * 9) * 64)],
)
def test_copies_of_operands_take_workspace(c: int, k: int, copied: int) -> None:
    problem = dataclasses.replace(GROUPED, G=1, C=c, K=k)
    least = 1568 * c + 9 * c * k + 1568 * k
    check(problem, "128x128x64_relay_w8_s4_g1_k1", {"workspace_log2": log2(1 + copied / least)})


@given(conv_problems(), conv_kernels())
def test_splitting_k_multiplies_programs_and_shares_out_steps(problem: GroupedConvProblem, kernel: Kernel) -> None:
    assume(kernel.pipeline != "depth")
    whole = features(problem, dataclasses.replace(kernel, split_k=1))
    split = features(problem, dataclasses.replace(kernel, split_k=4))
    assert split["programs_log2"] == pytest.approx(whole["programs_log2"] + 2)
    assert split["program_steps_log2"] <= whole["program_steps_log2"]
    assert whole["workspace_log2"] < split["workspace_log2"]
    assert (whole["workspace_log2"] > 0) == (kernel.pipeline == "relay" and problem.C % 8 > 0)  # it copies operands
    assert split["traffic_log2"] > whole["traffic_log2"]


@pytest.mark.long
@given(conv_problems(), conv_kernels())
def test_more_images_are_more_rows_and_nothing_else(problem: GroupedConvProblem, kernel: Kernel) -> None:
    one, two = features(problem, kernel), features(dataclasses.replace(problem, N=2 * problem.N), kernel)
    assert two["gemm_m_log2"] == pytest.approx(one["gemm_m_log2"] + 1)
    assert two["flops_log2"] == pytest.approx(one["flops_log2"] + 1)
    for name in ("gemm_n_log2", "gemm_k_log2", "steps_log2", "tiles_n_log2", "b_bytes_log2", "run_bytes", "resident"):
        assert two[name] == one[name]


@given(conv_problems(), conv_kernels())
def test_the_estimate_is_never_faster_than_the_roofline(problem: GroupedConvProblem, kernel: Kernel) -> None:
    assume(kernel.pipeline != "slide" or not unsupported(kernel, problem, "forward", "bf16"))
    seen = features(problem, kernel)
    if kernel.pipeline != "depth":  # the roofline is that of matrix units with whole tiles, which depth does without
        assert seen["estimated_efficiency_log2"] <= 1e-9


def test_shared_memory_is_no_more_than_the_rules_allow_for() -> None:
    for dtype in ("bf16", "fp8"):
        columns, arch = CONV_POOL.columns, SM90
        used = TABLE.select(["shared_bytes"]).matrix(
            GROUPED.to_dict(), columns, variant="forward", dtype=dtype, arch=arch
        )
        stored = [stores_tiles(k) * k.tile_m * k.tile_n * RESULT_BYTES for k in CONV_POOL.kernels]
        most = [shared_memory_bytes(k, dtype) + s for k, s in zip(CONV_POOL.kernels, stored, strict=True)]
        assert (used[:, 0] <= most).all()


@given(conv_problems(), conv_kernels())
def test_what_is_not_copied_ahead_takes_registers_instead_of_shared_memory(
    problem: GroupedConvProblem, kernel: Kernel
) -> None:
    even = dataclasses.replace(
        problem, C=problem.C // problem.G * 8 * problem.G, K=problem.K // problem.G * 8 * problem.G
    )
    assert features(even, kernel)["shared_bytes"] >= features(problem, kernel)["shared_bytes"]
    assert features(even, kernel)["registers"] <= features(problem, kernel)["registers"]


@given(conv_kernels())
def test_resident_blocks_fit_a_compute_unit(kernel: Kernel) -> None:
    for name in ("sm90", "gfx942", "gfx950"):
        arch = load_arch(name)
        seen = features(GROUPED, kernel, arch=arch)
        blocks = seen["resident"]
        assert blocks >= 1
        if blocks > 1:
            assert blocks * seen["shared_bytes"] <= arch.shared_memory_unit_bytes
            assert blocks * kernel.num_warps * arch.warp_size <= arch.max_threads
            assert blocks * seen["registers"] * kernel.num_warps * arch.warp_size <= arch.registers
            assert blocks <= arch.max_blocks


def test_a_row_swizzle_raises_the_reuse_of_a_wave() -> None:
    """A wide product: going along the columns of one row tile reuses little, a block of rows more."""
    problem = GroupedConvProblem(N=64, C=1024, K=65536, G=1, Hi=16, Wi=16, Y=1, X=1)
    plain = features(problem, "128x128x64_taps_w4_s4_g1_k1")
    swizzled = features(problem, "128x128x64_taps_w4_s4_g8_k1")
    assert swizzled["wave_reuse_log2"] > plain["wave_reuse_log2"] + 1


def test_warpgroup_instructions_need_four_warps_and_64_rows() -> None:
    flags = {
        config: features(GROUPED, config)["warpgroup"]
        for config in ("64x64x64_taps_w4_s3_g1_k1", "32x64x64_taps_w4_s3_g1_k1", "64x64x64_taps_w2_s3_g1_k1")
    }
    assert list(flags.values()) == [1, 0, 0]


@pytest.mark.parametrize(("channels", "expected"), [(1, 1), (3, 1), (6, 2), (8, 8), (24, 8), (48, 16), (64, 16)])
def test_alignment_is_a_power_of_two_up_to_16(channels: int, expected: int) -> None:
    problem = dataclasses.replace(GROUPED, C=2 * channels)
    assert features(problem, CONV_POOL.default)["channel_alignment"] == expected


def test_a_third_dimension_is_seen() -> None:
    flat, deep = GROUPED, dataclasses.replace(GROUPED, Di=4, Z=3, pad_d=1)
    one, other = features(flat, CONV_POOL.default), features(deep, CONV_POOL.default)
    assert (one["is_3d"], other["is_3d"]) == (0, 1)
    assert other["taps"] == 27
    assert other["gemm_m_log2"] == pytest.approx(one["gemm_m_log2"] + 2)


def test_the_schema_is_pinned() -> None:
    """Changing this hash retires every trained model: do so on purpose, with SCHEMA_VERSION if values change."""
    assert (len(TABLE.names), TABLE.schema_hash[:12]) == (188, "0fc7c4f6fadf")


def test_the_grid_of_a_strided_gradient_has_residue_classes() -> None:
    """3x3 with stride 2: four classes of input pixels, reached by 4, 2, 2 and 1 of the taps."""
    p = GroupedConvProblem(N=4, C=64, K=128, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1, stride_h=2, stride_w=2)
    seen = features(p, "128x64x64_taps_w4_s3_g8_k1", variant="bwd_data")
    # 784 pixels a class in 7 tiles of 128; 128 output channels are 2 steps a tap, 9 taps over 4 classes
    assert seen["grid_programs_log2"] == pytest.approx(log2(4 * 7))
    assert seen["grid_steps_log2"] == pytest.approx(log2(2 * 9 / 4))
    forward = features(p, "128x64x64_taps_w4_s3_g8_k1")
    assert (forward["grid_programs_log2"], forward["grid_steps_log2"]) == (
        forward["programs_log2"],
        forward["program_steps_log2"],
    )


def test_the_grid_of_a_filter_gradient_pads_each_tap() -> None:
    p = GroupedConvProblem(N=4, C=80, K=128, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
    taps = features(p, "64x64x64_taps_w4_s3_g1_k4", variant="bwd_weight")
    flat = features(p, "64x64x64_flat_w4_s3_g1_k4", variant="bwd_weight")
    assert taps["grid_programs_log2"] == pytest.approx(log2(2 * 9 * 2 * 4))  # 80 channels: 2 tiles, for each of 9 taps
    assert flat["grid_programs_log2"] == pytest.approx(log2(2 * 12 * 4))  # 720 columns: 12 tiles
    assert taps["grid_steps_log2"] == pytest.approx(log2(13))  # 3136 pixels: 49 steps in 4 shares


def test_the_grid_of_a_filter_gradient_by_boxes() -> None:
    p = GroupedConvProblem(N=3, C=80, K=128, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
    box = features(p, "64x128x64_box_w4_s3_g1_k4", variant="bwd_weight")
    assert box["grid_programs_log2"] == pytest.approx(log2(2 * 9 * 1 * 4))
    assert box["grid_steps_log2"] == pytest.approx(log2(3))  # 3 x 2 x 2 boxes of 8 x 8 pixels in 4 shares
    three = features(p, "64x192x64_box_w4_s3_g1_k1", variant="bwd_weight")
    assert three["grid_programs_log2"] == pytest.approx(log2(2 * 3 * 2))  # three taps a tile, of 64 channels


def test_merged_groups_by_hand() -> None:
    p = GroupedConvProblem(N=2, C=128, K=128, G=32, Hi=8, Wi=8, Y=3, X=3, pad_h=1, pad_w=1)  # 4 channels a group
    for variant in ("forward", "bwd_data"):
        seen = features(p, "64x64x64_merged_w4_s3_g1_k1", variant=variant)  # 16 groups a tile, and as many wasted
        assert seen["programs_log2"] == pytest.approx(log2(2 * 2))  # tiles of 64 pixels x halves of the channels
        assert seen["steps_log2"] == pytest.approx(log2(9))
        assert seen["efficiency_n"] == pytest.approx(1)
        assert seen["efficiency_k"] == seen["efficiency"] == pytest.approx(1 / 16)
        assert seen["a_traffic_log2"] == pytest.approx(log2(9))  # each tap loads all channels once
    seen = features(p, "64x128x64_merged_w4_s3_g1_k1", variant="bwd_weight")
    assert seen["programs_log2"] == pytest.approx(log2(5 * 2))  # 9 taps x 64 channels in tiles of 128
    assert seen["efficiency"] == pytest.approx(9 / 10 / 16)
    rest = GroupedConvProblem(N=2, C=20, K=20, G=5, Hi=8, Wi=8, Y=1, X=1)
    assert features(rest, "64x16x16_merged_w4_s3_g1_k1")["efficiency_n"] == pytest.approx(20 / 32)


@pytest.mark.long
def test_merged_groups_leave_the_features_of_other_kernels_as_they_are() -> None:
    others = ["64x64x32_taps_w4_s3_g1_k1", "64x32x64_flat_w4_s3_g1_k8", "8x8x1_depth_w1_s1_g1_k1"]
    for variant in ("forward", "bwd_data", "bwd_weight"):
        for problem in CONVS:
            several = [Kernel.from_config(c) for c in (*others, "16x64x64_merged_w4_s3_g1_k1")]
            columns = {n: np.array([k.to_dict()[n] for k in several]) for n in several[0].to_dict()}
            rows = TABLE.matrix(problem.to_dict(), columns, variant=variant, dtype="bf16", arch=SM90)
            for row, config in zip(rows, others, strict=False):
                assert dict(zip(TABLE.names, row.tolist(), strict=True)) == features(problem, config, variant=variant)


def test_the_grid_of_a_filter_gradient_by_strips() -> None:
    p = GroupedConvProblem(N=4, C=96, K=96, G=96, Hi=28, Wi=28, Y=5, X=3, pad_h=2, pad_w=1)
    seen = features(p, "64x64x8_strip_w4_s1_g1_k4", variant="bwd_weight")
    assert seen["grid_programs_log2"] == pytest.approx(log2(5 * 2 * 4))  # filter rows x tiles of channels x shares
    assert seen["grid_steps_log2"] == pytest.approx(log2(14 * 4 * 3 / 4))  # 112 rows / 8, 4 strips each, for 3 taps


def test_tiles_beyond_the_matrix_read_the_last_row_again() -> None:
    exact = GroupedConvProblem(N=8, C=64, K=128, G=1, Hi=16, Wi=16, Y=1, X=1)
    kernel = "128x128x64_point_w8_s3_g8_k1"
    assert features(exact, kernel)["repeated_log2"] == 0
    beyond = features(dataclasses.replace(exact, K=136), kernel)["repeated_log2"]
    # 16 row tiles x 120 columns x 128 bytes from one slice of L2
    least = 2.0 ** features(dataclasses.replace(exact, K=136), kernel)["roofline_log2"]
    assert beyond == pytest.approx(log2(1 + 16 * 120 * 128 / 64 / least))
    assert features(dataclasses.replace(exact, K=136), "128x128x64_taps_w8_s3_g8_k1")["repeated_log2"] == 0


def test_another_alignment_is_another_program() -> None:
    def program(pipeline: str, **change: Any) -> int:
        problem = dataclasses.replace(GROUPED, **change)
        kernel = dataclasses.replace(CONV_POOL.default, pipeline=pipeline)
        rows = TABLE.rows_of(problem.to_dict(), kernel.to_dict(), variant="forward", dtype="bf16", arch=SM90)
        return int(rows.program_class[0])

    aligned = program("taps")
    assert aligned == program("taps", C=64, K=16) == program("taps", Hi=5)
    others = [program("taps", **{side: 2 * group}) for side in "CK" for group in (12, 6, 3)]
    assert len({aligned, program("flat"), *others}) == 8
    assert program("taps", C=2 * 20) == program("taps", C=2 * 12)  # 4 divides both, 8 neither


def test_operands_whose_neighbours_fill_four_bytes_are_staged() -> None:
    def shared(group: int) -> float:
        problem = dataclasses.replace(GROUPED, C=GROUPED.G * group)
        rows = TABLE.rows_of(problem.to_dict(), CONV_POOL.default.to_dict(), variant="forward", dtype="bf16", arch=SM90)
        assert isinstance(rows, ConvInputs)
        return float(rows.shared_bytes[0])

    assert shared(8) == shared(4) == shared(6) > shared(3)


@given(st.sampled_from(MERGED), conv_problems(max_size=16))
def test_the_program_of_merged_groups_tells_what_loads_take_at_once(
    kernel: Kernel, problem: GroupedConvProblem
) -> None:
    assume(merged_groups(kernel, problem, "forward") > 1)
    rows = TABLE.rows_of(problem.to_dict(), kernel.to_dict(), variant="forward", dtype="bf16", arch=SM90)
    number = int(rows.program_class[0]) % CLASSES_PER_PIPELINE
    constants = merged_constants(kernel, problem, "forward")
    assert [2 ** (number // base % 4) for base in (16, 4, 1)] == [constants[n] for n in ("RUN", "INPUTS", "OUTPUTS")]
    assert isinstance(rows, ConvInputs)
    assert bool(rows.fills("a", 16)[0]) == (constants["INPUTS"] == 8)


def test_a_call_of_the_vendor_has_a_program_for_each_kind_of_convolution() -> None:
    columns = Pool("grouped_conv", "forward", "bf16", (VendorCall("cudnn"),)).columns

    def program(problem: GroupedConvProblem, **change: Any) -> int:
        values = dataclasses.replace(problem, **change).to_dict()
        return int(TABLE.rows_of(values, columns, variant="forward", dtype="bf16", arch=SM90).program_class[0])

    dense = program(GROUPED, G=1)
    volume, square = program(GROUPED, G=1, Di=9, Z=3), program(GROUPED, C=64, K=64, G=4)
    kinds = [dense, volume, square, program(GROUPED), program(GROUPED, dilation_w=2), program(DEPTHWISE)]
    kinds.append(program(DEPTHWISE, Di=9, Z=3))
    assert len(set(kinds)) == 7
    for change in ({"dilation_h": 3, "pad_h": 3}, {"Y": 9, "pad_h": 4}, {"K": 2 * DEPTHWISE.K}):
        assert program(DEPTHWISE, **change) == kinds[-1]  # cuDNN has no kernel of its own for these either
    assert square == program(GROUPED, C=256, K=256, G=4) == program(GROUPED, C=256, K=256, G=32, stride_w=2)
    for width in (24, 48, 128):  # as many inputs as outputs, but there are no kernels for so many
        assert program(GROUPED, C=4 * width, K=4 * width, G=4) == program(GROUPED, C=64, K=128, G=4)
    assert max(kinds) - dense < CLASSES_PER_PIPELINE


def test_features_are_numbers_for_huge_problems() -> None:
    huge = GroupedConvProblem(N=2**19, C=2**12, K=2**12, G=1, Hi=2**9, Wi=2**9, Y=1, X=1)
    assert np.isfinite(list(features(huge, CONV_POOL.default).values())).all()


def test_kernels_of_another_backend_are_described_in_the_same_words() -> None:
    """CK Tile: two buffers in shared memory are two stages, and flags of the name are features."""
    plain, double = (CkKernel.from_config(f"2d_128x64x64_{p}") for p in ("compv3", "compv4_intrawave_dsb_si"))
    rows = TABLE.matrix(
        GROUPED.to_dict(),
        {n: np.array([getattr(k, n) for k in (plain, double)]) for n in CkKernel.column_names()},
        variant="forward",
        dtype="bf16",
        arch=load_arch("gfx950"),
    )
    one, other = (dict(zip(TABLE.names, row.tolist(), strict=True)) for row in rows)
    assert (one["shared_bytes"], other["shared_bytes"]) == (192 * 64 * 2, 2 * 192 * 64 * 2)
    flags = ("pipeline_compv3", "pipeline_compv4", "scheduler_intrawave", "double_smem_buffer", "store_immediate")
    assert [one[f] for f in flags] == [1, 0, 0, 0, 0]
    assert [other[f] for f in flags] == [0, 1, 1, 1, 1]
    assert one["ndim"] == 2
    assert one["efficiency_k"] == pytest.approx(432 / 448)  # taps and channels are one index
    with pytest.raises(KernelError, match=r"pipeline must be one of basic_v1, .* got taps"):
        features(GROUPED, dataclasses.replace(plain, pipeline="taps"), arch=load_arch("gfx950"))  # type: ignore[arg-type]
