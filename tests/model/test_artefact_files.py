"""The bytes of a model's files: equal for equal contents, and refused in words that name the file."""

from __future__ import annotations

import dataclasses
import gzip
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from own_op import DEFINITION
from tilewise.errors import ArtefactError
from tilewise.model._artefact_files import (
    DEFINITION as DEFINITION_FILE,
)
from tilewise.model._artefact_files import (
    content_hash,
    pack_definition,
    pack_json,
    pack_text,
    read_definition_file,
    read_json,
    unpack_text,
)


@given(st.text())
def test_a_text_comes_back_and_its_bytes_state_no_time(text: str) -> None:
    packed = pack_text(text)
    assert unpack_text(packed) == text
    assert packed[4:8] == bytes(4)  # the time, in gzip's header


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"no gzip", "damaged: .*; fetch it again"),
        (pack_text("x" * 100)[:-5], "cut off; fetch it again"),
        (gzip.compress(b"\xff", mtime=0), "damaged: .*utf-8.*; fetch it again"),
        (gzip.compress(bytes(101), mtime=0), "unpacks to more than 100 bytes, so it was not written by tilewise"),
    ],
    ids=["not packed", "cut off", "no text", "too large"],
)
def test_a_damaged_text_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(ArtefactError, match=words):
        unpack_text(data, most=100)


def test_a_text_of_most_bytes_unpacks() -> None:
    assert unpack_text(pack_text("x" * 100), most=100) == "x" * 100


@given(st.dictionaries(st.text(), st.integers() | st.floats(allow_nan=False) | st.text() | st.none()))
def test_equal_values_give_equal_bytes(value: dict[str, Any]) -> None:
    packed = pack_json(value)
    assert pack_json(dict(reversed(value.items()))) == packed
    assert json.loads(packed) == value
    assert packed.endswith(b"}\n")


def test_the_hash_depends_on_names_lengths_and_bytes() -> None:
    files = {"a": b"12", "b": b"3"}
    assert content_hash(files) == content_hash(dict(reversed(files.items())))
    others = [{"a": b"1", "b": b"23"}, {"a": b"12", "c": b"3"}, {"a": b"12"}, {"a": b"12", "b": b"4"}]
    assert len({content_hash(f) for f in (files, *others)}) == 5


class TestDefinition:
    FILE = pack_definition(DEFINITION)

    def test_it_comes_back_with_its_columns_in_order(self) -> None:
        found = read_definition_file({DEFINITION_FILE: self.FILE}, "m")
        assert found == DEFINITION
        assert found.problem_names == DEFINITION.problem_names

    def test_a_built_in_op_has_none(self) -> None:
        assert read_definition_file({"pool.json": b"{}"}, "m") is None

    def test_another_one_s_digest_is_refused(self) -> None:
        other = dataclasses.replace(DEFINITION, flops="M*N*K")
        values = other.to_dict() | {"digest": DEFINITION.digest}
        words = f"m: definition.json: digest must be {other.digest}, got '{DEFINITION.digest}'; fetch the model again"
        with pytest.raises(ArtefactError) as e:
            read_definition_file({DEFINITION_FILE: json.dumps(values).encode()}, "m")
        assert str(e.value) == words

    def test_a_definition_that_is_none_is_refused(self) -> None:
        values = {**json.loads(self.FILE), "flops": "import os"}
        with pytest.raises(ArtefactError, match=r"m: definition\.json: .*flops"):
            read_definition_file({DEFINITION_FILE: json.dumps(values).encode()}, "m")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "m: pool.json is not valid JSON: "),
        (b"[" * 100_000, "m: pool.json is not valid JSON: "),
        (b"[]", "m: pool.json must be a JSON object, got list"),
        (b"{}", "m: pool.json: op is missing; fetch the model again, or train it again"),
    ],
)
def test_a_file_that_is_no_object_of_its_kind_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ArtefactError) as e:
        read_json({"pool.json": data}, "pool.json", "m")
    assert str(e.value).startswith(words)
