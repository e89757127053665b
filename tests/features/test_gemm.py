from __future__ import annotations

import dataclasses
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings

from extending import pairs
from strategies import gemm_problems
from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.features import feature_table, terms_of
from tilewise.kernels.triton import Kernel
from tilewise.ops import GemmProblem

SM90 = load_arch("sm90")
TABLE = feature_table("gemm")


def features(problem: GemmProblem, kernel: Kernel, dtype: str = "bf16") -> dict[str, float]:
    row = TABLE.matrix(problem.to_dict(), kernel.to_dict(), variant="universal", dtype=dtype, arch=SM90)[0]
    return dict(zip(TABLE.names, row.tolist(), strict=True))


def test_golden() -> None:
    seen = features(GemmProblem(M=300, N=1536, K=7168), Kernel(128, 128, 64, "plain", 8, 4, 8, 4), "fp8")
    expected = {
        "M": 300, "N": 1536, "K": 7168,
        "m_alignment": 4, "n_alignment": 16, "k_alignment": 16, "a_column_major": 0, "b_column_major": 1,
        "flops_log2": log2(2 * 300 * 1536 * 7168),
        "min_bytes_log2": log2(300 * 7168 + 7168 * 1536 + 2 * 300 * 1536),
        "tiles_m_log2": log2(3), "tiles_n_log2": log2(12), "programs_log2": log2(144),
        "efficiency_m": 300 / 384, "efficiency_n": 1, "efficiency_k": 1,
        "steps_log2": log2(112), "program_steps_log2": log2(28), "fill_efficiency": 28 / 31,
        "shared_bytes": 65_536, "accumulators": 64,
        "a_traffic_log2": log2(12), "b_traffic_log2": log2(3),
        "workspace_log2": log2(1 + 4 * 300 * 1536 * 4 / (300 * 7168 + 7168 * 1536 + 2 * 300 * 1536)),
        "hw_peak_tflops": 1979.0, "hw_ridge": 1979e12 / 4800e9,
    }  # fmt: skip
    assert {k: seen[k] for k in expected} == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("layout", "flags"), [("rcr", (0, 1)), ("rrr", (0, 0)), ("crr", (1, 0)), ("ccr", (1, 1))])
def test_layouts(layout: str, flags: tuple[int, int]) -> None:
    seen = features(GemmProblem(M=8, N=8, K=8, layout=layout), Kernel(64, 64, 64, "plain", 4, 3))
    assert (seen["a_column_major"], seen["b_column_major"]) == flags


def test_pipelines_are_told_apart() -> None:
    problem, kernel = GemmProblem(M=512, N=512, K=512), Kernel(128, 128, 64, "plain", 8, 3)
    for pipeline in ("plain", "tma", "persistent"):
        seen = features(problem, dataclasses.replace(kernel, pipeline=pipeline))
        assert [seen[f"pipeline_{p}"] for p in ("plain", "tma", "persistent")] == [
            float(p == pipeline) for p in ("plain", "tma", "persistent")
        ]
    with pytest.raises(KernelError, match=r"pipeline must be one of plain, tma, persistent, got taps$"):
        features(problem, dataclasses.replace(kernel, pipeline="taps"))
    columns = kernel.to_dict() | {"pipeline": np.array(["taps", "plain", "flat"])}
    with pytest.raises(KernelError, match=r"pipeline must be one of plain, tma, persistent, got flat, taps$"):
        TABLE.matrix(problem.to_dict(), columns, variant="universal", dtype="bf16", arch=SM90)


def test_a_pipeline_that_is_added_has_a_flag() -> None:
    with pairs.registered():
        assert set(feature_table("gemm").names) - set(TABLE.names) == {"pipeline_pairs"}


def test_rows_beyond_the_precision_of_floats_are_told_apart() -> None:
    kernel = Kernel(64, 64, 64, "plain", 4, 3)
    loads = [
        TABLE.rows_of(
            GemmProblem(M=8, N=8, K=2**53 + i).to_dict(), kernel.to_dict(), variant="universal", dtype="bf16", arch=SM90
        ).fills("a", 16)  # type: ignore[attr-defined]
        for i in (0, 1, 8)
    ]
    assert [bool(fits) for fits in loads] == [True, False, True]


