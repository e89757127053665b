"""Every line of the old profiler becomes an instance or is skipped with its number and the reason."""

from __future__ import annotations

import json
import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ck.lines import BWD_DATA, BWD_WEIGHT_V3, DEPTHWISE, EXPECTED, FORWARD, FORWARD_V3, KINDS, STREAM_K
from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.kernels.ck import ConfHeader, Instance, convert_conf, get_instance_string, parse_instance_string
from tilewise.kernels.ck._conf import parse_line
from tilewise.kernels.ck._dispatcher_json import to_document

BF16 = ConfHeader()
PIECES = ["", "0", "9", ",", "<", ">", "(", ")", "#", "é", "-1"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_each_kind(kind: str) -> None:
    instance, _ = parse_line(KINDS[kind], BF16)
    document = to_document([instance])
    assert isinstance(document, dict)
    assert document["instances"] == [{"id": 0, **EXPECTED[kind]}]
    assert parse_instance_string(get_instance_string(instance)) == instance


@pytest.mark.parametrize(
    ("kind", "header"),
    [
        ("forward_v3", ("forward", 2, "nhwgc", "bf16")),
        ("bwd_weight_v3", ("bwd_weight", 2, "nhwgc", "bf16")),
        ("bwd_data", ("bwd_data", 2, "nhwgc", "bf16")),
        ("bwd_data_long", ("bwd_data", 3, "ndhwgc", "fp16")),  # the image's layout, not the gradient's
        ("stream_k", ("bwd_weight", 2, "nhwgc", "bf16")),
        ("depthwise", ("forward_depthwise", 2, "ngchw", "bf16")),
    ],
)
def test_the_header_of_a_line(kind: str, header: tuple[str, int, str, str]) -> None:
    assert parse_line(KINDS[kind], BF16)[0].header == header


def test_a_whole_file() -> None:
    text = f"# old\n{FORWARD_V3}\n\n#{FORWARD}\n{DEPTHWISE}  # of one filter\n{STREAM_K}\nrubbish\n"
    done = convert_conf(text, BF16)
    assert [i.id for i in done.instances] == [0, 1, 2]
    assert done.lines == ((2,), (5,), (6,))
    assert [number for number, _ in done.skipped] == [7]


def test_lines_that_differ_in_details_become_one_instance() -> None:
    other = FORWARD_V3.replace("Seq(4,64,1)", "Seq(8,32,1)").replace("Default", "OddC")
    done = convert_conf(f"{FORWARD_V3}\n{FORWARD}\n{other}\n", BF16)
    assert done.lines == ((1, 3), (2,))


def test_types_come_from_the_file_where_a_line_has_none() -> None:
    header = ConfHeader.of_file("ndhwgc_fp16.conf", BF16)
    assert header == ConfHeader("fp16", 3, "ndhwgc")
    assert parse_line(BWD_DATA, header)[0].header == ("bwd_data", 3, "ndhwgc", "fp16")
    assert ConfHeader.of_file("mine.conf", BF16) == BF16
    assert ConfHeader.of_file("ngchw_depthwise.conf", BF16).layout == "ngchw"


def test_the_warp_tile_is_the_instructions_or_k1() -> None:
    def k_of(line: str) -> int:
        instance, _ = parse_line(line, BF16)
        assert isinstance(instance, Instance)
        return instance.kernel.warp_tile_k

    assert k_of(FORWARD_V3) == 8
    assert k_of(FORWARD_V3.replace("128,32,8,8,32,32", "128,32,16,16,32,32")) == 16
    assert k_of(FORWARD_V3.replace("bf16", "fp32").replace("128,32,8,8", "128,32,2,2")) == 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (FORWARD_V3.replace("2,8,8,false", "2,5,8,false", 1), "vector_a must be one of 1, 2, 4, 8, 16 .* got 5"),
        (FORWARD_V3.replace("2,8,8,false", "2,1,8,false", 1), "copying A needs more than one warp: tile_m 128 > 64 x"),
        (FORWARD_V3.replace("v4", "v7"), "pipeline version 'v7' has no counterpart"),
        (FORWARD_V3.replace("Intrawave", "Interwave"), "compv4 does not exist with interwave_dsb"),
        (FORWARD_V3.replace("Default", "Filter5x5"), "specialization 'Filter5x5' has no counterpart"),
        (FORWARD_V3.replace("32,32,2,2", "32,16,2,4"), "no matrix instruction of 32x16 for bf16"),
        (FORWARD_V3.replace("256,128,128", "256,96,128"), "M 96 must be a multiple of its warps' instructions, 64"),
        (FORWARD_V3.replace("256,128,128", "192,128,128"), "the block size 192 must be a multiple of its warps, 256"),
        (FORWARD_V3.replace(",false,1>", ",1>"), "has 49 fields, expected 50"),
        (FORWARD_V3[:-1], "the closing > is missing"),
        (FORWARD_V3.replace("Seq(4,64,1)", "Seq(4,64,1", 1), "brackets do not match"),
        (FORWARD_V3.replace("256,128", "25six,128"), "expected a number of at most 9 digits, got '25six'"),
        (FORWARD_V3.replace("256,128", "9" * 5000 + ",128"), "expected a number of at most 9 digits"),
        (BWD_WEIGHT_V3.replace("bf16,1,1>", "bf16,2,1>"), "expected a flag before the groups to merge, got '2'"),
        (STREAM_K.replace("BASIC_V1", "WAVELET"), "pipeline 'WAVELET' has no counterpart"),
        (STREAM_K.replace("bf16,bf16,BASIC", "bf16,fp8,BASIC"), "both operands must have one type, got bf16 and fp8"),
        (STREAM_K.replace(",1,2,0>", ",1>"), "stream-K needs a reduction strategy"),
        (DEPTHWISE[:-2], "neither an instance <...> nor 12 numbers"),
        (DEPTHWISE.replace("16,16", "0,16"), "all numbers but the padding must be at least 1"),
        (DEPTHWISE.replace("8,8", "8,3"), "in_vec and out_vec must be one of"),
        ("DeviceGemm<1,2,3>", "'DeviceGemm' is an unknown kind of instance"),
        ("x" * 20_000, "a line has at most 10000 characters, got 20000"),
    ],
)
def test_a_line_that_cannot_be_is_skipped_with_its_reason(line: str, reason: str) -> None:
    done = convert_conf(f"{FORWARD}\n{line}\n", BF16)
    assert len(done.instances) == 1
    ((number, why),) = done.skipped
    assert number == 2
    assert re.search(reason, why), why


