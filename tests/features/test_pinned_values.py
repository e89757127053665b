"""The features and costs of a fixed sample keep their values, because released models have learnt from them.

`python -m features.test_pinned_values`, with ``tests`` on the path, writes the file. A change of a value that is meant
needs another SCHEMA_VERSION, which retires every trained model.
"""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kernels.samples import ck_kernels, some_problems, triton_kernels
from tilewise.arch import load_arch
from tilewise.features import Conditions, feature_table, log_work, terms_of
from tilewise.kernels import KernelBase, illegal, unsupported
from tilewise.kernels.ck._ck_rules import illegal_reason
from tilewise.ops import Target

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
        kernels = [k for k in triton_kernels(target, 150, rng) if illegal(k, target, arch) is None]
    else:
        kernels = [k for k in ck_kernels(target, 300, rng) if illegal_reason(k, target, arch) is None]
    columns: dict[str, list[float]] = {}
    for problem in some_problems(target.op, 150 if target.op == "gemm" else 20, rng):
        for kernel in rng.sample(kernels, 12):
            if unsupported(kernel, problem, target.variant) is not None:
                continue
            conditions = Conditions(variant=target.variant, dtype=target.dtype, arch=arch)
            rows = table.rows_of(problem.to_dict(), kernel.to_dict(), **conditions)
            terms = terms_of(table, rows)
            values = dict(zip(table.names, table.compute(rows)[0].tolist(), strict=True))
            values |= {f"cost {i}": x for i, x in enumerate(terms.costs[0].tolist())}
            values |= {f"driver {i}": x for i, x in enumerate(terms.drivers[0].tolist())}
            values |= {"program": float(terms.program[0]), "log_work": float(np.ravel(log_work(rows))[0])}
            for column, value in values.items():
                columns.setdefault(column, []).append(value)
    assert len(columns["program"]) > 30
    return {column: float(np.linspace(1, 2, len(values)) @ values) for column, values in columns.items()}


@pytest.mark.parametrize("target", TARGETS)
def test_values_stay(target: str) -> None:
    pinned = json.loads(FILE.read_text())[target]
    assert sums(target).keys() == pinned.keys()
    assert sums(target) == pytest.approx(pinned, rel=1e-9, abs=1e-9)


if __name__ == "__main__":
    FILE.write_text(json.dumps({target: sums(target) for target in TARGETS}, indent=1) + "\n")
