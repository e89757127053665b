"""Grouped convolutions: sizes, FLOPs and bytes against counting by hand, and every impossible problem."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from strategies import conv_problems
from tilewise.errors import ProblemError
from tilewise.ops import CONV_LAYOUTS, GemmProblem, GroupedConvProblem, conv_flops, conv_min_bytes, implicit_gemm
from tilewise.ops._grouped_conv import _AXES

# ResNet-50's 3x3 layer, a strided one, ResNeXt's grouped one, MobileNet's depthwise one, a dilated one, a 3D one
RESNET: dict[str, Any] = {"N": 32, "C": 64, "K": 64, "G": 1, "Hi": 56, "Wi": 56, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1}
STRIDED: dict[str, Any] = {
    "N": 1,
    "C": 3,
    "K": 64,
    "G": 1,
    "Hi": 224,
    "Wi": 224,
    "Y": 7,
    "X": 7,
    "stride_h": 2,
    "stride_w": 2,
}
GROUPED: dict[str, Any] = {**RESNET, "C": 128, "K": 128, "G": 32}
DEPTHWISE: dict[str, Any] = {**RESNET, "G": 64, "stride_h": 2, "stride_w": 2}
DILATED: dict[str, Any] = {**RESNET, "pad_h": 2, "pad_w": 2, "dilation_h": 2, "dilation_w": 2}
VOLUME: dict[str, Any] = {**RESNET, "Di": 8, "Z": 3, "pad_d": 1}


@pytest.mark.parametrize(
    ("values", "sizes"),
    [
        (RESNET, (1, 56, 56)),
        (STRIDED, (1, 109, 109)),
        ({**STRIDED, "pad_h": 3, "pad_w": 3}, (1, 112, 112)),
        (GROUPED, (1, 56, 56)),
        (DEPTHWISE, (1, 28, 28)),
        (DILATED, (1, 56, 56)),
        (VOLUME, (8, 56, 56)),
    ],
)
def test_output_sizes_of_real_layers(values: dict[str, Any], sizes: tuple[int, int, int]) -> None:
    assert GroupedConvProblem(**values).output_sizes == sizes


def test_flops_and_bytes_by_hand() -> None:
    p = GroupedConvProblem(**GROUPED)
    # 32 x 56 x 56 pixels, 128 output channels, 9 taps, 4 input channels a group, 2 operations
    assert p.flops == 32 * 56 * 56 * 128 * 9 * 4 * 2 == 924_844_032
    # input and output 32 x 56 x 56 x 128, filter 128 x 9 x 4, two bytes each
    assert p.min_bytes("bf16") == 2 * (2 * 32 * 56 * 56 * 128 + 128 * 9 * 4) == 51_389_440
    # fp8 operands take one byte, the result two
    assert p.min_bytes("fp8") == 3 * 32 * 56 * 56 * 128 + 128 * 9 * 4


def test_min_bytes_counts_the_written_tensor_with_the_results_width() -> None:
    p = GroupedConvProblem(**STRIDED)
    x, w, y = 224 * 224 * 3, 64 * 49 * 3, 109 * 109 * 64
    assert conv_min_bytes(p, "fp8", "forward") == x + w + 2 * y
    assert conv_min_bytes(p, "fp8", "bwd_data") == 2 * x + w + y
    assert conv_min_bytes(p, "fp8", "bwd_weight") == x + 2 * w + y


def test_implicit_gemm_by_hand() -> None:
    p = GroupedConvProblem(**GROUPED)
    pixels = 32 * 56 * 56
    assert p.implicit_gemm("forward") == (pixels, 4, 36, 32)
    assert p.implicit_gemm("bwd_data") == (pixels, 4, 36, 32)
    assert p.implicit_gemm("bwd_weight") == (4, 36, pixels, 32)


@given(conv_problems(max_size=12))
def test_output_sizes_equal_counting_the_filters_positions(p: GroupedConvProblem) -> None:
    for (size, filt, stride, pad, dilation), out in zip(_AXES, p.output_sizes, strict=True):
        padded = getattr(p, size) + 2 * getattr(p, pad)
        reach = getattr(p, dilation) * (getattr(p, filt) - 1)
        assert out == sum(start + reach < padded for start in range(0, padded, getattr(p, stride)))


@pytest.mark.long
@given(conv_problems())
def test_the_matrix_product_has_the_problems_flops(p: GroupedConvProblem) -> None:
    for variant in ("forward", "bwd_weight"):
        assert 2 * np.prod([int(d) for d in p.implicit_gemm(variant)], dtype=object) == p.flops
    if p.output_sizes == (p.Di, p.Hi, p.Wi):
        assert 2 * np.prod([int(d) for d in p.implicit_gemm("bwd_data")], dtype=object) == p.flops


@given(conv_problems())
def test_columns_give_the_figures_of_single_problems(p: GroupedConvProblem) -> None:
    columns = SimpleNamespace(**{k: np.array([v, 1 if k not in ("Hi", "Wi") else 9]) for k, v in p.to_dict().items()})
    assert conv_flops(columns)[0] == p.flops
    for variant in p.variants:
        assert conv_min_bytes(columns, "bf16", variant)[0] == conv_min_bytes(p, "bf16", variant)
        assert tuple(np.asarray(d).tolist()[0] for d in implicit_gemm(columns, variant)) == p.implicit_gemm(variant)


@given(conv_problems(layouts=CONV_LAYOUTS))
def test_a_problem_survives_its_dict(p: GroupedConvProblem) -> None:
    assert GroupedConvProblem.from_dict(p.to_dict()) == GroupedConvProblem.from_dict(p.stated()) == p
    assert hash(GroupedConvProblem.from_dict(p.to_dict())) == hash(p)


def test_group_key_holds_every_dimension_in_column_order_but_the_layout() -> None:
    p = GroupedConvProblem(**STRIDED)
    *sizes, last = p.column_names()
    assert dict(zip(sizes, p.group_key, strict=True)) | {last: "NHWGC"} == p.to_dict()
    assert last == "layout"
    assert GroupedConvProblem(**STRIDED, layout="NGCHW").group_key == p.group_key


def test_a_layout_makes_another_problem_of_equal_work() -> None:
    last, first = (GroupedConvProblem(**STRIDED, layout=layout) for layout in CONV_LAYOUTS)
    assert last == GroupedConvProblem(**STRIDED) != first
    assert (first.flops, first.min_bytes("fp32")) == (last.flops, 2 * last.min_bytes("bf16"))
    with pytest.raises(ProblemError, match="layout: must be one of NHWGC, NGCHW, got 'NCHW'"):
        GroupedConvProblem(**STRIDED, layout="NCHW")


def test_stored_problems_leave_out_the_default_layout() -> None:
    """Files and keys of earlier versions stay valid; they had no layout."""
    assert GroupedConvProblem(**STRIDED).stated().keys() == {*GroupedConvProblem.column_names()} - {"layout"}
    assert GroupedConvProblem(**STRIDED, layout="NGCHW").stated()["layout"] == "NGCHW"
    assert GemmProblem(1, 2, 3).stated() == {"M": 1, "N": 2, "K": 3, "layout": "rcr"}


def test_a_layer_is_a_shape_without_its_batch() -> None:
    keys = np.array([GroupedConvProblem(**{**STRIDED, "N": n}).group_key for n in (1, 7)])
    assert len(np.unique(GroupedConvProblem.layer_keys(keys), axis=0)) == 1
    assert (GemmProblem.layer_keys(keys) == keys).all()


@pytest.mark.parametrize(("values", "ndim"), [(RESNET, 2), (VOLUME, 3), ({**RESNET, "Z": 3, "pad_d": 1}, 3)])
def test_ndim(values: dict[str, Any], ndim: int) -> None:
    assert GroupedConvProblem(**values).ndim == ndim


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"N": 0}, "N", "at least 1, got 0"),
        ({"Hi": -4}, "Hi", "at least 1, got -4"),
        ({"pad_h": -1}, "pad_h", "at least 0, got -1"),
        ({"stride_w": 0}, "stride_w", "at least 1, got 0"),
        ({"dilation_d": 0}, "dilation_d", "at least 1"),
        ({"C": 63, "G": 2, "K": 64}, "C", "divisible by G = 2, got 63"),
        ({"K": 63, "G": 2, "C": 64}, "K", "divisible by G = 2, got 63"),
        ({"Y": 59}, "Y", "reaches over 59 elements, but Hi with its padding has only 58"),
        ({"dilation_w": 30}, "X", "reaches over 61 elements, but Wi with its padding has only 58"),
        ({"Z": 2}, "Z", "reaches over 2 elements, but Di"),
        ({"N": 1.5}, "N", "must be an integer, got 1.5"),
        ({"N": True}, "N", "must be an integer, got True"),
        ({"N": "8"}, "N", "must be an integer, got '8'"),
        ({"N": 2**63}, "N", "exceeds int64"),
        ({"N": 2**50, "Hi": 2**20}, "C", "FLOPs is .* beyond int64"),
        ({"N": 2**40, "stride_h": 2**20, "stride_w": 2**20, "Hi": 2**20}, "C", "input elements is .* beyond int64"),
    ],
)
def test_an_impossible_problem_names_its_field(change: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as e:
        GroupedConvProblem(**{**RESNET, **change})
    assert e.value.field == field


@pytest.mark.parametrize(
    ("values", "field", "message"),
    [
        ({**RESNET, "H": 3}, "H", "not a dimension of grouped_conv; known are N, C"),
        ({k: v for k, v in RESNET.items() if k != "Wi"}, "Wi", "missing"),
    ],
)
def test_from_dict_names_unknown_and_missing_dimensions(values: dict[str, Any], field: str, message: str) -> None:
    with pytest.raises(ProblemError, match=message) as e:
        GroupedConvProblem.from_dict(values)
    assert e.value.field == field


def test_numpy_integers_become_ints() -> None:
    values: dict[str, Any] = {k: np.int32(v) for k, v in RESNET.items()}
    p = GroupedConvProblem(**values)
    assert all(type(v) is int for v in p.group_key)


def test_an_unknown_variant_is_refused() -> None:
    for call in (implicit_gemm, lambda p, v: conv_min_bytes(p, "bf16", v)):
        with pytest.raises(ProblemError, match="variant: must be one of forward, bwd_data, bwd_weight, got 'sideways'"):
            call(GroupedConvProblem(**RESNET), "sideways")


def test_problems_are_frozen() -> None:
    with pytest.raises(AttributeError):
        GroupedConvProblem(**RESNET).N = 2  # type: ignore[misc]
