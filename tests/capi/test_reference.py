"""The reference kernels: against NumPy, against each other, and the rounding of their 16-bit types."""

from __future__ import annotations

import ctypes as c
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from capi.client import BAD_ARGUMENT, BAD_PROBLEM, UNSUPPORTED, CProblem, c_gemm, c_problem, library, needs_compiler
from strategies import conv_problems
from tilewise.ops import GEMM_LAYOUTS, GroupedConvProblem, input_elements, output_elements, weight_elements

pytestmark = needs_compiler
Array = npt.NDArray[Any]


def reference(dtype: str, variant: str, problem: CProblem, a: Array, b: Array, result: Array) -> int:
    arrays = (np.ascontiguousarray(a), np.ascontiguousarray(b), result)
    code = library().tilewise_reference(
        dtype.encode(), variant.encode(), c.byref(problem), *(c.c_void_p(x.ctypes.data) for x in arrays)
    )
    return int(code)


@pytest.mark.long
@pytest.mark.parametrize("layout", GEMM_LAYOUTS)
def test_a_product_in_every_layout(layout: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (5, 7)).astype(np.float32), rng.integers(-9, 9, (7, 3)).astype(np.float32)
    stored = [x if letter == "r" else x.T for x, letter in zip((a, b), layout, strict=False)]
    result = np.full(15, np.nan, dtype=np.float32)
    assert reference("fp32", "universal", c_gemm(5, 3, 7, layout), stored[0], stored[1], result) == 0
    shaped = result.reshape(5, 3) if layout[2] == "r" else result.reshape(3, 5).T
    assert shaped.tolist() == (a @ b).tolist()


def forward(p: GroupedConvProblem, x: Array, w: Array) -> Array:
    """NDHWGC x GKZYXC -> NDHWGK, tap by tap, with NumPy."""
    out, groups = p.output_sizes, p.G
    padded = np.pad(
        x.reshape(p.N, p.Di, p.Hi, p.Wi, p.C), [(0, 0), *((q, q) for q in (p.pad_d, p.pad_h, p.pad_w)), (0, 0)]
    )
    taps = w.reshape(groups, p.K // groups, p.Z, p.Y, p.X, p.C // groups)
    y = np.zeros((p.N, *out, groups, p.K // groups), dtype=np.float64)
    for z, v, u in np.ndindex(p.Z, p.Y, p.X):
        seen = padded[
            :,
            z * p.dilation_d :: p.stride_d,
            v * p.dilation_h :: p.stride_h,
            u * p.dilation_w :: p.stride_w,
        ][:, : out.Do, : out.Ho, : out.Wo]
        y += np.einsum("ndhwgc,gkc->ndhwgk", seen.reshape(*seen.shape[:4], groups, -1), taps[:, :, z, v, u])
    return y.reshape(-1)


@settings(max_examples=40)
@given(p=conv_problems(max_size=5), seed=st.integers(0, 99))
def test_a_convolution_and_its_gradients(p: GroupedConvProblem, seed: int) -> None:
    """<conv(x, w), dy> = <x, bwd_data(dy, w)> = <w, bwd_weight(x, dy)>, exactly on small integers."""
    assume(p.flops < 4_000_000 and input_elements(p) < 100_000)
    rng = np.random.default_rng(seed)
    counts = input_elements(p), weight_elements(p), output_elements(p)
    x, w, dy = (rng.integers(-2, 3, int(n)).astype(np.float32) for n in counts)
    y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
    assert reference("fp32", "forward", c_problem(p), x, w, y) == 0
    assert y.tolist() == forward(p, x, w).tolist()
    assert reference("fp32", "bwd_data", c_problem(p), dy, w, dx) == 0
    assert reference("fp32", "bwd_weight", c_problem(p), x, dy, dw) == 0
    product = np.dot(y.astype(np.float64), dy)
    assert np.dot(x.astype(np.float64), dx) == product
    assert np.dot(w.astype(np.float64), dw) == product


def test_every_number_of_16_bits_is_itself() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    for dtype, one, numbers in (("fp16", 0x3C00, bits.view(np.float16)), ("bf16", 0x3F80, as_float(bits))):
        result = np.empty_like(bits)
        assert reference(dtype, "universal", c_gemm(2**16, 1, 1), bits, np.array([one], np.uint16), result) == 0
        finite = ~np.isnan(numbers) & (bits != 0x8000)  # a sum that begins at 0 has no -0
        assert (result[finite] == bits[finite]).all()
        assert np.isnan((result.view(np.float16) if dtype == "fp16" else as_float(result))[np.isnan(numbers)]).all()


@pytest.mark.parametrize(
    ("dtype", "one", "torch_type"), [("fp8", 0x38, "float8_e4m3fn"), ("fp8_fnuz", 0x40, "float8_e4m3fnuz")]
)
def test_every_number_of_8_bits_is_that_of_pytorch(dtype: str, one: int, torch_type: str) -> None:
    torch = pytest.importorskip("torch")
    bits, result = np.arange(256, dtype=np.uint8), np.empty(256, dtype=np.uint16)
    assert reference(dtype, "universal", c_gemm(256, 1, 1), bits, np.array([one], np.uint8), result) == 0
    expected = torch.from_numpy(bits.copy()).view(getattr(torch, torch_type)).half().numpy()
    np.testing.assert_array_equal(result.view(np.float16), expected)


def as_float(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_sums_round_to_the_nearest_once() -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2**16, 2000).astype(np.uint16) for _ in range(2))
    x, y = a.view(np.float16), b.view(np.float16)
    result = np.empty(len(a), dtype=np.uint16)
    for i in range(len(a)):
        assert reference("fp16", "universal", c_gemm(1, 1, 1), a[i : i + 1], b[i : i + 1], result[i : i + 1]) == 0
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float64) * y).astype(np.float16) + np.float16(0)
    assert np.array_equal(result.view(np.float16), expected, equal_nan=True)


def test_wrong_arguments_are_refused() -> None:
    x = np.zeros(64, dtype=np.float32)
    assert reference("bf8", "universal", c_gemm(2, 2, 2), x, x, x) == UNSUPPORTED
    assert reference("fp32", "forward", c_gemm(2, 2, 2), x, x, x) == BAD_ARGUMENT
    assert reference("fp32", "universal", c_gemm(2, 0, 2), x, x, x) == BAD_PROBLEM
