"""Features that derive from a definition: hand-computed values, roles, and conflicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import own_op
from own_op import DEFINITION
from tilewise.arch import load_arch
from tilewise.errors import ConfigError
from tilewise.features import Conditions, feature_table, feature_table_of, terms_of
from tilewise.kernels import Pool, kernel_type
from tilewise.ops import OpDefinition

CONDITIONS = Conditions(variant="universal", dtype="bf16", arch=load_arch("sm90"))  # 132 compute units
PROBLEM: dict[str, Any] = {"M": 1000, "N": 384, "K": 96, "layout": "rrr", "causal": 1}
KERNEL: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "pipe": "tma", "even_k": False}


@pytest.fixture(autouse=True)
def _known() -> Iterator[None]:
    with own_op.registered():
        yield


def _values(definition: OpDefinition = DEFINITION) -> dict[str, float]:
    table = feature_table_of(definition)
    return dict(
        zip(table.names, table.matrix(PROBLEM, KERNEL | {"backend": "my_matmul"}, **CONDITIONS)[0], strict=True)
    )


def test_features_follow_from_columns_and_expressions() -> None:
    values = _values()
    expected = {
        "M_log2": np.log2(1000), "M_alignment": 8, "N_alignment": 128, "causal": 1, "layout_is_0": 0, "layout_is_1": 1,
        "flops_log2": np.log2(2 * 1000 * 384 * 96), "bytes_log2": np.log2(2 * (96000 + 36864 + 384000)),
        "BLOCK_M": 128, "even_k": 0, "M_by_BLOCK_M_log2": 3, "M_by_BLOCK_M_fill": 1000 / 1024, "K_by_BLOCK_K_log2": 1,
        "K_by_BLOCK_K_fill": 0.75, "grid_M_N_log2": np.log2(24), "grid_M_N_waves": 1, "grid_M_N_wave_fill": 24 / 132,
        "grid_M_N_K_log2": np.log2(48), "area": 128 * 128, "rest": 32,
    }  # fmt: skip
    assert {name: values[name] for name in expected} == pytest.approx(expected)


def test_every_feature_and_term_is_described() -> None:
    table = feature_table_of(DEFINITION)
    meanings = {f.name: (f.role, f.meaning) for f in table.features}
    expected = {
        "M_log2": ("problem", "log2 of M"),
        "layout_is_1": ("problem", "layout is rrr"),
        "pipe": ("kernel", "configuration's pipe, str"),
        "M_by_BLOCK_M_log2": ("interaction", "log2 of ceil(M / BLOCK_M)"),
        "M_by_BLOCK_M_fill": ("interaction", "useful share of tiles of BLOCK_M along M"),
        "BLOCK_M_BLOCK_N_log2": ("kernel", "log2 of BLOCK_M x BLOCK_N"),
        "grid_M_N_waves": ("interaction", "waves of programs (grid_M_N), rounded up"),
        "area": ("kernel", "own: BLOCK_M*BLOCK_N"),
    }
    assert {name: meanings[name] for name in expected} == expected
    assert all(isinstance(meaning, str) and meaning for _, meaning in meanings.values())
    assert all(isinstance(t.meaning, str) and t.meaning for t in (*table.costs, *table.drivers))


def test_terms_have_names_of_their_own() -> None:
    """A calibration is kept by these names."""
    table = feature_table_of(replace(DEFINITION, programs="cdiv(M, BLOCK_M)"))
    blocks = [f"{a}_{b}{once}" for a, b in combinations(("BLOCK_M", "BLOCK_N", "BLOCK_K"), 2) for once in ("", "_once")]
    grid = ["programs_waves", "programs_steps"]
    assert [t.name for t in table.costs] == ["launch", "work", "steps", *blocks, *grid, "memory"]
    sizes = [f"{size}{what}" for size in "MNK" for what in ("", "_alignment")]
    fills = [f"{size}_by_BLOCK_{size}_fill" for size in "MNK"]
    assert [t.name for t in table.drivers] == [*sizes, *fills, "programs_wave_fill", "programs_few_waves"]


def test_stated_programs_replace_the_guesses() -> None:
    values = _values(replace(DEFINITION, programs="cdiv(M, BLOCK_M) * 100"))
    assert values["programs_waves"] == 7  # 800 / 132
    assert values["programs_wave_fill"] == pytest.approx(800 / 132 / 7)
    assert not [name for name in values if name.startswith("grid_")]


@pytest.mark.parametrize(
    ("column", "sizes"),
    [
        ("BLOCK_M", ["M"]), ("BLOCK_SIZE_M", ["M"]), ("tile_m", ["M"]), ("BM", ["M"]), ("MBLOCK", ["M"]),
        ("BLOCK_SIZE", ["M", "n_cols"]), ("BLOCK_DMODEL", ["M", "n_cols"]), ("BLOCK_N_COLS", ["n_cols"]),
        ("num_warps", []), ("GROUP_SIZE_M", []), ("SPLIT_K", []),
    ],
)  # fmt: skip
def test_a_tile_belongs_to_the_size_that_its_name_says(column: str, sizes: list[str]) -> None:
    definition = OpDefinition("toy", (("M", "int"), ("n_cols", "int")), ((column, "int"),))
    found = [name.partition("_by_")[0] for name in feature_table_of(definition).names if name.endswith("_fill")]
    assert [name for name in found if not name.startswith("grid_")] == sizes


def test_roles_follow_from_the_columns_that_an_expression_reads() -> None:
    definition = replace(DEFINITION, features=(("a", "M // 3"), ("b", "BLOCK_M // 3"), ("c", "M > BLOCK_M")))
    roles = {f.name: f.role for f in feature_table_of(definition).features}
    assert (roles["a"], roles["b"], roles["c"]) == ("problem", "kernel", "interaction")


def test_an_own_feature_must_not_hide_a_derived_one() -> None:
    with pytest.raises(ConfigError, match="features: M_log2 is the name of a derived feature; rename it"):
        feature_table_of(replace(DEFINITION, features=(("M_log2", "M"),)))


def test_another_expression_is_another_schema() -> None:
    other = replace(DEFINITION, features=(("area", "BLOCK_M+BLOCK_N"), DEFINITION.features[1]))
    assert feature_table("my_matmul").schema_hash == feature_table_of(DEFINITION).schema_hash
    assert feature_table_of(other).schema_hash != feature_table_of(DEFINITION).schema_hash


def test_kernels_that_differ_in_a_text_or_flag_only_are_told_apart() -> None:
    kind = kernel_type(DEFINITION)
    kernels = [kind.from_dict(KERNEL | change) for change in ({}, {"pipe": "plain"}, {"even_k": True})]
    pool = Pool("my_matmul", "universal", "bf16", tuple(kernels))
    feature_table("my_matmul").check_distinct(pool, load_arch("sm90"))


def test_costs_are_positive_also_without_expressions() -> None:
    for definition in (DEFINITION, replace(DEFINITION, flops="", bytes="", features=(), supports="")):
        table = feature_table_of(definition)
        rows = table.rows_of(PROBLEM, KERNEL | {"backend": "my_matmul"}, **CONDITIONS)
        terms = terms_of(table, rows)
        assert (terms.costs > 0).all()
        assert np.isfinite(terms.drivers).all()
