"""Instances written as the Builder's strings read back as themselves, or are refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.ck.lines import DEPTHWISE, KINDS, STREAM_K
from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.kernels.ck import ConfHeader, Instance, builder_string, convert_conf, expand_sweep, parse_instance_string

HEADER = ConfHeader()


def read(line: str) -> Instance:
    (instance,) = convert_conf(line, HEADER).instances
    assert isinstance(instance, Instance)
    return instance


@pytest.mark.parametrize("line", [STREAM_K, DEPTHWISE], ids=["stream_k", "depthwise"])
def test_a_line_in_this_spelling_is_written_as_it_was_read(line: str) -> None:
    assert builder_string(convert_conf(line, HEADER).instances[0]) == line


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_of_line_reads_back_or_is_refused(kind: str) -> None:
    converted = convert_conf(KINDS[kind], HEADER).instances
    assert converted
    for instance in converted:
        if isinstance(instance, Instance) and instance.two_stage:
            with pytest.raises(KernelError, match=r"cannot hold all of its parameters.*write a \.json or \.txt"):
                builder_string(instance)
        else:
            assert convert_conf(builder_string(instance), HEADER).instances == (instance,)


def test_an_expanded_sweep_reads_back() -> None:
    traits = {"data_type": ["fp16"], "ndim_spatial": [2, 3], "pipeline": ["compv3", "mem"], "store_immediate": [False]}
    document = {"variant": "bwd_data", "trait_config": {n: {"values": v} for n, v in traits.items()}}
    instances = expand_sweep(document, load_arch("gfx950"))
    text = "\n".join(map(builder_string, instances))
    assert convert_conf(text, HEADER).instances == instances


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline": "basic_v1"}, r"pipeline 'basic_v1' has no name in a \.conf"),
        ({"store_immediate": True}, r"cannot hold all of its parameters"),
        ({"scheduler": ""}, r"scheduler '' has no name in a \.conf"),
    ],
)
def test_a_parameter_that_a_line_cannot_hold_is_refused(change: dict[str, object], message: str) -> None:
    instance = read(STREAM_K)
    with pytest.raises(KernelError, match=message):
        builder_string(replace(instance, kernel=replace(instance.kernel, **change)))  # type: ignore[arg-type]


def test_a_matrix_product_has_no_line() -> None:
    name = "gemm_universal_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
    with pytest.raises(KernelError, match=r"has no line in a \.conf"):
        builder_string(parse_instance_string(name))
