"""A sweep expands into exactly the instances that the rules allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.kernels.ck import (
    CkKernel,
    Instance,
    get_instance_string,
    legal_kernels,
    parse_instance_string,
)
from tilewise.kernels.ck._ck_rules import SUFFIXES, build_fault, illegal_reason
from tilewise.kernels.ck._traits import expand_gemm_sweep, expand_sweep
from tilewise.ops import GEMM_LAYOUTS, Target

GFX942, GFX950 = load_arch("gfx942"), load_arch("gfx950")


def sweep(variant: str = "forward", **traits: list[Any]) -> dict[str, Any]:
    return {"variant": variant, "trait_config": {name: {"values": values} for name, values in traits.items()}}


TILE_SIDES: dict[str, list[Any]] = {"tile_m": [16, 32, 64, 128, 256]}
TABLE_TILES = (  # of the kernels that CK Tile measured on gfx950
    *("16x64x64", "16x64x128", "32x64x64", "32x64x128", "32x128x64"),
    *("64x64x64", "64x64x128", "64x128x64", "128x64x128", "128x128x64"),
)
EXAMPLE = sweep(data_type=["bf16"], pipeline=["compv3", "compv4", "compv5"], ndim_spatial=[2])


def test_the_example_sweep() -> None:
    found = expand_sweep(EXAMPLE, GFX950)
    assert {i.kernel.pipeline for i in found} == {"compv3", "compv4", "compv5"}
    assert {i.header for i in found} == {("forward", 2, "nhwgc", "bf16")}
    assert len({i.name for i in found}) == len(found) == 30
    target = Target("grouped_conv", "forward", "bf16", "gfx950")
    assert [illegal_reason(i.kernel, target, GFX950) for i in found] == [None] * len(found)


@pytest.mark.parametrize("pipeline", SUFFIXES)
def test_every_suffix_set_of_a_pipeline_is_there(pipeline: str) -> None:
    found = expand_sweep(sweep(pipeline=[pipeline], tile_m=[64], tile_n=[64], tile_k=[32], data_type=["fp16"]), GFX950)
    told = {(i.kernel.scheduler, i.kernel.double_smem_buffer, i.kernel.store_immediate) for i in found}
    assert told == set(SUFFIXES[pipeline])


def test_a_named_trait_keeps_its_values_only() -> None:
    some: dict[str, list[Any]] = {
        "data_type": ["bf16"],
        "pipeline": ["mem"],
        "scheduler": ["interwave"],
        "tile_m": [128],
        "tile_n": [64, 128],
        "tile_k": [64],
    }
    found = expand_sweep(sweep("forward", **some, store_immediate=[False]), GFX950)
    assert {(i.kernel.tile_m, i.kernel.tile_n, i.kernel.tile_k) for i in found} == {(128, 64, 64), (128, 128, 64)}
    assert {(i.kernel.scheduler, i.kernel.double_smem_buffer) for i in found} == {
        ("interwave", False),
        ("interwave", True),
    }


def sizes_of(instance: Instance) -> str:
    return "x".join(str(getattr(instance.kernel, f"tile_{x}")) for x in "mnk")


@pytest.mark.parametrize(
    ("variant", "pipelines", "kernels"),
    [
        ("forward", ["compv3", "compv4", "compv5"], 30),
        ("bwd_data", ["compv3", "mem"], 20),
        ("bwd_weight", ["compv3", "mem"], 20),
    ],
)
def test_sweeps_without_tile_sizes_have_ck_tiles_own_kernels(variant: str, pipelines: list[str], kernels: int) -> None:
    """The numbers are those that CK Tile's tile engine states for its sweep files; the tiles are those of its table."""
    traits: dict[str, list[Any]] = {"pipeline": pipelines, "scheduler": ["intrawave"], "ndim_spatial": [2]}
    for dtype in ("bf16", "fp16"):
        found = expand_sweep(sweep(variant, data_type=[dtype], **traits), GFX950)
        assert len({i.name for i in found}) == len(found) == kernels
        for pipeline in pipelines:
            assert {sizes_of(i) for i in found if i.kernel.pipeline == pipeline} == set(TABLE_TILES)
        assert {i.kernel.double_smem_buffer for i in found if i.kernel.pipeline != "compv4"} == {False}
        assert not any(i.kernel.store_immediate for i in found)


