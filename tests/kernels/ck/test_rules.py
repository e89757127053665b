"""Each rule for CK Tile kernels, at its limit."""

from __future__ import annotations

import re
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import conv_problems, gemm_problems
from tilewise.arch import load_arch
from tilewise.kernels import backend, supported_mask, unsupported
from tilewise.kernels.ck import CkKernel, parse_name
from tilewise.kernels.ck._ck_rules import SUFFIXES, build_fault, illegal_reason, shape_of, support_checks
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, GroupedConvProblem, Problem, Target

GFX942, GFX950 = load_arch("gfx942"), load_arch("gfx950")
FORWARD = Target("grouped_conv", "forward", "bf16", "gfx950")
GEMM = Target("gemm", "universal", "fp8", "gfx950")
CONV = CkKernel(
    128, 128, 64, "compv3", 2, warp_m=2, warp_n=2, warp_k=1, warp_tile_m=32, warp_tile_n=32, warp_tile_k=16,
    scheduler="intrawave", epilogue="cshuffle", vector_a=8, vector_b=8, vector_c=8, num_groups_to_merge=1,
)  # fmt: skip
FP8 = parse_name(
    "gemm_universal_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
).kernel
LAYER = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 14, "Wi": 14, "Y": 3, "X": 3}


def conv(**change: Any) -> CkKernel:
    return CkKernel(**{**CONV.to_dict(), **change})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"tile_k": 0}, "tile sizes must be at least 1"),
        ({"pipeline": "compv9"}, "pipeline must be one of basic_v1, mem, compv3"),
        ({"scheduler": "interwave"}, "compv3 does not exist with interwave"),
        ({"pipeline": "compv4"}, "compv4 does not exist with intrawave"),
        ({"epilogue": "fancy"}, "epilogue must be one of cshuffle, default, got 'fancy'"),
        ({"vector_c": 3}, r"vector_c must be one of 1, 2, 4, 8, 16 \(hardware widths\), got 3"),
        ({"vector_a": 2}, None),
        ({"vector_a": 1}, "copying A needs more than one warp: tile_m 128 > 64 x vector 1"),
        ({"vector_b": 1}, "copying B needs more than one warp: tile_n 128 > 64 x vector 1"),
        ({"warp_m": 3}, "warps must be powers of two"),
        ({"warp_k": 0}, "warps must be powers of two"),
        ({"warp_m": 8, "warp_n": 4}, "a block has at most 16 warps, got 32"),
        ({"warp_m": 1, "warp_n": 1}, None),  # 256 accumulators a lane
        ({"warp_m": 1, "warp_n": 1, "tile_m": 256}, "a lane has at most 256 accumulators, got 512"),
        ({"warp_tile_k": 32}, "gfx950 has no 32x32x32 warp tile for bf16"),
        ({"tile_m": 96}, "warp_m x warp_tile_m = 64 must divide tile_m 96"),
        ({"tile_k": 24}, "warp_k x warp_tile_k = 16 must divide tile_k 24"),
        ({"tile_k": 256}, None),  # 128 KiB
        ({"tile_k": 512}, "needs 262144 bytes of shared memory, gfx950 has 163840 per workgroup"),
        ({"ndim": 0, "gemm_layout": "rcr"}, "it is not a kernel of grouped_conv"),
    ],
)
def test_a_configuration_is_legal_or_the_rule_is_named(change: dict[str, Any], reason: str | None) -> None:
    why = illegal_reason(conv(**change), FORWARD, GFX950)
    assert why == reason if reason is None else re.match(reason, why or "")


def test_shared_memory_is_what_sets_the_archs_apart() -> None:
    big = conv(tile_k=128)
    assert illegal_reason(big, FORWARD, GFX950) is None
    assert illegal_reason(big, FORWARD, GFX942) is None  # 64 KiB exactly
    doubled = conv(tile_k=128, double_smem_buffer=True)
    assert illegal_reason(doubled, FORWARD, GFX950) is None
    assert (
        illegal_reason(doubled, FORWARD, GFX942)
        == "needs 131072 bytes of shared memory, gfx942 has 65536 per workgroup"
    )
    assert illegal_reason(conv(tile_k=128, pipeline="compv4", scheduler=""), FORWARD, GFX942) is not None  # always two


