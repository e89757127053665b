from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewise.arch import load_arch
from tilewise.errors import KernelError
from tilewise.kernels import Pool, load_pool, pool_json, pool_path, unsupported
from tilewise.kernels import _pool as pool_module
from tilewise.kernels.triton import Kernel, illegal, pipelines_of
from tilewise.kernels.triton._rules import TRITON_DTYPES
from tilewise.ops import OPS, GroupedConvProblem, Target

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
A, B = Kernel(64, 64, 32, "taps", 4, 3), Kernel(64, 64, 32, "flat", 4, 3)
POOL = Pool("grouped_conv", "forward", "bf16", (A, B))
SHIPPED = sorted(p.stem for p in pool_path(TARGET).parent.glob("*.txt"))


def test_the_default_is_the_first() -> None:
    assert POOL.default == A
    assert POOL.names[0] == "grouped_conv_forward_bf16_64x64x32_taps_w4_s3_g1_k1"
    assert len(POOL) == 2


def test_a_pool_survives_its_json() -> None:
    assert Pool.from_dict(json.loads(pool_json(POOL))) == POOL


def test_columns_hold_the_kernels_in_order() -> None:
    columns = POOL.columns
    assert [Kernel.from_dict({k: v[i] for k, v in columns.items()}) for i in range(2)] == [A, B]
    assert columns["tile_m"].dtype.kind == "i"


def test_the_hash_follows_content_and_order() -> None:
    assert Pool("grouped_conv", "forward", "bf16", (A, B)).hash == POOL.hash
    assert Pool("grouped_conv", "forward", "bf16", (B, A)).hash != POOL.hash
    assert Pool("grouped_conv", "forward", "fp16", (A, B)).hash != POOL.hash


@pytest.mark.parametrize(
    ("kernels", "message"), [((), "is empty"), ((A, B, A), "64x64x32_taps_w4_s3_g1_k1 is listed twice in the pool")]
)
def test_an_impossible_pool_is_refused(kernels: tuple[Kernel, ...], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        Pool("grouped_conv", "forward", "bf16", kernels)


def test_a_damaged_pool_is_refused() -> None:
    values = POOL.to_dict()
    values["kernels"][0]["tile_m"] = 128
    with pytest.raises(KernelError, match="do not match its kernels"):
        Pool.from_dict(values)
    with pytest.raises(KernelError, match="not a pool: KeyError"):
        Pool.from_dict({})


def test_a_pool_file_holds_one_configuration_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_POOLS", tmp_path)
    path = tmp_path / "grouped_conv_forward_sm90.txt"
    path.write_text(f"# default first\n{A.config}  # small\n\n{B.config}\n")
    assert load_pool(TARGET) == POOL
    path.write_text(f"{A.config}\n64x64\n")
    with pytest.raises(KernelError, match=r"grouped_conv_forward_sm90\.txt:2: '64x64' is not a kernel configuration"):
        load_pool(TARGET)
    with pytest.raises(
        KernelError, match=r"no pool for gemm_universal_bf16_sm90: .* there are grouped_conv_forward_sm90"
    ):
        load_pool(Target.parse("gemm_universal_bf16_sm90"))


def test_a_line_that_no_type_can_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_POOLS", tmp_path)
    path = tmp_path / "grouped_conv_forward_sm90.txt"
    path.write_text(f"{A.config}\n64x64x32_plain_w4_s3_g1_k1\n")
    with pytest.raises(KernelError, match=r"sm90\.txt:2: 64x64x32_plain_w4_s3_g1_k1 is illegal on sm90: pipeline"):
        load_pool(TARGET)


def test_each_type_takes_the_kernels_that_are_legal_for_it() -> None:
    wide, narrow = (load_pool(Target("gemm", "universal", d, "sm90")).kernels for d in ("bf16", "fp8"))
    only_fp8 = Kernel(128, 256, 128, "tma", 8, 3, 8)
    assert only_fp8 in narrow
    assert only_fp8 not in wide
    assert min(len(wide), len(narrow)) >= 400


@pytest.mark.parametrize(
    "target",
    [
        Target(op, v, d, "sm90")
        for op in TRITON_DTYPES
        for v in OPS[op].variants
        for d in TRITON_DTYPES[op]
        if f"{op}_{v}_sm90" in SHIPPED
    ],
    ids=lambda t: t.name,
)
def test_a_shipped_pool_is_legal_and_large_enough(target: Target) -> None:
    pool, arch = load_pool(target), load_arch(target.arch)
    assert len(pool) >= 100
    assert {k.config: illegal(k, target, arch) for k in pool.kernels if illegal(k, target, arch)} == {}
    assert {k.pipeline for k in pool.kernels} == set(pipelines_of(target.op, target.variant))


def test_the_shipped_default_supports_odd_problems() -> None:
    default = load_pool(TARGET).default
    layers: tuple[dict[str, Any], ...] = (
        {"N": 1, "C": 3, "K": 5, "G": 1, "Hi": 7, "Wi": 7, "Y": 3, "X": 3},
        {"N": 1, "C": 7, "K": 7, "G": 7, "Hi": 1, "Wi": 1, "Y": 1, "X": 1, "pad_h": 1},
        {"N": 2, "C": 4, "K": 6, "G": 2, "Hi": 5, "Wi": 5, "Y": 3, "X": 1, "Di": 4, "Z": 3, "stride_d": 2},
    )
    for values in layers:
        assert unsupported(default, GroupedConvProblem(**values), "forward", TARGET.dtype) is None