def test_ck_tiles_own_tiles_fill_their_block_exactly() -> None:
    """CK Tile requires that the warps along M cover tile_m once."""
    for instance in expand_sweep(sweep(pipeline=["compv3"], data_type=["bf16"]), GFX950):
        k = instance.kernel
        assert k.warp_m * k.warp_tile_m == k.tile_m
        assert (k.vector_a, k.vector_b, k.vector_c) == (4, 8, 8)


def test_a_sweep_with_a_tile_size_has_every_tile_and_suffix_with_it() -> None:
    traits: dict[str, list[Any]] = {"pipeline": ["compv3"], "data_type": ["bf16"]}
    own, wide = (expand_sweep(sweep("forward", **more), GFX950) for more in (traits, traits | TILE_SIDES))
    assert set(own) < set(wide)
    assert len({sizes_of(i) for i in wide}) > 80
    assert {(i.kernel.double_smem_buffer, i.kernel.store_immediate) for i in wide} == set(
        product((False, True), (False, True))
    )
    buffers = expand_sweep(sweep(pipeline=["compv3"], data_type=["bf16"], double_smem_buffer=[False, True]), GFX950)
    assert len(buffers) == 2 * len(own)


def test_an_arch_with_less_shared_memory_has_fewer() -> None:
    less, more = ({i.name for i in expand_sweep(EXAMPLE, arch)} for arch in (GFX942, GFX950))
    assert more - less == {"grouped_conv_forward_bf16_2d_128x64x128_compv4_intrawave_dsb"}
    assert less < more