def test_fp8_has_deeper_instructions_on_gfx950() -> None:
    assert illegal_reason(FP8, GEMM, GFX950) is None
    assert illegal_reason(FP8, GEMM, GFX942) == "gfx942 has no 16x16x128 warp tile for fp8"
    assert illegal_reason(FP8, Target("gemm", "universal", "bf16", "gfx950"), GFX950) is not None


@pytest.mark.parametrize("pipeline", ["basic_v1", "mem", "compv3", "compv4", "compv5", "compv6"])
def test_exactly_the_known_suffix_sets_exist(pipeline: str) -> None:
    modes = ("intrawave", "interwave") if pipeline in ("basic_v1", "mem") else ("intrawave",)
    buffers = (True,) if pipeline == "compv4" else (False, True)
    assert set(SUFFIXES[pipeline]) == set(product(modes, buffers, (False, True)))
    for mode, dsb, si in product(("intrawave", "interwave"), (False, True), (False, True)):
        kernel = CkKernel(
            64, 64, 64, pipeline, 2, scheduler=mode, double_smem_buffer=dsb, store_immediate=si
        )  # fmt: skip
        assert (build_fault(kernel, "bf16") is None) == ((mode, dsb, si) in SUFFIXES[pipeline])


@pytest.mark.parametrize("name", ["compv3", "compv4", "compv5_dsb", "mem_si", "mem"])
def test_old_names_that_tell_no_wave_mode_are_legal(name: str) -> None:
    kernel = parse_name(f"grouped_conv_forward_bf16_2d_64x64x64_{name}").kernel
    assert illegal_reason(kernel, FORWARD, GFX950) is None


@pytest.mark.parametrize("arch", [GFX942, GFX950], ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8"])
def test_the_shape_of_a_tile_is_legal(arch: Any, dtype: str) -> None:
    sides = (16, 32, 48, 64, 128, 256)
    shaped = 0
    for m, n, k in product(sides, sides, (16, 32, 64, 128)):
        shape = shape_of((m, n, k), dtype, arch)
        if shape is not None:
            kernel = CkKernel(m, n, k, "compv3", 2, "", *shape.warps, *shape.warp_tile)
            reason = build_fault(kernel, dtype, arch)
            assert reason is None or "shared memory" in reason
            shaped += 1
    assert shaped > 80


def test_a_shape_takes_four_warps_where_they_fit() -> None:
    assert shape_of((128, 128, 64), "bf16", GFX950) == ((2, 2, 1), (32, 32, 16), (8, 8, 8))
    assert shape_of((16, 64, 128), "bf16", GFX950) == ((1, 4, 1), (16, 16, 32), (8, 8, 4))
    assert shape_of((16, 16, 8), "bf16", GFX950) is None


UNSTATED = conv(vector_a=0, vector_b=0, vector_c=0)  # then CK Tile's own widths hold: 4, 8, 8


@pytest.mark.parametrize(
    ("kernel", "problem", "variant", "reason"),
    [
        (CONV, {}, "forward", None),
        (CONV, {"Di": 4, "Z": 3}, "forward", "a 2d kernel has no depth"),
        (conv(ndim=3), {"Di": 4, "Z": 3}, "forward", None),
        (conv(ndim=3), {}, "forward", None),
        (CONV, {"C": 60}, "forward", "vector_a must divide a group's channels"),
        (CONV, {"K": 60}, "forward", "vector_c must divide a group's channels"),
        (CONV, {"K": 60}, "bwd_data", "vector_a must divide a group's channels"),
        (CONV, {"C": 60}, "bwd_weight", "vector_b must divide a group's channels"),
        (CONV, {"C": 64, "G": 16}, "forward", "vector_a must divide a group's channels"),
        (conv(num_groups_to_merge=8), {"C": 64, "G": 16}, "forward", None),
        (conv(num_groups_to_merge=8), {"G": 4}, "forward", "the groups to merge must divide the groups"),
        (conv(vector_a=1, vector_b=1, vector_c=1), {"C": 3, "K": 5}, "forward", None),
        (UNSTATED, {}, "forward", None),
        (UNSTATED, {"C": 3}, "forward", "vector_a must divide a group's channels"),
        (UNSTATED, {"C": 60}, "forward", "vector_b must divide a group's channels"),
        (UNSTATED, {"K": 60}, "forward", "vector_c must divide a group's channels"),
        (UNSTATED, {"K": 60}, "bwd_data", None),
    ],
)
def test_what_a_convolution_supports(kernel: CkKernel, problem: Any, variant: str, reason: str | None) -> None:
    assert unsupported(kernel, GroupedConvProblem(**{**LAYER, **problem}), variant, "bf16") == reason


@pytest.mark.parametrize(
    ("change", "sizes", "reason"),
    [
        ({}, (256, 128, 256), None),
        ({}, (250, 128, 256), "tile_m must divide M"),
        ({}, (256, 130, 256), "tile_n must divide N"),
        ({}, (256, 128, 200), "tile_k must divide K"),
        ({"pad_m": True, "pad_n": True, "pad_k": True}, (250, 130, 200), None),
        ({"pad_m": True, "pad_k": True, "vector_a": 16}, (250, 128, 200), "vector_a must divide a row"),
        ({"gemm_layout": "crr"}, (256, 128, 256), "the kernel is compiled for another layout"),
        ({"split_k": 2}, (256, 128, 256), None),
        ({"split_k": 3}, (256, 128, 256), "split_k x tile_k must divide K"),
        ({"split_k": 2}, (256, 128, 200), "tile_k must divide K"),
        ({"split_k": 2, "pad_k": True}, (256, 128, 129), None),  # 128 and 1
        ({"split_k": 2, "pad_k": True}, (256, 128, 128), "split_k leaves a part of K empty"),
        ({"split_k": 4, "pad_k": True}, (256, 128, 768), "split_k leaves a part of K empty"),  # 3 x 256 and none
        ({"split_k": 4, "pad_k": True}, (256, 128, 769), None),
        ({"split_k": 4, "pad_k": True, "warp_tile_k": 16}, (256, 128, 768), None),  # 4 x 192
    ],
)
def test_what_a_matrix_product_supports(change: Any, sizes: tuple[int, int, int], reason: str | None) -> None:
    kernel = CkKernel(**{**FP8.to_dict(), **change})
    assert unsupported(kernel, GemmProblem(*sizes, "rcr"), "universal", "fp8") == reason


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"split_k": 4}, None),  # the width is not stated
        ({"split_k": 4, "vector_c": 2}, None),
        ({"vector_c": 1}, None),
        ({"split_k": 4, "vector_c": 1}, "vector_c must be even if K is split: 16-bit results are added in pairs"),
    ],
)
def test_split_results_of_16_bits_are_added_in_pairs(change: dict[str, Any], reason: str | None) -> None:
    kernel = CkKernel(**{**FP8.to_dict(), **change})
    assert illegal_reason(kernel, GEMM, GFX950) == reason
    assert build_fault(kernel, "fp32") is None


