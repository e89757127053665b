"""Depthwise and stream-K kernels are candidates like any other: imported, told apart, learnt and selected."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from extending.test_extending import to_selection
from kernels.ck.lines import DEPTHWISE
from tilewise.arch import load_arch
from tilewise.data import parquet_bytes, read_measurements
from tilewise.data.importers import ingest_file
from tilewise.errors import KernelError
from tilewise.features import Conditions, feature_table
from tilewise.kernels import Pool, illegal, unsupported
from tilewise.kernels.ck import CkKernel, ConfHeader, convert_conf, parse_name
from tilewise.ops import CHANNELS_FIRST, GroupedConvProblem, Target
from tilewise.train import pool_of

FORWARD, WEIGHT = Target.parse("grouped_conv_forward_fp16_gfx942"), Target.parse("grouped_conv_bwd_weight_fp16_gfx942")
SMALL, LARGE, WIDE = (
    f"grouped_conv_fwd_depthwise_fp16_ngchw_2d_{tile}_f3_s1x1_p1x1_nb{nb}_sub{sub}_vec{vec}"
    for tile, nb, sub, vec in (("16x16", 2, "1x4", "8_8"), ("32x32", 2, "4x4", "8_8"), ("16x16", 2, "1x4", "4_8"))
)
PROBLEM = GroupedConvProblem(N=8, C=64, K=64, G=64, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1, layout=CHANNELS_FIRST)
TILED = "grouped_conv_forward_fp16_2d_64x64x64_compv3_intrawave"


def table_of(
    names: Mapping[str, Callable[[GroupedConvProblem], float]],
    problems: list[GroupedConvProblem],
    target: Target,
    at: Path,
) -> pd.DataFrame:
    """Write a benchmark CSV with the milliseconds of each kernel on each problem, and ingest it."""
    columns = [*PROBLEM.to_dict()]
    with (at / "bench.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["kernel", "problem_idx", *columns, "latency_ms", "tflops", "non_zero"])
        writer.writeheader()
        for i, p in enumerate(problems):
            for name, ms in names.items():
                row = {"kernel": name, "problem_idx": i, **p.to_dict(), "latency_ms": ms(p), "non_zero": 9}
                writer.writerow({**row, "tflops": p.flops / ms(p) / 1e9})
    report = ingest_file(at / "bench.csv", target, at / "bench.parquet")
    assert (report.rows, report.lost) == (len(problems) * len(names), 0)
    return read_measurements(report.path, target)


def test_a_name_states_all_twelve_sizes() -> None:
    (instance,) = convert_conf(DEPTHWISE, ConfHeader(dtype="fp16")).instances
    spelled = "grouped_conv_fwd_depthwise_fp16_ngchw_2d_16x16_f3_s1x1_p1x1_nb8_sub1x4_vec8_8"
    parsed = parse_name(spelled)
    assert (parsed.op, parsed.variant, parsed.dtype) == ("grouped_conv", "forward", "fp16")
    assert parsed.kernel == instance.kernel
    assert parsed.canonical == "grouped_conv_forward_fp16_2d_depthwise_16x16_f3_s1x1_p1x1_nb8_sub1x4_vec8_8"
    assert parse_name(parsed.canonical).kernel == parsed.kernel
    assert (parsed.kernel.tile_m, parsed.kernel.dw_nbatch, parsed.kernel.dw_sub_w) == (16 * 16 * 8, 8, 4)
    with pytest.raises(KernelError, match="2d depthwise kernels for ngchw only"):
        _ = replace(instance, layout="nhwgc").kernel


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"layout": "NHWGC"}, "depthwise kernels take channels first (NGCHW) only"),
        ({"K": 128}, "depthwise kernels compute one input and one output channel a group"),
        ({"Y": 5}, "the kernel is built for another filter"),
        ({"stride_w": 2}, "the kernel is built for another stride"),
        ({"pad_h": 0}, "the kernel is built for another padding"),
        ({"dilation_h": 2, "pad_h": 2}, "the kernel is built for another padding"),
        ({"dilation_h": 2}, "the kernel is built for another dilation"),
        ({"N": 9}, "the images of a tile must divide N"),
        ({"Di": 4, "Z": 3}, "a 2d kernel has no depth"),
    ],
)
def test_a_kernel_supports_the_filter_that_it_is_built_for(change: dict[str, Any], reason: str | None) -> None:
    kernel = parse_name(SMALL).kernel
    assert unsupported(kernel, replace(PROBLEM, **change), "forward", "fp16") == reason


def test_tiles_that_share_a_wave_hold_the_whole_output() -> None:
    kernel = parse_name(SMALL.replace("sub1x4", "sub2x4")).kernel  # 8 x 4 parts: two tiles in 64 lanes
    assert "must fit into one of the tiles" in str(unsupported(kernel, PROBLEM, "forward", "fp16"))
    assert unsupported(kernel, replace(PROBLEM, Hi=16, Wi=16), "forward", "fp16") is None


def test_a_pool_of_both_kinds_gets_the_answers_of_each() -> None:
    pool = Pool("grouped_conv", "forward", "fp16", tuple(parse_name(n).kernel for n in (SMALL, TILED)))
    last = replace(PROBLEM, G=1, layout="NHWGC")
    for problem in (PROBLEM, last):
        expected = [unsupported(k, problem, "forward", pool.dtype) for k in pool.kernels]
        assert pool.unsupported(problem).tolist() == expected
        assert pool.supported(problem).sum() == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dw_sub_h": 1, "dw_sub_w": 1}, "more parts than the 64 lanes of a wave"),
        ({"dw_sub_h": 4, "dw_nbatch": 3}, "nb must be a multiple of the 4 tiles of a wave"),
        ({"dw_pad_w": 0}, "the padding along the width must be at least 1"),
        ({"dw_in_vec": 0}, "all sizes but the padding must be at least 1"),
    ],
)
def test_kernels_that_ck_tile_cannot_build_are_illegal(change: dict[str, int], message: str) -> None:
    kernel = replace(parse_name(SMALL).kernel, **change)  # type: ignore[arg-type]
    assert message in str(illegal(kernel, FORWARD, load_arch("gfx942")))


def test_a_gradient_has_no_depthwise_kernel() -> None:
    assert illegal(parse_name(SMALL).kernel, WEIGHT, load_arch("gfx942")) == "depthwise kernels compute forward only"


STREAMK = tuple(
    f"grouped_conv_bwd_weight_fp16_2d_64x64x64_compv3_intrawave{suffix}"
    for suffix in ("", "_streamk", "_streamk_1", "_streamk_2", "_streamk_atomic", "_streamk_tree_persistent")
)


@pytest.mark.parametrize(
    ("target", "names"), [(FORWARD, (SMALL, LARGE, WIDE, TILED)), (WEIGHT, STREAMK)], ids=["depthwise", "stream-K"]
)
def test_no_two_candidates_share_a_feature_row(target: Target, names: tuple[str, ...]) -> None:
    pool = Pool(target.op, target.variant, target.dtype, tuple(parse_name(n).kernel for n in names))
    table, arch = feature_table(target.op), load_arch(target.arch)
    table.check_distinct(pool, arch)
    rows = table.matrix(
        PROBLEM.to_dict(), pool.columns, **Conditions(variant=target.variant, dtype=target.dtype, arch=arch)
    )
    assert np.isfinite(rows).all()
    assert Pool.from_dict(pool.to_dict()) == pool


def test_tables_without_the_new_kernels_keep_their_bytes(tmp_path: Path) -> None:
    frame = table_of({TILED: lambda p: 1.0}, [replace(PROBLEM, G=1, layout="NHWGC")], FORWARD, tmp_path)
    earlier = frame.drop(columns=[n for n in CkKernel.later_columns if n != "split_k"])
    assert parquet_bytes(frame) == parquet_bytes(earlier)
    (tmp_path / "earlier.parquet").write_bytes(parquet_bytes(earlier))
    pd.testing.assert_frame_equal(read_measurements(tmp_path / "earlier.parquet", FORWARD), frame)
    pool = pool_of(frame, FORWARD)
    assert not {*CkKernel.later_columns} & {*pool.to_dict()["kernels"][0]}


def _tiles(p: GroupedConvProblem, side: int) -> int:
    return ceil(p.Hi / side) * ceil(p.Wi / side) * p.N * p.G


@pytest.mark.long
def test_depthwise_kernels_are_learnt_and_selected(tmp_path: Path) -> None:
    sides, groups = (8, 12, 16, 20, 28, 32, 40, 56, 64, 112), (16, 64, 96, 256, 512)
    problems = [replace(PROBLEM, N=n, C=g, K=g, G=g, Hi=s, Wi=s) for s in sides for g in groups for n in (2, 4, 8)]
    times = {SMALL: lambda p: 1e-3 + 1e-5 * _tiles(p, 16), LARGE: lambda p: 1e-3 + 2e-5 * _tiles(p, 32)}
    dispatcher = to_selection(table_of(times, problems, FORWARD, tmp_path), FORWARD, tmp_path)
    for side in (16, 64):
        problem = replace(PROBLEM, N=4, C=128, K=128, G=128, Hi=side, Wi=side)
        fastest = min(times, key=lambda name: times[name](problem))
        assert dispatcher.select(problem).kernel_name == parse_name(fastest).canonical
    assert not dispatcher.is_supported(replace(PROBLEM, layout="NHWGC"))


@pytest.mark.long
def test_stream_k_kernels_are_learnt_and_selected(tmp_path: Path) -> None:
    """Stream-K wins where the plain kernel has fewer tiles than the GPU has compute units."""
    plain, divided = STREAMK[0], STREAMK[2]
    problems = [
        GroupedConvProblem(N=n, C=c, K=k, G=1, Hi=s, Wi=s, Y=f, X=f, pad_h=f // 2, pad_w=f // 2)
        for n in (1, 8, 32) for c in (64, 256, 1024) for k in (64, 256, 1024) for s in (7, 14, 28) for f in (1, 3)
    ]  # fmt: skip

    def tiles(p: GroupedConvProblem) -> int:
        return ceil(p.K / 64) * ceil(p.C * p.Y * p.X / 64)

    def steps(p: GroupedConvProblem) -> int:
        return ceil(p.N * p.Hi * p.Wi / 64)

    times = {
        plain: lambda p: 1e-2 + 1e-3 * ceil(tiles(p) / 304) * steps(p),
        divided: lambda p: 4e-2 + 1e-3 * tiles(p) * steps(p) / 304,
    }
    dispatcher = to_selection(table_of(times, problems, WEIGHT, tmp_path), WEIGHT, tmp_path)
    few = GroupedConvProblem(N=32, C=64, K=64, G=1, Hi=28, Wi=28, Y=1, X=1)
    assert dispatcher.select(few).kernel_name == divided
    assert dispatcher.select(replace(few, N=1, Hi=7, Wi=7)).kernel_name == plain
