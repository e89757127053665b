"""A toy pipeline, added from outside: a matrix product whose steps take two blocks of `tile_k`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels import Array, Formulas, Rules
from tilewise.kernels.triton import PIPELINES, Kernel, Pipeline
from tilewise.ops import Target


# The pipeline: src/tilewise/kernels/triton/pipelines/_pairs.py
def illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    return "pairs takes group_m 1 and split_k 1" if kernel.group_m * kernel.split_k != 1 else None


def limits(kernel: Any, problem: Any, variant: str) -> Rules:
    whole = (problem.M % kernel.tile_m == 0) & (problem.N % kernel.tile_n == 0) & (problem.K % (2 * kernel.tile_k) == 0)
    yield (kernel.pipeline == "pairs") & np.logical_not(whole), "pairs needs sizes that its tiles divide"
    yield (kernel.pipeline == "pairs") & (problem.layout != "rcr"), "pairs needs the layout rcr"


def steps(i: Any, steps: Array) -> Array:
    here = i.k.pipeline == "pairs"
    return np.where(here, -(-i.gemm.k // (2 * i.k.tile_k)), steps) if here.any() else steps


PAIRS = Pipeline(
    name="pairs",
    number=1002,
    variants=(("gemm", "universal"),),
    programs="extending.pairs_programs",
    illegal=illegal,
    limits={"gemm": limits},
    formulas=Formulas("pairs", steps=steps),
)


@contextmanager
def registered() -> Iterator[None]:
    """Register the pipeline."""
    with patch.dict(PIPELINES, {PAIRS.name: PAIRS}):
        yield
