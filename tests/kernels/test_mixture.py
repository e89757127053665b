"""Pools and tables with kernels of several backends: each kernel keeps its rules, features and name."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given

import strategies
from tilewise.arch import load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.features import feature_table
from tilewise.kernels import Pool, backend, illegal, load_pool, unsupported
from tilewise.kernels._backends import backend_of
from tilewise.kernels._named import number_of
from tilewise.kernels.ck import parse_name
from tilewise.kernels.miopen import Solver
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import GemmProblem, GroupedConvProblem, Target

SM90 = Target("grouped_conv", "forward", "bf16", "sm90")
CALLS = (VendorCall("cudnn"),)
OWN = load_pool(SM90)
MIXED = Pool(OWN.op, OWN.variant, OWN.dtype, (*OWN.kernels[:40], *CALLS, *OWN.kernels[40:]))
IS_OWN = np.array([kernel not in CALLS for kernel in MIXED.kernels])


@pytest.mark.long
@given(problem=strategies.conv_problems())
def test_a_kernel_has_the_same_rules_and_features_in_every_pool(problem: GroupedConvProblem) -> None:
    assert MIXED.supported(problem)[IS_OWN].tolist() == OWN.supported(problem).tolist()
    assert MIXED.unsupported(problem).tolist() == [
        unsupported(k, problem, "forward", MIXED.dtype) for k in MIXED.kernels
    ]
    conditions = {"variant": "forward", "dtype": "bf16", "arch": load_arch("sm90")}
    table = feature_table("grouped_conv")
    mixed = table.matrix(problem.to_dict(), MIXED.columns, **conditions)  # type: ignore[arg-type]
    assert np.array_equal(mixed[IS_OWN], table.matrix(problem.to_dict(), OWN.columns, **conditions))  # type: ignore[arg-type]
    assert np.isfinite(mixed).all()
    table.check_distinct(MIXED, load_arch("sm90"))


def test_all_backends_fit_one_pool() -> None:
    """A mixture has the columns of all; a kernel lacks the others', and reads back to itself."""
    ck = parse_name("grouped_conv_forward_bf16_2d_16x64x128_compv4").kernel
    pool = Pool("grouped_conv", "forward", "bf16", (OWN.default, ck, *CALLS, Solver("ConvAsm1x1U")))
    assert pool.backend is backend("miopen+triton+ck_tile+vendor")
    assert pool.backend.name == "triton+ck_tile+vendor+miopen"
    assert pool.columns["backend"].tolist() == ["triton", "ck_tile", "vendor", "miopen"]
    assert pool.columns["algorithm"].tolist() == ["", "", "cudnn", "ConvAsm1x1U"]
    assert pool.columns["ndim"].tolist() == [0, 2, 0, 0]
    assert Pool.from_dict(json.loads(json.dumps(pool.to_dict()))) == pool
    assert pickle.loads(pickle.dumps(pool)).names == pool.names  # a plan goes to worker processes
    assert [pool.find(name) for name in pool.names] == list(range(4))
    assert [pool.find(kernel.config) for kernel in pool.kernels] == list(range(4))
    assert [pool.backend.read_kernel(pool.backend.row_of(k)) for k in pool.kernels] == list(pool.kernels)
    with pytest.raises(KernelError, match=r"backend must be triton or ck_tile or .*, got 'cutlass'"):
        pool.backend.read_kernel({**pool.backend.row_of(ck), "backend": "cutlass"})
    for text in ("triton+", "triton+triton", "+", ""):
        with pytest.raises(ConfigError, match="unknown or named twice"):
            backend(text)


def test_a_pool_of_one_backend_is_written_as_before() -> None:
    assert "backend" not in OWN.to_dict()
    assert list(OWN.to_dict()["kernels"][0]) == ["kernel_name", *OWN.backend.kernel.column_names()]


@pytest.mark.parametrize(
    ("kernel", "target", "reason"),
    [
        (CALLS[0], SM90, None),
        (CALLS[0], Target("grouped_conv", "forward", "bf16", "gfx950"), "gfx950 is a GPU of amd"),
        (VendorCall("cublas"), SM90, "cublas does not compute grouped_conv"),
        (VendorCall("cublas"), Target("gemm", "universal", "fp8", "sm90"), "cublas does not multiply fp8"),
        (VendorCall("cublaslt_scaled"), Target("gemm", "universal", "fp8", "sm90"), None),
        (VendorCall("cublaslt_scaled"), Target("gemm", "universal", "bf16", "sm90"), "does not multiply bf16"),
        (Solver("ConvAsm1x1U"), SM90, "MIOpen runs on GPUs of AMD"),
        (Solver("ConvAsm1x1U"), Target("grouped_conv", "forward", "bf16", "gfx942"), None),
        (Solver("ConvAsm1x1U"), Target("gemm", "universal", "bf16", "gfx942"), "no bf16 solvers for gemm"),
    ],
)
def test_a_named_candidate_is_legal_where_its_library_runs(
    kernel: VendorCall | Solver, target: Target, reason: str | None
) -> None:
    found = illegal(kernel, target, load_arch(target.arch))
    assert (reason in (found or "")) if reason else found is None


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((64, 64, 64, "rcr"), None),
        ((7, 64, 64, "rcr"), None),
        ((64, 64, 64, "rrr"), "layout rcr only"),
        ((64, 63, 64, "rcr"), "where N divides by 16"),
        ((64, 64, 24, "rcr"), "where K divides by 16"),
    ],
)
def test_fp8_products_of_the_vendor_have_rules(sizes: tuple[int, int, int, str], reason: str | None) -> None:
    m, n, k, layout = sizes
    problem = GemmProblem(M=m, N=n, K=k, layout=layout)
    found = unsupported(VendorCall("cublaslt_scaled"), problem, "universal", "fp8")
    assert (reason in (found or "")) if reason else found is None
    assert unsupported(VendorCall("cublas"), problem, "universal", "bf16") is None


def test_names_of_candidates_are_checked() -> None:
    assert VendorCall.from_config("vendor_cudnn") == CALLS[0]
    assert backend_of(Solver.from_config("miopen_ConvAsm1x1U")).name == "miopen"
    for text in ("cudnn", "vendor_", "vendor_cuda", "miopen_cudnn", "vendor_cudnn "):
        with pytest.raises(KernelError, match="vendor"):
            VendorCall.from_config(text)
    for text in ("miopen_", "miopen_a b", "miopen_1", "miopen_" + "a" * 101):
        with pytest.raises(KernelError, match="miopen"):
            Solver.from_config(text)


def test_the_number_of_a_name_is_fixed() -> None:
    """Trained models hold these numbers."""
    assert (number_of("vendor_cudnn"), number_of("miopen_ConvAsm1x1U")) == (902628, 168298)


def test_columns_that_came_later_stay_later_where_no_part_has_always_had_them() -> None:
    alone = backend("ck_tile").later_columns
    assert {"split_k": 0, "streamk_enabled": False, "dw_filter": 0}.items() <= alone.items()
    assert backend("ck_tile+miopen").later_columns == alone
    rest = {name: value for name, value in alone.items() if name != "split_k"}
    assert backend("triton+ck_tile").later_columns == rest  # Triton's kernels have always had split_k
