"""Whatever works for kernels of any backend asks the registry: it must answer from an arch, a kernel or a table."""

from __future__ import annotations

from typing import Any

import pytest

from tilewise.arch import load_arch
from tilewise.data import measurement_columns
from tilewise.data._columns import table_columns
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import Backend, Pool, backend, backend_of_columns, backend_of_target, unsupported
from tilewise.kernels._backends import BACKENDS, backend_of
from tilewise.kernels.ck import CkKernel, parse_name
from tilewise.kernels.triton import Kernel
from tilewise.ops import GroupedConvProblem, Target

CK = parse_name("grouped_conv_forward_bf16_2d_16x64x128_compv4").kernel
TRITON = Kernel(64, 64, 32, "taps", 4, 3)
LAYER: dict[str, Any] = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 14, "Wi": 14, "Y": 3, "X": 3}


@pytest.mark.parametrize(
    ("arch", "name", "kernel"),
    [("sm90", "triton", TRITON), ("gfx942", "ck_tile", CK), ("gfx950", "ck_tile", CK)],
)
def test_an_arch_a_kernel_and_a_table_agree(arch: str, name: str, kernel: Kernel | CkKernel) -> None:
    assert load_arch(arch).backend == name
    assert backend_of_target(Target("grouped_conv", "forward", "bf16", arch)) is BACKENDS[name]()
    assert backend_of(kernel) is backend(name)
    assert backend_of_columns([*kernel.to_dict(), "N", "latency_ms"]) is backend(name)


@pytest.mark.parametrize("made_by", [backend(name) for name in BACKENDS], ids=list(BACKENDS))
def test_a_table_knows_its_columns(made_by: Backend) -> None:
    columns = measurement_columns("gemm", made_by.name)
    names = [c.name for c in columns]
    tags = [made_by.name] if made_by.tagged else []
    assert table_columns("gemm", names, tags) == columns
    assert table_columns("gemm", [n for n in names if n != "tile_k"], tags) == columns  # damaged, but still recognised
    assert len(set(names)) == len(names)


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(ConfigError, match="backend 'cutlass' is unknown or named twice; known are triton, ck_tile"):
        backend("cutlass")
    with pytest.raises(KernelError, match="no backend"):
        backend_of("kernel")  # type: ignore[arg-type]


def test_rules_follow_the_kernel() -> None:
    deep = GroupedConvProblem(**LAYER, Di=4, Z=3)
    assert unsupported(CK, deep, "forward", "bf16") == "a 2d kernel has no depth"
    assert unsupported(TRITON, deep, "forward", "bf16") is None


def test_a_pool_of_ck_tile_survives_its_json() -> None:
    other = parse_name("grouped_conv_forward_bf16_3d_16x64x128_compv4_intrawave_dsb").kernel
    pool = Pool("grouped_conv", "forward", "bf16", (CK, other))
    assert pool.to_dict()["backend"] == "ck_tile"
    assert Pool.from_dict(pool.to_dict()) == pool
    assert pool.supported(GroupedConvProblem(**LAYER)).tolist() == [True, True]
    assert pool.supported(GroupedConvProblem(**LAYER, Di=4, Z=3)).tolist() == [False, True]
    assert pool.columns["double_smem_buffer"].dtype == bool


def test_a_pool_finds_a_kernel_however_it_is_spelled() -> None:
    long = "gemm_universal_fp8_rcr_compv3_cshuffle_intrawave_False_False_False_False_128x128x128_1x4x1_16x16x128"
    pool = Pool(
        "gemm", "universal", "fp8", (parse_name(long.replace("128x128", "64x128")).kernel, parse_name(long).kernel)
    )
    kernel = pool.kernels[1]
    assert [
        pool.find(k) for k in (kernel, long, kernel.config, long.replace("_universal", ""), f"{long}_vec0_0_0")
    ] == [1] * 5
    for other in (long.replace("rcr", "rrr"), "nonsense", TRITON):
        with pytest.raises(KernelError, match="is not one of the 2 kernels of gemm universal fp8"):
            pool.find(other)


def test_a_pool_has_a_known_backend() -> None:
    with pytest.raises(KernelError, match=r"not a pool: .*'cutlass' is unknown"):
        Pool.from_dict({**Pool("grouped_conv", "forward", "bf16", (CK,)).to_dict(), "backend": "cutlass"})
