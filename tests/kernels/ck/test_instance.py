"""The canonical string proves equality: it distinguishes any two instances, and parses back."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ck.test_kernel import gemm_kernels
from tilewise.errors import KernelError
from tilewise.kernels.ck import (
    AnyInstance,
    CkKernel,
    Instance,
    distinct_instances,
    get_instance_string,
    parse_instance_string,
)
from tilewise.kernels.ck._instance import DEPTHWISE_SIZES, DepthwiseInstance

sizes, flags = st.integers(0, 10**9 - 1), st.booleans()
words = st.from_regex(r"[A-Za-z0-9_]{0,12}", fullmatch=True)
pipelines = st.from_regex(r"[a-z][a-z0-9]{0,5}(_[a-z0-9]{1,4}){0,2}", fullmatch=True)
dtypes = st.sampled_from(["bf16", "fp16", "fp32", "int8"])
conv_kernels = st.builds(
    CkKernel, sizes, sizes, sizes, pipelines, st.integers(1, 3), st.just(""),
    *[sizes] * 6, st.sampled_from(["", "intrawave", "interwave"]), words, *[flags] * 6, *[sizes] * 4,
    streamk_enabled=flags, streamk_reduction_strategy=st.from_regex(r"[A-Za-z0-9]{0,8}", fullmatch=True),
    streamk_persistent=flags,
)  # fmt: skip
extras: dict[str, Any] = {
    "layout": words, "num_wave_groups": sizes, "specialization": words, "two_stage": flags, "explicit_gemm": flags,
    "split_image": flags,
}  # fmt: skip
instances: st.SearchStrategy[AnyInstance] = st.one_of(
    st.builds(Instance, st.sampled_from(["forward", "bwd_data", "bwd_weight"]), dtypes, conv_kernels, **extras),
    st.builds(Instance, st.just("universal"), dtypes, gemm_kernels, **extras),
    st.builds(DepthwiseInstance, dtypes, st.integers(1, 3), words, *[sizes] * len(DEPTHWISE_SIZES)),
)
PLAIN = Instance("forward", "bf16", CkKernel(128, 64, 32, "compv3", 2, scheduler="intrawave"))


def test_a_plain_instance_is_its_name() -> None:
    assert get_instance_string(PLAIN) == "grouped_conv_forward_bf16_2d_128x64x32_compv3_intrawave"


def test_parameters_outside_of_the_name_are_in_brackets() -> None:
    told = replace(PLAIN, layout="nhwgc", two_stage=True, kernel=replace(PLAIN.kernel, warp_m=2, vector_c=4))
    assert get_instance_string(told) == f"{get_instance_string(PLAIN)}[warp_m=2,vector_c=4,layout=nhwgc,two_stage=true]"


@given(instances)
def test_an_instance_survives_its_string(instance: AnyInstance) -> None:
    assert parse_instance_string(get_instance_string(instance)) == instance


@pytest.mark.long
@given(instances, instances)
def test_different_instances_have_different_strings(one: AnyInstance, other: AnyInstance) -> None:
    assert (one == other) == (get_instance_string(one) == get_instance_string(other))


@given(instances, st.data())
def test_one_changed_field_changes_the_string(instance: AnyInstance, data: st.DataObject) -> None:
    if isinstance(instance, Instance):
        name = data.draw(st.sampled_from(sorted(extras)))
        other: AnyInstance = replace(instance, **{name: data.draw(extras[name])})
    else:
        change: dict[str, Any] = {data.draw(st.sampled_from(DEPTHWISE_SIZES)): data.draw(sizes)}
        other = replace(instance, **change)
    assert (instance == other) == (get_instance_string(instance) == get_instance_string(other))


def test_the_id_is_no_part_of_an_instance() -> None:
    assert replace(PLAIN, id=3) == PLAIN
    assert distinct_instances([replace(PLAIN, id=3), PLAIN]) == (PLAIN,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not an instance"),
        ("gemm", "is not a CK Tile kernel name"),
        (f"{get_instance_string(PLAIN)}[", "is not an instance"),
        (f"{get_instance_string(PLAIN)}[]", "is not an instance"),
        (f"{get_instance_string(PLAIN)}[warp_m=2]x", "is not an instance"),
        (f"{get_instance_string(PLAIN)}[warp_m=2,warp_m=2]", "warp_m must be stated once"),
        (f"{get_instance_string(PLAIN)}[warp_q=2]", "'warp_q' is not a parameter of an instance"),
        (f"{get_instance_string(PLAIN)}[warp_m=two]", "warp_m must be a number of at most 9 digits, got 'two'"),
        (f"{get_instance_string(PLAIN)}[warp_m={'9' * 5000}]", "warp_m must be a number of at most 9 digits"),
        (f"{get_instance_string(PLAIN)}[two_stage=1]", "two_stage must be true or false, got '1'"),
        ("grouped_conv_forward_depthwise_bf16_2d[tile_h=1]", "a depthwise instance has exactly layout, tile_h"),
    ],
)
def test_a_text_without_an_instance_is_refused(text: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        parse_instance_string(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layout": "a,b"}, "layout must be letters, digits and underscores, got 'a,b'"),
        ({"num_wave_groups": -1}, "num_wave_groups must be a number from 0"),
        ({"num_wave_groups": 10**5000}, "num_wave_groups .* got a huge one"),
        ({"variant": "sideways"}, "variant must be one of forward, bwd_data, bwd_weight, got 'sideways'"),
        ({"dtype": "BF16"}, "is not a CK Tile kernel name"),
        ({"kernel": CkKernel(1, 1, 1, "", 2)}, "is not a CK Tile configuration"),
    ],
)
def test_an_impossible_instance_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        replace(PLAIN, **change)


@given(st.text(max_size=60))
def test_any_text_is_an_instance_or_refused(text: str) -> None:
    for whole in (text, f"{get_instance_string(PLAIN)}[{text}]"):
        with suppress(KernelError):
            parse_instance_string(whole)
