"""The features and costs of a fixed sample keep their values, because released models have learnt from them.

`python -m features.test_pinned_values`, with ``tests`` on the path, writes the file. A change of a value that is meant
needs another SCHEMA_VERSION, which retires every trained model.
"""

from __future__ import annotations

import json
import random
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.samples import ck_kernels, some_problems, triton_kernels
from own_op import registered
from tilewise.arch import load_arch
from tilewise.features import Conditions, FeatureTable, feature_table, feature_table_of, log_work, terms_of
from tilewise.kernels import KernelBase, illegal, unsupported
from tilewise.kernels.ck._ck_rules import illegal_reason
from tilewise.ops import VARIANT, Target

FILE = Path(__file__).with_name("pinned_values.json")
TARGETS = (
    "grouped_conv_forward_bf16_sm90",
    "grouped_conv_bwd_data_fp16_sm90",
    "grouped_conv_bwd_weight_bf16_sm90",
    "gemm_universal_fp8_sm90",
    "grouped_conv_forward_bf16_gfx950",
    "grouped_conv_bwd_weight_fp16_gfx942",
    "gemm_universal_fp8_gfx950",
)


@cache
def sums(name: str) -> dict[str, float]:
    """Return a weighted sum of each feature and cost over supported pairs of the sample of a target."""
    target, rng = Target.parse(name), random.Random(name)
    arch, table = load_arch(target.arch), feature_table(target.op)
    kernels: list[KernelBase]
    if target.arch == "sm90":
        kernels = [k for k in triton_kernels(target, 400, rng) if illegal(k, target, arch) is None]
    else:
        kernels = [k for k in ck_kernels(target, 600, rng) if illegal_reason(k, target, arch) is None]
    conditions = Conditions(variant=target.variant, dtype=target.dtype, arch=arch)
    parts = []
    for problem in some_problems(target.op, 60, rng):
        reasons = (unsupported(k, problem, target.variant, target.dtype) for k in kernels)
        able = [k.to_dict() for k, reason in zip(kernels, reasons, strict=True) if reason is None]
        if able:
            columns = {column: np.array([k[column] for k in able]) for column in able[0]}
            parts.append(values(table, table.rows_of(problem.to_dict(), columns, **conditions)))
    return weighted(parts)


@cache
def own_sums() -> dict[str, float]:
    """Return the same of an op of a user's own."""
    with registered() as definition:
        table = feature_table_of(definition)
        sizes, blocks = np.array(list(product((1, 96, 1000), repeat=3))), (16, 64, 192)
        parts = []
        for (m, n, k), layout, causal in product(sizes.tolist(), ("rcr", "rrr"), (0, 1)):
            tiles = np.array(list(product(blocks, repeat=3)))
            columns = {f"BLOCK_{x}": tiles[:, i] for i, x in enumerate("MNK")}
            columns |= {name: np.full(len(tiles), value) for name, value in (("pipe", "tma"), ("even_k", True))}
            columns["backend"] = np.full(len(tiles), definition.name)
            problem = {"M": m, "N": n, "K": k, "layout": layout, "causal": causal}
            conditions = Conditions(variant=VARIANT, dtype="bf16", arch=load_arch("sm90"))
            parts.append(values(table, table.rows_of(problem, columns, **conditions)))
    return weighted(parts)


def values(table: FeatureTable, rows: Any) -> dict[str, np.ndarray]:
    """Return every feature, cost and driver of rows by name: (rows,) each."""
    matrix, terms = table.compute(rows), terms_of(table, rows)
    found = dict(zip(table.names, matrix.T, strict=True))
    found |= {f"cost {i}": column for i, column in enumerate(terms.costs.T)}
    found |= {f"driver {i}": column for i, column in enumerate(terms.drivers.T)}
    single = {"program": terms.program, "log_work": log_work(rows)}
    return found | {name: np.broadcast_to(column, len(matrix)) for name, column in single.items()}


def weighted(parts: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Return a sum of each column over all rows, in which each row has another weight."""
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert len(columns["program"]) > 200
    return {name: float(np.linspace(1, 2, len(column)) @ column) for name, column in columns.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_values_stay(target: str) -> None:
    pinned = json.loads(FILE.read_text())[target]
    assert sums(target).keys() == pinned.keys()
    assert sums(target) == pytest.approx(pinned, rel=1e-9, abs=1e-9)


def test_values_of_an_own_op_stay() -> None:
    assert own_sums() == pytest.approx(json.loads(FILE.read_text())["own"], rel=1e-9, abs=1e-9)


if __name__ == "__main__":
    FILE.write_text(json.dumps({target: sums(target) for target in TARGETS} | {"own": own_sums()}, indent=1) + "\n")
