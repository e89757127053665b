"""Definitions are found by a call, in the project's conf/op, and by entry points of installed packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import own_op
from own_op import DEFINITION
from tilewise.errors import ConfigError
from tilewise.ops import OPS, Target, adopt, definition_of, find_definition, is_known, known_ops, register

NAME = "my_matmul_universal_bf16_sm90"


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    with own_op.unknown(DEFINITION.name):
        yield


def test_an_op_is_unknown_until_it_is_registered() -> None:
    with pytest.raises(ConfigError, match="'my_matmul_universal_bf16_sm90' is not a target"):
        Target.parse(NAME)
    assert Target.may_be_of_own_op(NAME)
    register(DEFINITION)
    register(DEFINITION)
    assert Target.parse(NAME) == Target("my_matmul", "universal", "bf16", "sm90")
    assert not Target.may_be_of_own_op(NAME)
    assert definition_of("my_matmul") == DEFINITION
    assert definition_of("gemm") is None
    with pytest.raises(ConfigError, match="variant 'forward' is unknown; my_matmul has universal"):
        Target("my_matmul", "forward", "bf16", "sm90")


def test_an_op_whose_name_begins_like_a_built_in_one_is_told_apart() -> None:
    with own_op.registered(replace(DEFINITION, name="gemm_split")):
        assert Target.parse("gemm_split_universal_bf16_sm90").op == "gemm_split"
    assert Target.parse("gemm_universal_bf16_sm90").op == "gemm"


def test_new_expressions_replace_those_of_a_known_op_and_new_columns_do_not() -> None:
    register(DEFINITION)
    register(replace(DEFINITION, flops="M*N"))
    assert definition_of("my_matmul") == replace(DEFINITION, flops="M*N")
    other = replace(DEFINITION, config=(*DEFINITION.config, ("num_warps", "int")))
    with pytest.raises(ConfigError, match=r"known with other columns \(config column num_warps is missing, here int\)"):
        register(other)
    adopt(replace(DEFINITION, flops="M"))
    assert definition_of("my_matmul") == replace(DEFINITION, flops="M*N"), "an op that comes along changes nothing"
    with pytest.raises(ConfigError, match="known with other columns"):
        adopt(other)


def test_a_project_defines_ops_in_its_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "conf" / "op" / "my_matmul.yaml"
    file.parent.mkdir(parents=True)
    assert not is_known("my_matmul")
    file.write_text(yaml.safe_dump(DEFINITION.to_dict(), sort_keys=False))
    assert "my_matmul" in known_ops()
    assert find_definition("my_matmul") == DEFINITION
    OPS.pop("my_matmul")
    file.write_text("name: other\nproblem: {M: int}\nconfig: {B: int}\n")
    with pytest.raises(ConfigError, match=r"conf/op/my_matmul.yaml: name must be my_matmul, got other"):
        Target.parse(NAME)
    file.write_text("name: my_matmul\nproblem: {M: int}\nconfig: {B: int}\nflops: 2*X\n")
    with pytest.raises(ConfigError, match=r"conf/op/my_matmul.yaml: op my_matmul: flops: '2\*X': column 3"):
        Target.parse(NAME)
    file.write_text("a: [")
    with pytest.raises(ConfigError, match=r"conf/op/my_matmul.yaml: must be a readable YAML file"):
        Target.parse(NAME)


def test_another_programs_conf_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "conf" / "op").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("a: 1\n")
    (tmp_path / "conf" / "op" / "my_matmul.yaml").write_text(yaml.safe_dump(DEFINITION.to_dict(), sort_keys=False))
    assert not is_known("my_matmul")


def test_an_installed_package_defines_ops_by_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[tilewise.ops]\nmy_matmul = mine_ops:define\nbroken = mine_ops:missing\nwrong = mine_ops:NUMBER\n"
    )
    (tmp_path / "mine_ops.py").write_text(f"NUMBER = 3\ndef define(): return {DEFINITION.to_dict()!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_definition("my_matmul") == DEFINITION
    assert {"my_matmul", "broken"} <= set(known_ops())
    with pytest.raises(ConfigError, match=r"entry point mine_ops:missing of tilewise.ops: cannot be loaded"):
        find_definition("broken")
    with pytest.raises(ConfigError, match=r"entry point mine_ops:NUMBER of tilewise.ops: a definition must be"):
        find_definition("wrong")
    sys.modules.pop("mine_ops", None)