def test_other_dimensions_and_variants() -> None:
    found = expand_sweep(sweep("bwd_weight", ndim_spatial=[2, 3], pipeline=["compv3"], two_stage=[False, True]), GFX950)
    assert {i.layout for i in found} == {"nhwgc", "ndhwgc"}
    assert {i.two_stage for i in found} == {False, True}
    assert {i.dtype for i in found} == {"bf16", "fp16"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "a sweep has a variant and a trait_config"),
        ({"variant": "forward", "trait_config": []}, "a sweep has a variant and a trait_config"),
        ({**EXAMPLE, "tile_config": {}}, "'tile_config' is not a key of a sweep"),
        (sweep("sideways"), "variant must be one of forward, bwd_data, bwd_weight, got 'sideways'"),
        (sweep(colour=["red"]), "trait 'colour' is unknown; known are data_type"),
        (sweep(pipeline=[]), "trait pipeline needs .* with at least one value"),
        ({"variant": "forward", "trait_config": {"pipeline": ["mem"]}}, "trait pipeline needs"),
        (sweep(pipeline=["compv9"]), "trait pipeline: 'compv9' is unknown; known are basic_v1"),
        (sweep(data_type=["fp64"]), "trait data_type: 'fp64' is unknown; known are bf16, fp16"),
        (sweep(tile_m=["64"]), "trait tile_m: values must be of type int, got '64'"),
        (sweep(tile_m=[True]), "trait tile_m: values must be of type int, got True"),
        (sweep(ndim_spatial=[4]), "trait ndim_spatial: must be 1, 2 or 3, got 4"),
        (sweep(tile_m=[24]), "no instance of this sweep is legal on gfx950"),
        (sweep(tile_m=[10**12]), "no instance of this sweep is legal|must be a number from 0"),
        (sweep(tile_m=list(range(1, 10**4))), "at most 200000 combinations, got [0-9]+; name fewer values"),
    ],
)
def test_a_wrong_sweep_is_refused(document: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        expand_sweep(document, GFX950)


@pytest.mark.long
def test_legal_kernels_state_what_the_pool_states() -> None:
    target = Target("grouped_conv", "forward", "bf16", "gfx950")
    pool = tuple(
        CkKernel.from_config(f"2d_{tile}_{p}") for tile in ("64x64x64", "16x64x128") for p in ("compv3", "mem")
    )
    found = legal_kernels(target, GFX950, pool)
    assert set(pool) < set(found)
    assert len({k.config for k in found}) == len(found)
    assert not any(k.scheduler or k.warp_m or k.vector_a for k in found)
    assert {k.pipeline for k in found} == {"basic_v1", "mem", "compv3", "compv4", "compv5", "compv6"}
    assert all(illegal_reason(k, target, GFX950) is None for k in found)
    with_modes = legal_kernels(target, GFX950, (CkKernel.from_config("2d_64x64x64_mem_interwave"),))
    assert {k.scheduler for k in with_modes} == {"intrawave", "interwave"}


def test_matrix_products_and_empty_pools_have_no_legal_kernels() -> None:
    with pytest.raises(KernelError, match="expand convolutions only, not gemm"):
        legal_kernels(Target("gemm", "universal", "fp8", "gfx942"), GFX942, ())
    with pytest.raises(KernelError, match="at least one kernel, got 0"):
        legal_kernels(Target("grouped_conv", "forward", "bf16", "gfx942"), GFX942, ())


# --- matrix products --------------------------------------------------------------------------------------------------

LISTED: dict[str, list[Any]] = {
    **{"tile_m": [64, 128], "tile_n": [128], "tile_k": [64], "warp_m": [1, 2, 3], "warp_n": [2], "warp_k": [1]},
    **{"warp_tile_m": [16, 32, 64], "warp_tile_n": [16, 32], "warp_tile_k": [16, 32]},
    **{"pipeline": ["compv3", "mem"], "scheduler": ["intrawave", "interwave"], "epilogue": ["cshuffle"]},
    **{"pad_m": [False], "pad_n": [False], "pad_k": [True, False], "persistent": [False]},
}


def gemm_sweep(**change: Any) -> dict[str, Any]:
    """Return a sweep in the form of CK Tile's tile engine; None leaves a trait out."""
    entries = {n: {"values": v} for n, v in LISTED.items()} | change
    of_sizes = {n: e for n, e in entries.items() if n.startswith(("tile_", "warp_")) and e is not None}
    return {
        "tile_config": of_sizes,
        "trait_config": {n: e for n, e in entries.items() if n not in of_sizes and e is not None},
        "k_block_per_cu": 1,
    }


@pytest.mark.long
def test_ck_tiles_default_sweep_of_matrix_products() -> None:
    """CK Tile's generator builds blocks of four warps only: 798 kernels of compv3, and 617 with two buffers."""
    sides = {"min": 128, "max": 256, "step": 64}
    warps = {"values": [4, 2, 1]}
    document = gemm_sweep(
        tile_m=sides,
        tile_n=sides,
        tile_k={"min": 32, "max": 256, "step": 32},
        warp_m=warps,
        warp_n=warps,
        warp_tile_n={"values": [16, 32, 64]},
        warp_tile_m={"values": [16, 32]},
        warp_tile_k={"values": [8, 16, 32, 64, 128]},
        pipeline={"values": ["compv3", "compv4"]},
        scheduler={"values": ["intrawave"]},
        pad_k={"values": [False]},
        persistent={"values": [True]},
    )
    kernels = [i.kernel for i in expand_gemm_sweep(document, "fp8", GFX950) if i.kernel.gemm_layout == "rcr"]
    assert len(kernels) == 3363
    assert Counter(k.pipeline for k in kernels if k.warp_m * k.warp_n == 4) == {"compv3": 798, "compv4": 617}


def test_a_sweep_of_matrix_products_has_what_the_rules_allow() -> None:
    """Expected are all combinations of the values, judged one by one, whose names state all of them."""
    legal = set()
    for values in product(*LISTED.values()):
        stated = dict(zip(LISTED, values, strict=True))
        pads = dict.fromkeys(("pad_m", "pad_n", "pad_k"), True) if stated["pipeline"] == "mem" else {}
        kernel = CkKernel(**{**stated, **pads})
        if build_fault(kernel, "bf16", GFX942) is None:
            legal |= {replace(kernel, gemm_layout=layout).name("gemm", "universal", "bf16") for layout in GEMM_LAYOUTS}
    found = expand_gemm_sweep(gemm_sweep(), "bf16", GFX942)
    assert len(found) == len({i.name for i in found}) > 50
    assert {i.name for i in found} == legal
    kernels = [i.kernel for i in found]
    assert {k.warp_m for k in kernels} == {1, 2}  # three is no power of two
    assert {(k.pipeline, k.scheduler) for k in kernels} == {
        ("compv3", "intrawave"),
        ("mem", "intrawave"),
        ("mem", "interwave"),
    }
    assert {k.pad_m for k in kernels if k.pipeline == "mem"} == {True}
    assert {k.pad_k for k in kernels if k.pipeline == "compv3"} == {True, False}


def test_a_sweep_with_reduction_strategies_has_stream_k_instances() -> None:
    """CK Tile's stream-K sweeps differ from plain ones in this trait and in an empty object."""
    plain = expand_gemm_sweep(gemm_sweep(persistent={"values": [False, True]}), "bf16", GFX942)
    strategies = {"values": ["atomic", "linear", "tree"]}
    document = {**gemm_sweep(persistent={"values": [False, True]}, reduction_strategy=strategies), "problem": {}}
    found = expand_gemm_sweep(document, "bf16", GFX942)
    assert len(found) == len(set(found)) == 3 * len(plain)
    assert len({i.name for i in found}) == len(found)
    assert not any(i.kernel.streamk_enabled for i in plain)
    for i in found:
        assert i.kernel.streamk_enabled
        assert i.kernel.streamk_persistent == i.kernel.persistent
        assert parse_instance_string(get_instance_string(i)) == i
    assert Counter(i.kernel.streamk_reduction_strategy for i in found) == dict.fromkeys(
        strategies["values"], len(plain)
    )


def test_a_range_has_both_ends() -> None:
    found = expand_gemm_sweep(gemm_sweep(tile_m={"min": 64, "max": 192, "step": 64}), "bf16", GFX942)
    assert {i.kernel.tile_m for i in found} == {64, 128, 192}


def test_larger_shared_memory_and_deeper_instructions_have_more() -> None:
    deep = gemm_sweep(tile_k={"values": [128, 256]}, warp_tile_k={"values": [32, 128]})
    more = {i.name for i in expand_gemm_sweep(deep, "fp8", GFX950)}
    assert more > {i.name for i in expand_gemm_sweep(deep, "fp8", GFX942)}
    assert any(name.endswith("16x16x128") for name in more)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tile_m": None}, "names exactly tile_m, tile_n, .*; got tile_n"),
        ({"persistent": None}, "names exactly pipeline, scheduler, .*; got pipeline"),
        ({"colour": {"values": [1]}}, "names exactly pipeline, .*; got .*colour"),
        ({"tile_m": {"values": []}}, "tile_m needs"),
        ({"tile_m": {"values": [True]}}, "tile_m needs"),
        ({"tile_m": {"values": [64], "step": 1}}, "tile_m needs"),
        ({"tile_m": {"min": 64, "max": 32, "step": 16}}, "tile_m needs"),
        ({"tile_m": {"min": 64, "max": 128, "step": 0}}, "tile_m needs"),
        ({"tile_m": 64}, "tile_m needs"),
        ({"tile_m": {"min": 1, "max": 10**12, "step": 1}}, "at most 200000 combinations, got [0-9]+; name fewer"),
        ({"pipeline": {"values": ["compv9"]}}, "trait pipeline: 'compv9' is unknown; known are basic_v1"),
        ({"pad_k": {"values": [0]}}, "trait pad_k: 0 is unknown; known are False, True"),
        ({"epilogue": {}}, "trait epilogue needs"),
        ({"reduction_strategy": {"values": []}}, "trait reduction_strategy needs"),
        (
            {"reduction_strategy": {"values": ["ring"]}},
            "trait reduction_strategy: 'ring' is unknown; known are atomic, l",
        ),
        ({"tile_k": {"values": [24]}}, "no instance of this sweep is legal on gfx942 for bf16"),
    ],
)
def test_a_wrong_sweep_of_matrix_products_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        expand_gemm_sweep(gemm_sweep(**change), "bf16", GFX942)


@pytest.mark.parametrize(
    ("document", "dtype", "message"),
    [
        (gemm_sweep(), "fp32", "does not state their type; give dtype=, one of bf16, fp16, fp8"),
        ({**gemm_sweep(), "multi_d_config": {}}, "bf16", r"\(multi_d_config\) compute no problem of the op gemm"),
        ({**gemm_sweep(), "problem": {"layout_a": {}}}, "bf16", "'problem' is not a key of a sweep of matrix products"),
        ({**gemm_sweep(), "tile_config": [1]}, "bf16", "names exactly tile_m"),
        (EXAMPLE, "bf16", "has a tile_config and a trait_config"),
    ],
)
def test_other_documents_are_no_sweeps_of_matrix_products(document: Any, dtype: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        expand_gemm_sweep(document, dtype, GFX942)
