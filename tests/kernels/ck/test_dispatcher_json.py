"""The dispatcher's JSON: a round trip loses nothing, and wrong documents are refused."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.ck.lines import EXPECTED, KINDS
from kernels.ck.test_instance import instances
from tilewise.errors import KernelError
from tilewise.kernels.ck import (
    AnyInstance,
    CkKernel,
    ConfHeader,
    Instance,
    convert_conf,
    dispatcher_json_text,
    parse_name,
)
from tilewise.kernels.ck._dispatcher_json import instances_from_document, to_document

DOCUMENT: dict[str, Any] = {
    "variant": "forward",
    "ndim_spatial": 2,
    "layout": "nhwgc",
    "datatype": "bf16",
    "instances": [{"id": 7, **EXPECTED["forward_v3"]}, {"id": 3, **EXPECTED["forward"]}],
}


def changed(change: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    return document


def test_a_document_survives_a_round_trip() -> None:
    assert to_document(instances_from_document(DOCUMENT)) == DOCUMENT


def test_the_fields_are_exactly_the_dispatchers() -> None:
    row = json.loads(dispatcher_json_text(instances_from_document(DOCUMENT)))["instances"][0]
    assert list(row) == [
        "id", "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k", "warp_tile_m", "warp_tile_n", "warp_tile_k",
        "vector_size_a", "vector_size_b", "vector_size_c", "pipeline", "scheduler", "epilogue", "double_smem_buffer",
        "num_groups_to_merge", "num_wave_groups", "specialization", "two_stage", "explicit_gemm", "split_image",
        "streamk_enabled", "streamk_reduction_strategy", "streamk_persistent",
    ]  # fmt: skip


def test_parameters_outside_of_the_format_are_written_where_set() -> None:
    (first, *_) = instances_from_document(DOCUMENT)
    assert isinstance(first, Instance)
    for name in ("store_immediate", "pad_k", "persistent"):
        told = replace(first, kernel=CkKernel.from_dict({**first.kernel.to_dict(), name: True}))
        document = to_document([told])
        assert isinstance(document, dict)
        assert document["instances"][0][name] is True
        assert instances_from_document(document) == (told,)


def test_headers_that_differ_make_several_documents() -> None:
    converted = convert_conf("\n".join(KINDS.values()), ConfHeader()).instances
    documents = to_document(converted)
    assert isinstance(documents, list)
    assert {d["variant"] for d in documents} == {"forward", "bwd_data", "bwd_weight", "forward_depthwise"}
    assert set(instances_from_document(documents)) == set(converted)


@pytest.mark.long
@given(st.lists(instances.filter(lambda i: i.header[1] > 0), min_size=1, max_size=6))
def test_any_convolutions_survive(some: list[AnyInstance]) -> None:
    back = instances_from_document(json.loads(dispatcher_json_text(some)))
    assert set(back) == set(some)


def test_ids_are_numbered_where_they_do_not_tell_apart() -> None:
    (first, second) = instances_from_document(DOCUMENT)
    document = to_document([first, replace(second, id=7)])
    assert isinstance(document, dict)
    assert [row["id"] for row in document["instances"]] == [0, 1]


def test_older_files_lack_the_newest_fields() -> None:
    def old(document: Any) -> None:
        for row in document["instances"]:
            for name in ("streamk_enabled", "streamk_reduction_strategy", "streamk_persistent"):
                del row[name]

    assert instances_from_document(changed(old)) == instances_from_document(DOCUMENT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("layout"), "the document: layout is missing"),
        (lambda d: d.update(colour=1), "the document: 'colour' is an unknown key and would be lost"),
        (lambda d: d.update(variant="sideways"), r"instance 0 \(id 7\): variant must be one of forward"),
        (lambda d: d.update(ndim_spatial="2"), "ndim_spatial must be a whole number, got '2'"),
        (lambda d: d.update(ndim_spatial=4), r"instance 0 \(id 7\): .* is not a CK Tile configuration"),
        (lambda d: d.update(datatype=16), "datatype must be a text, got 16"),
        (lambda d: d.update(instances={}), "instances must be a list, got {}"),
        (lambda d: d["instances"].append([]), r"instance 2 must be an object, got \[\]"),
        (lambda d: d["instances"][1].update(id=7), "instance 1: id must be unique, got 7 again"),
        (lambda d: d["instances"][1].pop("tile_m"), "instance 1: tile_m is missing"),
        (lambda d: d["instances"][1].update(tile_q=1), "instance 1: 'tile_q' is an unknown key"),
        (lambda d: d["instances"][1].update(tile_m=16.0), "instance 1: tile_m must be a whole number, got 16.0"),
        (lambda d: d["instances"][1].update(tile_m=True), "instance 1: tile_m must be a whole number, got True"),
        (lambda d: d["instances"][1].update(tile_m=-1), r"instance 1 \(id 3\): tile_m must be a number from 0"),
        (lambda d: d["instances"][1].update(tile_m=10**4000), r"tile_m must be a number from 0 .* got a huge one"),
        (lambda d: d["instances"][1].update(two_stage=0), "instance 1: two_stage must be true or false, got 0"),
        (lambda d: d["instances"][1].update(pipeline="a,b"), "pipeline must be letters, digits and underscores"),
        (lambda d: d["instances"][1].update(pipeline=None), "instance 1: pipeline must be a text, got None"),
    ],
)
def test_a_wrong_document_is_refused(change: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        instances_from_document(changed(change))


def test_matrix_products_and_nothing_have_no_document() -> None:
    name = "gemm_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
    with pytest.raises(KernelError, match="this format is for convolutions"):
        to_document([Instance("universal", "fp8", parse_name(name).kernel)])
    with pytest.raises(KernelError, match="no instances"):
        to_document([])
    assert to_document([Instance("forward", "bf16", CkKernel(1, 1, 1, "mem", 2))])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.data())
def test_any_value_anywhere_is_read_or_refused(data: st.DataObject) -> None:
    document = copy.deepcopy(DOCUMENT)
    place: Any = data.draw(st.sampled_from([document, document["instances"][0]]))
    place[data.draw(st.sampled_from(list(place)))] = data.draw(json_values)
    with suppress(KernelError):
        instances_from_document(document)
