from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.errors import KernelError
from tilewise.kernels.triton import Kernel

KERNEL = Kernel(128, 64, 32, "taps", 4, 3, 8, 2)
sizes = st.integers(0, 10**6)
kernels = st.builds(
    Kernel, sizes, sizes, sizes, st.from_regex(r"[a-z][a-z0-9]*", fullmatch=True), sizes, sizes, sizes, sizes
)


def test_the_name_says_everything() -> None:
    assert KERNEL.config == "128x64x32_taps_w4_s3_g8_k2"
    assert KERNEL.name("grouped_conv", "forward", "bf16") == "grouped_conv_forward_bf16_128x64x32_taps_w4_s3_g8_k2"


@given(kernels)
def test_a_config_parses_back_to_its_kernel(kernel: Kernel) -> None:
    assert Kernel.from_config(kernel.config) == kernel
    assert Kernel.from_dict(kernel.to_dict()) == kernel


@given(kernels, kernels)
def test_different_kernels_have_different_names(one: Kernel, other: Kernel) -> None:
    assert (one == other) == (one.config == other.config)


@pytest.mark.parametrize(
    "config",
    [
        "",
        "128x64_taps_w4_s3_g8_k1",
        "128x64x32_taps_w4_s3_g8",
        "128x64x32_Taps_w4_s3_g8_k1",
        "a128x64x32_taps_w4_s3_g8_k1",
        "128x64x32_taps_w4_s3_g8_k1_x",
        "-1x64x32_taps_w4_s3_g8_k1",
    ],
)
def test_what_is_no_config_is_refused(config: str) -> None:
    with pytest.raises(KernelError, match="is not a kernel configuration such as"):
        Kernel.from_config(config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile_m": None}, "needed are tile_m, tile_n"),
        ({"tile_m": "wide"}, "not a kernel: .*'wide'"),
        ({"num_warps": float("inf")}, "not a kernel: .*infinity"),
    ],
)
def test_a_row_that_is_no_kernel_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        Kernel.from_dict({**KERNEL.to_dict(), **change})


def test_a_missing_column_is_named() -> None:
    values = KERNEL.to_dict()
    del values["group_m"]
    with pytest.raises(KernelError, match="group_m"):
        Kernel.from_dict(values)


def test_numpy_values_become_plain_ones() -> None:
    values = {k: np.int64(v) if k != "pipeline" else np.str_(v) for k, v in KERNEL.to_dict().items()}
    kernel = Kernel.from_dict(values)
    assert kernel == KERNEL
    assert {type(v) for v in kernel.to_dict().values()} == {int, str}
