"""The contract of a feature table, on both ops: rows stand for themselves, roles are honest, the schema is pinned."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies import CONV_POOL, GEMM_POOL, conv_kernels, conv_problems, gemm_kernels, gemm_problems
from tilewise.arch import load_arch
from tilewise.errors import ArtefactError, ConfigError, KernelError, ProblemError
from tilewise.features import FEATURES, Feature, FeatureTable, Inputs, feature_table
from tilewise.features._feature_table import ROLES
from tilewise.kernels import Pool
from tilewise.kernels.triton import Kernel, pipelines_of
from tilewise.ops import OPS, GemmProblem, GroupedConvProblem, Problem

SM90 = load_arch("sm90")
ARCHS = [load_arch(name) for name in ("sm90", "gfx942", "gfx950")]
LAYER = GroupedConvProblem(N=8, C=96, K=192, G=2, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
PROBLEMS: dict[str, Problem] = {"grouped_conv": LAYER, "gemm": GemmProblem(M=500, N=400, K=1000)}
OTHERS: dict[str, Problem] = {
    "grouped_conv": GroupedConvProblem(
        N=1, C=31, K=45, G=1, Hi=200, Wi=100, Y=1, X=5, stride_h=2, dilation_w=3, pad_w=2
    ),
    "gemm": GemmProblem(M=7, N=4096, K=64, layout="crr"),
}


POOLS = {"grouped_conv": CONV_POOL, "gemm": GEMM_POOL}


def matrix(op: str, problem: Any, kernel: Any = None, **change: Any) -> np.ndarray:
    kernel = POOLS[op].columns if kernel is None else kernel
    table: FeatureTable = change.pop("table", feature_table(op))
    settings_: dict[str, Any] = {"variant": OPS[op].variants[0], "dtype": "bf16", "arch": SM90} | change
    problem = problem.to_dict() if isinstance(problem, Problem) else problem
    kernel = kernel.to_dict() if isinstance(kernel, Kernel) else kernel
    return table.matrix(problem, kernel, **settings_)


def stacked(problems: list[Any]) -> dict[str, np.ndarray]:
    rows = [p.to_dict() for p in problems]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("op", FEATURES)
def test_one_problem_and_a_pool_give_a_row_a_kernel(op: str) -> None:
    table = feature_table(op)
    rows = matrix(op, PROBLEMS[op])
    assert rows.shape == (len(POOLS[op]), len(table.names))
    assert rows.dtype == np.float64
    assert matrix(op, PROBLEMS[op], POOLS[op].default).shape == (1, len(table.names))


@given(st.data())
@settings(max_examples=25)
def test_a_batch_equals_its_rows_bit_for_bit(data: st.DataObject) -> None:
    op = data.draw(st.sampled_from(sorted(FEATURES)))
    problem = gemm_problems() if op == "gemm" else conv_problems()
    count = data.draw(st.integers(1, 19))
    problems = data.draw(st.lists(problem, min_size=count, max_size=count))
    variant = data.draw(st.sampled_from(OPS[op].variants))
    change = {"variant": variant, "arch": data.draw(st.sampled_from(ARCHS))}
    pipelines = pipelines_of(op, variant)
    kernel = (gemm_kernels() if op == "gemm" else conv_kernels()).filter(lambda k: k.pipeline in pipelines)
    kernels = data.draw(st.lists(kernel, min_size=count, max_size=count))
    batch = matrix(op, stacked(problems), stacked(kernels), **change)
    single = [matrix(op, p, k, **change)[0] for p, k in zip(problems, kernels, strict=True)]
    assert np.isfinite(batch).all()
    assert batch.tobytes() == np.array(single).tobytes()


@pytest.mark.parametrize("op", FEATURES)
def test_a_pool_at_once_equals_its_kernels_bit_for_bit(op: str) -> None:
    single = [matrix(op, PROBLEMS[op], k)[0] for k in POOLS[op].kernels]
    assert matrix(op, PROBLEMS[op]).tobytes() == np.array(single).tobytes()


@pytest.mark.parametrize("op", FEATURES)
def test_roles_say_what_a_feature_depends_on(op: str) -> None:
    one, other = matrix(op, PROBLEMS[op]), matrix(op, OTHERS[op])
    another_arch = matrix(op, PROBLEMS[op], arch=load_arch("gfx942"))
    for i, feature in enumerate(feature_table(op).features):
        column = one[:, i]
        if feature.role in ("problem", "hardware"):
            assert len(set(column)) == 1, f"{feature.name} depends on the kernel"
        if feature.role in ("kernel", "hardware"):
            assert (column == other[:, i]).all(), f"{feature.name} depends on the problem"
        if feature.role == "interaction":
            assert len(set(column)) > 1 or len(set(other[:, i])) > 1, f"{feature.name} does not depend on the kernel"
            assert (column != other[:, i]).any(), f"{feature.name} does not depend on the problem"
        if feature.role == "hardware" and feature.name != "hw_max_threads":  # the same on all three
            assert (column != another_arch[:, i]).any() or feature.name in ("hw_max_blocks", "hw_simds")


@pytest.mark.parametrize("op", FEATURES)
def test_problem_features_need_no_kernel(op: str) -> None:
    table = feature_table(op).of_role("problem", "hardware")
    alone = matrix(op, stacked([PROBLEMS[op], OTHERS[op]]), {}, table=table)
    assert alone.shape == (2, len(table.names))
    assert (alone[0] == matrix(op, PROBLEMS[op], table=table)[0]).all()


@pytest.mark.parametrize(("op", "least"), [("grouped_conv", (30, 21, 30, 12)), ("gemm", (13, 21, 9, 12))])
def test_every_role_has_its_features(op: str, least: tuple[int, ...]) -> None:
    table = feature_table(op)
    counts = tuple(len(table.of_role(role).names) for role in ROLES)
    assert all(count >= enough for count, enough in zip(counts, least, strict=True))
    assert sum(counts) == len(table.names)


@pytest.mark.parametrize("op", FEATURES)
def test_a_selection_computes_its_columns_in_its_order(op: str) -> None:
    table = feature_table(op)
    names = table.names[::-3]
    part = matrix(op, PROBLEMS[op], table=table.select(names))
    whole = matrix(op, PROBLEMS[op])
    assert (part == whole[:, [table.names.index(n) for n in names]]).all()
    assert table.select(table.names).schema_hash == table.schema_hash


def test_an_unknown_feature_is_named() -> None:
    with pytest.raises(ArtefactError, match=r"no feature of gemm: phase_of_the_moon; this library computes M, N"):
        feature_table("gemm").select(["M", "phase_of_the_moon"])


def test_an_op_without_features_is_named() -> None:
    with pytest.raises(ConfigError, match="op 'pool' has no features; known are gemm, grouped_conv"):
        feature_table("pool")


def _tiny(*names: str, **change: Any) -> FeatureTable:
    features = tuple(Feature(n, "m", f"the {n}", "problem", lambda i: i.p.M) for n in names)
    return FeatureTable("gemm", tuple(dataclasses.replace(f, **change) for f in features), Inputs)


def test_the_schema_hash_follows_everything_a_model_relies_on() -> None:
    tables = [
        _tiny("a", "b"),
        _tiny("b", "a"),
        _tiny("a"),
        _tiny("a", "b", unit="s"),
        _tiny("a", "b", meaning="something else"),
        dataclasses.replace(_tiny("a", "b"), op="grouped_conv"),
    ]
    assert len({t.schema_hash for t in tables}) == len(tables)
    assert _tiny("a", "b").schema_hash == _tiny("a", "b", role="kernel").schema_hash


def test_a_table_of_two_features_with_one_name_is_refused() -> None:
    with pytest.raises(ValueError, match="must have distinct names"):
        _tiny("a", "a")
    with pytest.raises(
        ValueError, match="role must be one of problem, kernel, interaction, hardware, got 'magic' for a"
    ):
        _tiny("a", role="magic")


@pytest.mark.parametrize("op", FEATURES)
def test_every_feature_is_described(op: str) -> None:
    table = feature_table(op)
    lines = table.markdown().splitlines()
    assert len(lines) == 2 + len(table.names)
    for feature, line in zip(table.features, lines[2:], strict=True):
        assert feature.meaning
        assert line == f"| `{feature.name}` | {feature.unit} | {feature.role} | {feature.meaning} |"
        assert feature.unit.startswith("log2") == feature.name.endswith("_log2")
    assert len({(f.meaning, f.unit, f.role) for f in table.features}) >= len(table.features) - 3


@pytest.mark.parametrize("op", FEATURES)
def test_shipped_kernels_are_told_apart(op: str) -> None:
    feature_table(op).check_distinct(POOLS[op], SM90)


def test_kernels_that_look_alike_are_named() -> None:
    blind = feature_table("grouped_conv").select(["tile_m", "tile_n", "N"])
    pool = Pool("grouped_conv", "forward", "bf16", (Kernel(64, 64, 32, "taps", 4, 3), Kernel(64, 64, 64, "taps", 4, 3)))
    with pytest.raises(KernelError, match=r"64x64x32_taps_w4_s3_g1_k1 and .*64x64x64_taps.* share all kernel features"):
        blind.check_distinct(pool, SM90)


@pytest.mark.parametrize(
    ("problem", "kernel", "error", "message"),
    [
        ({"N": None}, {}, ProblemError, "N: the column is missing"),
        ({"N": np.array([1.5])}, {}, ProblemError, "N: must be integers, got float64"),
        ({"N": np.ones((2, 2), int)}, {}, ProblemError, "N: columns have one axis, got 2"),
        ({"N": np.array([1, None], dtype=object)}, {}, ProblemError, "N: must be integers, got object"),
        ({}, {"tile_m": None}, KernelError, "tile_m: the column is missing"),
        ({}, {"tile_m": "64"}, KernelError, "tile_m: must be integers"),
        ({}, {"pipeline": np.array(["taps", "spiral"])}, KernelError, "pipeline must be one of .* got spiral"),
        ({"N": np.array([1, 2])}, {"tile_m": np.array([64, 64, 64])}, KernelError, r"one length .* got \[2, 3\]"),
    ],
)
def test_wrong_columns_are_named(problem: Any, kernel: Any, error: type[Exception], message: str) -> None:
    def change(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in {**values, **changes}.items() if v is not None}

    with pytest.raises(error, match=message):
        matrix("grouped_conv", change(LAYER.to_dict(), problem), change(CONV_POOL.default.to_dict(), kernel))


def test_nullable_and_narrow_integers_are_taken() -> None:
    expected = matrix("grouped_conv", LAYER, CONV_POOL.default)
    for dtype in (object, np.int32, np.uint8):
        sizes = {k: v for k, v in LAYER.to_dict().items() if k != "layout"}
        values = {"layout": LAYER.layout, **{k: np.array([v], dtype=dtype) for k, v in sizes.items()}}
        assert (matrix("grouped_conv", values, CONV_POOL.default) == expected).all()


def test_other_columns_of_a_table_are_ignored() -> None:
    values = {**LAYER.to_dict(), "latency_ms": np.array([0.1, 0.2, 0.3]), "origin": "resnet"}
    assert matrix("grouped_conv", values, CONV_POOL.default).shape[0] == 1