def test_a_persistent_program_has_its_compute_unit_for_itself() -> None:
    problem = GemmProblem(M=4096, N=4096, K=512)
    tma, persistent = (features(problem, Kernel(64, 64, 64, p, 4, 3)) for p in ("tma", "persistent"))
    assert persistent["grid_waves_log2"] == pytest.approx(log2(4096 / 132))
    assert tma["grid_waves_log2"] == pytest.approx(log2(4096 / 132 / tma["resident"]))


def test_rows_as_stored_and_the_time_of_partial_sums() -> None:
    seen = features(GemmProblem(M=48, N=1536, K=7168, layout="crr"), Kernel(64, 64, 64, "plain", 4, 3, 1, 4))
    assert (seen["run_a_alignment"], seen["run_b_alignment"], seen["k_is_whole"]) == (16, 128, 1)
    sums = 2 * 4 * 48 * 1536 * 4 / 132 / 2.0 ** seen["roofline_log2"]
    assert seen["workspace_time_log2"] == pytest.approx(log2(1 + sums))


def costs(problem: GemmProblem, kernel: Kernel) -> dict[str, float]:
    """Return the costs of one launch, by name."""
    rows = TABLE.rows_of(problem.to_dict(), kernel.to_dict(), variant="universal", dtype="bf16", arch=SM90)
    return dict(zip((t.name for t in TABLE.costs), terms_of(TABLE, rows).costs[0].tolist(), strict=True))


def test_the_busiest_unit_has_what_all_have_where_tiles_fill_all_units() -> None:
    kernel = Kernel(128, 128, 64, "persistent", 8, 3)
    whole = costs(GemmProblem(M=128 * 12, N=128 * 11, K=512), kernel)  # a tile for each of 132 units
    for even, busiest in (("even_arithmetic", "arithmetic"), ("even_loads", "loads")):
        assert whole[even] == pytest.approx(whole[busiest])
    assert whole["inside_loads"] == pytest.approx(whole["loads"])
    assert whole["even_inside_loads"] == pytest.approx(whole["loads"])
    half = costs(GemmProblem(M=128 * 6, N=128 * 11, K=512), kernel)
    assert half["arithmetic"] == pytest.approx(whole["arithmetic"])
    assert half["even_arithmetic"] == pytest.approx(whole["even_arithmetic"] / 2)
    assert half["result_traffic"] == pytest.approx(whole["result_traffic"] / 2)


def test_what_tiles_reach_beyond_the_matrices_is_not_loaded() -> None:
    thin = costs(GemmProblem(M=32, N=4096, K=512), Kernel(128, 128, 64, "plain", 8, 3))
    assert thin["inside_loads"] == pytest.approx(thin["loads"] * (32 + 128) / (128 + 128))


def test_waves_read_again_what_does_not_stay() -> None:
    wide, swizzled = (Kernel(128, 128, 64, "persistent", 8, 3, group_m) for group_m in (1, 8))
    large, small = GemmProblem(M=16384, N=32768, K=4096), GemmProblem(M=128, N=128, K=512)
    assert costs(large, wide)["rereads"] > costs(large, swizzled)["rereads"] > costs(large, wide)["memory"]
    assert costs(small, wide)["rereads"] == pytest.approx(costs(small, wide)["memory"])


@given(gemm_problems())
@settings(max_examples=50)
def test_swapping_the_matrices_swaps_rows_and_columns(problem: GemmProblem) -> None:
    kernel = Kernel(128, 64, 64, "plain", 4, 3)
    one = features(problem, kernel)
    a, b = ({"r": "c", "c": "r"}[stored] for stored in problem.layout[:2])
    swapped = GemmProblem(M=problem.N, N=problem.M, K=problem.K, layout=f"{b}{a}r")
    other = features(swapped, dataclasses.replace(kernel, tile_m=64, tile_n=128))
    for a, b in (
        ("tiles_m_log2", "tiles_n_log2"),
        ("efficiency_m", "efficiency_n"),
        ("a_traffic_log2", "b_traffic_log2"),
    ):
        assert (one[a], one[b]) == pytest.approx((other[b], other[a]))
    for same in ("flops_log2", "min_bytes_log2", "programs_log2", "efficiency", "waves", "compute_time_log2"):
        assert one[same] == pytest.approx(other[same])
