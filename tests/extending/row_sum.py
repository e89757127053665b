"""A toy op, added from outside: sums of a matrix's rows, computed as a product with a column of ones.

The pages in docs/ quote this file; tests add its parts to the registries, use them, and remove them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import measurement_columns
from tilewise.errors import ProblemError
from tilewise.features import FEATURES, Feature, FeatureTable, Inputs, Term
from tilewise.kernels import TileKernel, backend_of_target, unsupported
from tilewise.kernels.triton import OP_RULES, PIPELINES, TRITON_DTYPES, Pipeline
from tilewise.ops import OPS, GemmDims, Problem, Target, operand_bytes, require_int, result_bytes


# A problem: src/tilewise/ops/row_sum.py
@dataclass(frozen=True)
class RowSumProblem(Problem):
    """Sums of the M rows of a matrix with K columns, stored by rows (``r``) or by columns (``c``)."""

    op: ClassVar[str] = "row_sum"
    variants: ClassVar[tuple[str, ...]] = ("plain",)

    M: int
    K: int
    order: str = "r"

    def __post_init__(self) -> None:
        require_int(self, ("M", "K"), at_least=1)
        if self.order not in ("r", "c"):
            raise ProblemError("order", f"must be r or c, got {self.order!r}")

    @property
    def group_key(self) -> tuple[int, ...]:
        return (self.M, self.K)

    @property
    def flops(self) -> int:
        return self.M * self.K

    def min_bytes(self, dtype: str) -> int:
        return operand_bytes(dtype) * self.M * self.K + result_bytes(dtype) * self.M

    def implicit_gemm(self, variant: str) -> GemmDims:
        return GemmDims(self.M, 1, self.K, 1)


# The rules of its kernels: src/tilewise/kernels/triton/_rules.py
def row_sum_rules(kernel: Any, problem: Problem, variant: str, dtype: str) -> Iterator[tuple[Any, str]]:
    yield kernel.tile_k > 2 * problem.implicit_gemm(variant).k, "most of tile_k would be padding"


# Their pipeline: src/tilewise/kernels/triton/pipelines/_ones.py
ONES = Pipeline(name="ones", number=1001, variants=(("row_sum", "plain"),), programs="extending.row_sum")


# The features: src/tilewise/features/row_sum.py
class RowSumInputs(Inputs):
    @cached_property
    def flops(self) -> Any:
        return self.p.M * self.p.K

    @cached_property
    def steps(self) -> Any:
        return -(-self.p.K // self.k.tile_k)

    @cached_property
    def waves(self) -> Any:
        return -(-self.p.M // (self.k.tile_m * self.arch.compute_units))


TABLE = FeatureTable(
    "row_sum",
    (
        Feature("m_log2", "log2", "rows", "problem", lambda i: np.log2(i.p.M)),
        Feature("k_log2", "log2", "columns", "problem", lambda i: np.log2(i.p.K)),
        Feature("by_columns", "flag", "stored by columns", "problem", lambda i: (i.p.order == "c") * 1.0),
        Feature("tile_m", "", "rows of a tile", "kernel", lambda i: i.k.tile_m),
        Feature("tile_k", "", "columns of a tile", "kernel", lambda i: i.k.tile_k),
        Feature("num_warps", "", "warps of a block", "kernel", lambda i: i.k.num_warps),
        Feature("num_stages", "", "tiles in flight", "kernel", lambda i: i.k.num_stages),
        Feature("waves", "", "sets of programs that run after another", "interaction", lambda i: i.waves),
        Feature("steps", "", "steps along K", "interaction", lambda i: i.steps),
        Feature("waste", "", "padded / useful work", "interaction", lambda i: i.steps * i.k.tile_k / i.p.K),
    ),
    RowSumInputs,
    costs=(
        Term("steps", "waves x steps x a tile", lambda i: i.waves * i.steps * i.k.tile_m * i.k.tile_k),
        Term("launch", "the same for each", lambda i: np.ones(i.n_rows)),
    ),
    drivers=(Term("k_log2", "columns", lambda i: np.log2(i.p.K)),),
)


@contextmanager
def registered() -> Iterator[None]:
    """Register the op; in the repository each of these is one line in a file."""
    with ExitStack() as stack:
        stack.enter_context(patch.dict(OPS, {"row_sum": RowSumProblem}))
        stack.enter_context(patch.dict(FEATURES, {"row_sum": lambda: TABLE}))
        stack.enter_context(patch.dict(PIPELINES, {ONES.name: ONES}))
        stack.enter_context(patch.dict(TRITON_DTYPES, {"row_sum": ("bf16", "fp16")}))
        stack.enter_context(patch.dict(OP_RULES, {"row_sum": row_sum_rules}))
        yield


# ---- made-up measurements --------------------------------------------------------------------------------------------


def problems(count: int) -> list[RowSumProblem]:
    """Return distinct problems."""
    rng = np.random.default_rng(0)
    found: dict[tuple[int, ...], RowSumProblem] = {}
    while len(found) < count:
        m, k = (int(2 ** rng.uniform(4, 14)) for _ in range(2))
        found.setdefault((m, k), RowSumProblem(m, k, str(rng.choice(["r", "c"]))))
    return list(found.values())


def latency_ms(p: RowSumProblem, kernel: TileKernel, target: Target) -> float:
    """Return a made-up time: a launch, memory, and waves of tiles; wide tiles suit rows, high ones columns."""
    arch = load_arch(target.arch)
    waves, steps = -(-p.M // (kernel.tile_m * arch.compute_units)), -(-p.K // kernel.tile_k)
    across = kernel.tile_k if p.order == "r" else kernel.tile_m
    clocks = 4000 + waves * steps * (300 + kernel.tile_m * kernel.tile_k * (0.2 + 8 / across))
    return clocks / arch.clock_mhz / 1e3 + p.min_bytes(target.dtype) / arch.dram_gb_s / 1e6


def measurements(target: Target, shapes: list[RowSumProblem], kernels: tuple[TileKernel, ...]) -> pd.DataFrame:
    """Return a table in the columns of the op and of the backend of the target's arch."""
    rows = []
    for p in shapes:
        for kernel in kernels:
            row: dict[str, Any] = {
                "op": target.op,
                "variant": target.variant,
                "dtype": target.dtype,
                "arch": target.arch,
            }
            row |= p.to_dict() | kernel.to_dict() | {"run_id": "made-up", "origin": "made up", "regime": "none"}
            row |= {"kernel_name": kernel.name(target.op, target.variant, target.dtype)}
            why = unsupported(kernel, p, target.variant, target.dtype)
            if why is None:
                ms = latency_ms(p, kernel, target)
                row |= {"latency_ms": ms, "tflops": p.flops / ms / 1e9, "status": "ok", "is_valid": True}
                row |= {"bandwidth_gb_s": p.min_bytes(target.dtype) / ms / 1e6}
            else:
                row |= {"status": "unsupported", "error": why, "is_valid": False}
            rows.append(row)
    columns = [c.name for c in measurement_columns(target.op, backend_of_target(target).name)]
    return pd.DataFrame(rows, columns=columns)