def test_another_op_has_no_kernels() -> None:
    other: Any = SimpleNamespace(op="softmax")
    assert next(support_checks(CONV, other, "forward", "bf16"))[1] == "CK Tile has no kernels for op softmax"


kernels = st.builds(
    lambda ndim, layout, vectors, merged, pads, split: CkKernel(
        64, 32, 16, "compv3", ndim, layout, vector_a=vectors[0], vector_b=vectors[1], vector_c=vectors[2],
        num_groups_to_merge=merged, pad_m=pads[0], pad_n=pads[1], pad_k=pads[2], split_k=0 if ndim else split,
    ),
    st.sampled_from([0, 2, 3]), st.sampled_from(["", *GEMM_LAYOUTS]), st.tuples(*[st.sampled_from([0, 1, 2, 8])] * 3),
    st.sampled_from([0, 1, 2]), st.tuples(*[st.booleans()] * 3), st.sampled_from([0, 2, 3]),
)  # fmt: skip


@given(st.lists(kernels, min_size=1, max_size=8), st.one_of(conv_problems(max_size=32), gemm_problems()), st.data())
def test_many_kernels_at_once_get_the_answers_of_each(
    pool: list[CkKernel], problem: Problem, data: st.DataObject
) -> None:
    variant = data.draw(st.sampled_from(type(problem).variants))
    columns = {n: np.array([getattr(k, n) for k in pool]) for n in CkKernel.column_names()}
    mask = supported_mask(backend("ck_tile"), columns, problem, variant, "bf16")
    assert mask.tolist() == [unsupported(k, problem, variant, "bf16") is None for k in pool]
