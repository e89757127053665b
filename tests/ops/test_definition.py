"""Definitions: their data, their rules, and the problems that follow from them."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import own_op
from own_op import DEFINITION
from tilewise.data import measurement_columns
from tilewise.errors import ConfigError, ProblemError
from tilewise.kernels import BACKENDS
from tilewise.ops import NOMINAL_FLOPS, RESERVED_COLUMNS, OpDefinition, Target, register

PROBLEM: dict[str, Any] = {"M": 512, "N": 256, "K": 64, "layout": "rcr", "causal": True}


@pytest.fixture
def _known() -> Iterator[None]:
    with own_op.registered():
        yield


def test_a_definition_is_plain_data() -> None:
    plain = json.loads(json.dumps(DEFINITION.to_dict()))
    assert OpDefinition.from_dict(plain) == DEFINITION
    assert plain["problem"]["layout"] == ["rcr", "rrr"]
    assert "programs" not in plain, "empty fields are left out"


def test_the_digest_tells_any_two_definitions_apart() -> None:
    others = [
        replace(DEFINITION, flops=""),
        replace(DEFINITION, source="abc"),
        replace(DEFINITION, config=DEFINITION.config[::-1]),
        replace(DEFINITION, features=DEFINITION.features[:1]),
        replace(DEFINITION, name="my_matmul2"),
    ]
    assert len({DEFINITION.digest, *(other.digest for other in others)}) == 6
    assert OpDefinition.from_dict(DEFINITION.to_dict()).digest == DEFINITION.digest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "gemm"}, "the op name 'gemm' is reserved; choose another, such as my_gemm"),
        ({"name": "a_universal_b"}, "is reserved"),
        ({"name": "My op"}, "must be a lower-case letter, then .*, got 'My op'"),
        ({"name": "../x"}, "must be a lower-case letter"),
        ({"problem": (("M", "int"), ("M", "int"))}, "column M is named twice, in problem and in problem"),
        ({"config": (("M", "int"),)}, "column M is named twice, in problem and in config; rename one"),
        ({"problem": (("latency_ms", "int"),)}, "problem: the name 'latency_ms' is reserved; rename the column"),
        ({"problem": (("max", "int"),)}, "the name 'max' is reserved"),
        ({"problem": (("a b", "int"),)}, "problem: a column's name must be a letter, .*, got 'a b'"),
        ({"problem": (("class", "int"),)}, "got 'class'"),
        ({"problem": (("layout", ("r", "c")),)}, "problem needs at least one column of integers"),
        ({"problem": (("M", "float"),)}, "the kind of M must be int, bool, or a list of texts, got 'float'"),
        ({"problem": (("M", "int"), ("l", ("a", "a")))}, "l must list 1 to 256 different texts"),
        ({"config": (("B", "float"),)}, "the kind of B must be int, str, bool, got 'float'"),
        ({"config": ()}, "config must have 1 to 64 columns, got 0"),
        ({"flops": "2*M*X"}, "op my_matmul: flops: '2[*]M[*]X': column 5: 'X' is unknown; known are"),
        ({"flops": "2*M*BLOCK_M"}, "flops: .*'BLOCK_M' is unknown"),
        ({"flops": "M > 2"}, "flops must be a number"),
        ({"flops": 7}, "flops must be a text, got 7"),
        ({"supports": "BLOCK_M"}, "supports must be a condition, such as BLOCK_K <= K, got 'BLOCK_M'"),
        ({"features": (("a", "3"),)}, "features: a must be an expression with at least one column, got '3'"),
        ({"features": (("a", "pipe + 1"),)}, "features.a: .* does not fit the kinds"),
        ({"features": (("a", "layout"),)}, "features.a must be a number, got 'layout'"),
        ({"features": (("a", "M"), ("a", "N"))}, "features: a name must be .* unique, got 'a'"),
    ],
)
def test_a_faulty_definition_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(DEFINITION, **change)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "a definition must be a mapping with the key name, got 3"),
        ({"name": "a", "problem": {"M": "int"}}, "op a: config is missing"),
        ({"name": "a", "problem": {"M": "int"}, "config": {"B": "int"}, "x": 1}, "unknown key 'x'; known are name"),
        ({"name": "a", "problem": ["M"], "config": {"B": "int"}}, "problem must be a mapping of names"),
    ],
)
def test_a_faulty_file_is_refused(values: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        OpDefinition.from_dict(values)


def test_all_columns_of_tables_and_all_backends_are_reserved() -> None:
    fixed = {c.name for c in measurement_columns("gemm")} - {"M", "N", "K", "layout"}
    kernel = {"tile_m", "tile_n", "tile_k", "pipeline", "num_warps", "num_stages", "group_m", "split_k"}
    assert fixed - kernel <= RESERVED_COLUMNS
    for name in (*BACKENDS, "gemm", "grouped_conv"):
        with pytest.raises(ConfigError, match="is reserved"):
            replace(DEFINITION, name=name)


def test_the_page_shows_a_definition() -> None:
    page = (Path(__file__).parents[2] / "docs" / "your-own-kernels.md").read_text()
    block = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0]
    shown = OpDefinition.from_dict(yaml.safe_load(block))
    assert set(shown.to_dict()) == set(DEFINITION.to_dict()) | {"programs"}


@pytest.mark.usefixtures("_known")
class TestProblem:
    TARGET = "my_matmul_universal_bf16_sm90"

    def test_a_target_has_problems_of_the_definition(self) -> None:
        problem = Target.parse(self.TARGET).problem(PROBLEM)
        assert problem.to_dict() == PROBLEM | {"causal": 1}
        assert problem.group_key == (512, 256, 64), "flags and categories are of one shape"
        assert problem.flops == 2 * 512 * 256 * 64
        assert problem.min_bytes("bf16") == (512 * 64 + 64 * 256 + 512 * 256) * 2
        assert pickle.loads(pickle.dumps(problem)) == problem
        assert Target.parse(self.TARGET).name == self.TARGET

    def test_without_expressions_the_work_is_nominal(self) -> None:
        register(replace(DEFINITION, flops="", bytes=""))
        assert Target.parse(self.TARGET).problem(PROBLEM).flops == NOMINAL_FLOPS

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"M": 2.5}, "M: must be an integer, got 2.5"),
            ({"M": "512"}, "M: must be an integer, got '512'"),
            ({"M": True}, "M: must be an integer, got True"),
            ({"M": -1}, "M: must be at least 0, got -1"),
            ({"causal": 2}, "causal: must be true or false, got 2"),
            ({"layout": "ccc"}, "layout: must be one of rcr, rrr, got 'ccc'"),
            ({"X": 1}, "X: not a dimension of my_matmul; known are M, N, K, layout, causal"),
        ],
    )
    def test_a_key_that_breaks_the_definition_is_refused(self, change: dict[str, Any], message: str) -> None:
        with pytest.raises(ProblemError, match=message):
            Target.parse(self.TARGET).problem(PROBLEM | change)

    def test_work_that_is_not_positive_is_refused_by_name(self) -> None:
        problem = Target.parse(self.TARGET).problem(PROBLEM | {"M": 0})
        with pytest.raises(ProblemError, match=r"flops: '2[*]M[*]N[*]K' must be from 1 to 2[*][*]63"):
            _ = problem.flops

    def test_values_of_numpy_become_pythons(self) -> None:
        problem = Target.parse(self.TARGET).problem(PROBLEM | {"M": np.int64(8), "causal": np.bool_(True)})
        assert [type(value) for value in problem.values()] == [int, int, int, str, int]