def test_an_arch_has_rules_of_its_own() -> None:
    wide = FORWARD_V3.replace("128,128,32,8,8", "128,128,128,8,8")
    assert convert_conf(wide, BF16, load_arch("gfx950")).skipped == ()
    ((_, why),) = convert_conf(wide, BF16, load_arch("gfx942")).skipped
    assert why == "needs 131072 bytes of shared memory, gfx942 has 65536 per workgroup"


def test_a_flag_that_is_not_used_is_told() -> None:
    assert convert_conf(BWD_WEIGHT_V3, BF16).notes == ((1, "the flag before the groups to merge is 1: not used"),)


@given(st.sampled_from(list(KINDS.values())), st.data())
def test_every_mutated_line_is_converted_or_told(line: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(line) - 1))
        cut = data.draw(st.integers(0, 4))
        line = line[:at] + data.draw(st.sampled_from(PIECES)) + line[at + cut :]
        if not line:
            return
    done = convert_conf(line, BF16)
    counted = sum(map(len, done.lines)) + len(done.skipped)
    assert counted == bool(line.partition("#")[0].strip())
    for instance in done.instances:
        assert parse_instance_string(get_instance_string(instance)) == instance
        json.dumps(to_document([instance]))


@given(st.text(max_size=200))
def test_any_text_is_a_line_or_refused(text: str) -> None:
    with suppress(KernelError):
        parse_line(text, BF16)
