"""Names join CK Tile's files with tilewise's tables: each parses to one kernel, which has this name."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import KernelError
from tilewise.kernels.ck import STRATEGIES, CkKernel, name_with_split, parse_name
from tilewise.ops import GEMM_LAYOUTS

GEMM_NAME = "gemm_universal_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
CONV_NAME = "grouped_conv_forward_bf16_2d_16x64x128_compv4"
MODES = ("", "intrawave", "interwave")
PIPELINES = ("basic_v1", "basic_async_v1", "mem", "compv3", "compv4", "compv5", "compv6")
sizes = st.integers(0, 10**9 - 1)
flags = st.booleans()

conv_kernels = st.builds(
    CkKernel, sizes, sizes, sizes, st.sampled_from(PIPELINES), st.sampled_from([2, 3]),
    scheduler=st.sampled_from(MODES), double_smem_buffer=flags, store_immediate=flags,
)  # fmt: skip
gemm_kernels = st.builds(
    CkKernel, sizes, sizes, sizes, st.sampled_from(PIPELINES), st.just(0), st.sampled_from(GEMM_LAYOUTS),
    sizes, sizes, sizes, sizes, sizes, sizes, st.sampled_from(["intrawave", "interwave", "default"]),
    st.sampled_from(["cshuffle", "default"]), flags, flags, flags, flags,
    vector_a=sizes, vector_b=sizes, vector_c=sizes, suffix=st.sampled_from(["", "preshuffle", "a_b2"]),
    split_k=st.just(0) | st.integers(2, 10**9 - 1),
)  # fmt: skip
gemm_kernels |= st.builds(
    lambda kernel, strategy: replace(
        kernel, streamk_enabled=True, streamk_reduction_strategy=strategy, streamk_persistent=kernel.persistent
    ),
    gemm_kernels, st.sampled_from(STRATEGIES),
)  # fmt: skip


def test_the_numbers_of_a_convolution_are_m_n_k() -> None:
    parsed = parse_name(CONV_NAME)
    assert (parsed.op, parsed.variant, parsed.dtype) == ("grouped_conv", "forward", "bf16")
    assert parsed.kernel == CkKernel(tile_m=16, tile_n=64, tile_k=128, pipeline="compv4", ndim=2)


@pytest.mark.parametrize(
    ("suffix", "told"),
    [
        ("_intrawave", {"scheduler": "intrawave"}),
        ("_interwave_dsb", {"scheduler": "interwave", "double_smem_buffer": True}),
        ("_dsb", {"double_smem_buffer": True}),
        ("_intrawave_si", {"scheduler": "intrawave", "store_immediate": True}),
        ("_intrawave_dsb_si", {"scheduler": "intrawave", "double_smem_buffer": True, "store_immediate": True}),
    ],
)
def test_suffixes_make_other_kernels(suffix: str, told: dict[str, Any]) -> None:
    plain, other = parse_name(CONV_NAME).kernel, parse_name(CONV_NAME + suffix).kernel
    assert other == CkKernel(**{**plain.to_dict(), **told})
    assert other.name("grouped_conv", "forward", "bf16") == CONV_NAME + suffix


@pytest.mark.parametrize(
    ("suffix", "stated"),
    [
        ("_streamk", {}),
        ("_streamk_2", {"streamk_reduction_strategy": "2"}),
        ("_streamk_persistent", {"streamk_persistent": True}),
        ("_dsb_streamk_atomic_persistent", {
            "double_smem_buffer": True, "streamk_reduction_strategy": "atomic", "streamk_persistent": True,
        }),
    ],
)  # fmt: skip
def test_a_convolutions_name_states_stream_k(suffix: str, stated: dict[str, Any]) -> None:
    plain, other = parse_name(CONV_NAME).kernel, parse_name(CONV_NAME + suffix).kernel
    assert other == replace(plain, streamk_enabled=True, **stated)
    assert other.name("grouped_conv", "forward", "bf16") == CONV_NAME + suffix


@pytest.mark.parametrize(
    ("suffix", "strategy"), [("_streamk", "atomic"), ("_streamk_linear", "linear"), ("_vec8_4_2_streamk_tree", "tree")]
)
def test_a_matrix_products_name_states_its_reduction_as_ck_tile_spells_it(suffix: str, strategy: str) -> None:
    kernel = parse_name(GEMM_NAME + suffix).kernel
    assert (kernel.streamk_enabled, kernel.streamk_reduction_strategy) == (True, strategy)
    assert kernel.name("gemm", "universal", "fp8") == GEMM_NAME + suffix
    more = parse_name(f"{GEMM_NAME}{suffix}_d1").kernel
    assert (more.suffix, replace(more, suffix="")) == ("d1", kernel)


@pytest.mark.parametrize(
    ("name", "canonical", "stated"),
    [
        (
            "grouped_conv_fwd_fp16_nhwgc_2d_compv3_cshuffle_intrawave_128x64x32_2x2x1_32x32x16",
            "grouped_conv_forward_fp16_2d_128x64x32_compv3_intrawave",
            {"warp_m": 2, "warp_tile_k": 16, "epilogue": "cshuffle", "vector_a": 4, "vector_b": 8, "vector_c": 8},
        ),
        (
            "grouped_conv_bwd_weight_bf16_ndhwgc_3d_basic_v1_cshuffle_interwave_16x64x64_1x4x1_16x16x16_vec4_2_2_gm2_dsb",
            "grouped_conv_bwd_weight_bf16_3d_16x64x64_basic_v1_interwave_dsb",
            {"ndim": 3, "vector_b": 2, "num_groups_to_merge": 2, "double_smem_buffer": True},
        ),
    ],
)
def test_names_of_ck_tiles_generator_are_read(name: str, canonical: str, stated: dict[str, Any]) -> None:
    """A library reports the name that the generator wrote into its code."""
    parsed = parse_name(name)
    assert parsed.canonical == canonical
    assert {n: getattr(parsed.kernel, n) for n in stated} == stated


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"streamk_reduction_strategy": "2"}, "one of the ways atomic, linear, tree; got '2'"),
        ({"streamk_reduction_strategy": "tree", "persistent": True}, "streamk_persistent must equal persistent"),
        ({"ndim": 2, "streamk_reduction_strategy": "a_b"}, "must be letters and digits, got 'a_b'"),
        ({"ndim": 2, "streamk_reduction_strategy": "persistent"}, "must be letters and digits, got 'persistent'"),
    ],
)
def test_a_stream_k_kernel_that_its_name_cannot_state_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        CkKernel(16, 16, 16, "compv3", streamk_enabled=True, **change)


def test_a_name_of_a_matrix_product_tells_everything() -> None:
    assert parse_name(GEMM_NAME).kernel == CkKernel(
        128, 128, 128, "compv3", gemm_layout="rcr", warp_m=1, warp_n=4, warp_k=1, warp_tile_m=16, warp_tile_n=16,
        warp_tile_k=128, scheduler="intrawave", epilogue="cshuffle",
    )  # fmt: skip


def test_the_short_prefix_means_the_same() -> None:
    short = GEMM_NAME.replace("gemm_universal_", "gemm_")
    parsed = parse_name(short)
    assert parsed.kernel == parse_name(GEMM_NAME).kernel
    assert (parsed.original, parsed.canonical) == (short, GEMM_NAME)


def test_vectors_are_a_suffix() -> None:
    kernel = parse_name(f"{GEMM_NAME}_vec8_4_2_more").kernel
    assert (kernel.vector_a, kernel.vector_b, kernel.vector_c, kernel.suffix) == (8, 4, 2, "more")
    assert parse_name(f"{GEMM_NAME}_vec0_0_0").canonical == GEMM_NAME


def test_a_split_of_k_is_a_suffix_of_a_matrix_product() -> None:
    kernel = parse_name(f"{GEMM_NAME}_vec8_8_2_splitk4_d1").kernel
    assert (kernel.vector_c, kernel.split_k, kernel.suffix) == (2, 4, "d1")
    assert parse_name(f"{GEMM_NAME}_splitk1").canonical == GEMM_NAME
    assert name_with_split(f"{GEMM_NAME}_preshuffle", 8) == f"{GEMM_NAME}_splitk8_preshuffle"
    assert name_with_split(GEMM_NAME.replace("gemm_universal_", "gemm_"), 2) == f"{GEMM_NAME}_splitk2"
    for name in ("any text", GEMM_NAME):
        assert name_with_split(name, 1) == name
    with pytest.raises(KernelError, match="split_k is 2, but the kernel's name states 4"):
        name_with_split(f"{GEMM_NAME}_splitk4", 2)
    with pytest.raises(KernelError, match="split_k must be 0 for a convolution"):
        name_with_split(CONV_NAME, 2)


@pytest.mark.parametrize("split", [1, -2, 10**9])
def test_a_split_of_k_has_at_least_two_parts(split: int) -> None:
    with pytest.raises(KernelError, match=rf"split_k must be 0 \(K is not split\) or 2 or more, .* got {split}"):
        replace(parse_name(GEMM_NAME).kernel, split_k=split)


def test_pads_are_read_as_flags() -> None:
    kernel = parse_name(GEMM_NAME.replace("intrawave_False_False_False_False", "interwave_True_False_True_True")).kernel
    assert (kernel.pad_m, kernel.pad_n, kernel.pad_k, kernel.persistent) == (True, False, True, True)


@given(conv_kernels)
def test_a_convolution_survives_its_name(kernel: CkKernel) -> None:
    assert CkKernel.from_config(kernel.config) == kernel
    assert CkKernel.from_dict(kernel.to_dict()) == kernel
    parsed = parse_name(kernel.name("grouped_conv", "bwd_weight", "fp16"))
    assert (parsed.kernel, parsed.variant, parsed.dtype) == (kernel, "bwd_weight", "fp16")


@given(gemm_kernels)
def test_a_matrix_product_survives_its_name(kernel: CkKernel) -> None:
    assert CkKernel.from_config(kernel.config) == kernel
    assert parse_name(kernel.name("gemm", "universal", "fp8")).kernel == kernel


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gemm",
        "softmax_forward_bf16_2d_16x64x128_compv4",
        CONV_NAME.replace("forward", "sideways"),
        CONV_NAME.replace("16x64x128", "16x64"),
        CONV_NAME.replace("2d", "4d"),
        CONV_NAME.replace("16x", "1234567890x"),
        CONV_NAME.replace("16x", "\u0663x"),
        CONV_NAME + "\n",
        GEMM_NAME.replace("rcr", "ccc"),
        GEMM_NAME.replace("False", "false"),
        GEMM_NAME + "_vec8_8",
        GEMM_NAME + "_vec8_8_x",
        GEMM_NAME + "_vec",
        GEMM_NAME + "_splitk0",
        GEMM_NAME + "_splitk4_vec8_8_8",
        GEMM_NAME + "_splitk4_splitk4",
        GEMM_NAME + "_more_vec8_8_8x-",
        "grouped_conv_forward_bf16_" + GEMM_NAME.removeprefix("gemm_universal_fp8_"),
        "gemm_universal_fp8_2d_16x64x128_compv4",
    ],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(KernelError, match="is no"):
        parse_name(name)


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    for name in (text, CONV_NAME + text, GEMM_NAME + text):
        with suppress(KernelError):
            assert parse_name(name).original == name


def test_a_long_name_takes_no_time() -> None:
    with pytest.raises(KernelError, match=r"\.\.\."):
        parse_name("grouped_conv_forward_bf16_2d_16x64x128_a" + "_a0" * 3000 + "!")


def test_numpy_values_become_plain_ones() -> None:
    kernel = parse_name(GEMM_NAME).kernel
    columns = {n: np.array([v])[0] for n, v in kernel.to_dict().items()}
    assert CkKernel.from_dict(columns) == kernel
    assert {type(v) for v in CkKernel.from_dict(columns).to_dict().values()} == {int, str, bool}


@pytest.mark.parametrize("change", [{"pad_m": "no"}, {"tile_m": None}, {"persistent": 2}])
def test_a_row_that_is_no_kernel_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(KernelError, match=r"not a kernel: .*; needed are tile_m"):
        CkKernel.from_dict({**parse_name(GEMM_NAME).kernel.to_dict(), **change})
