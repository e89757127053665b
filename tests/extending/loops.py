"""A toy backend, added from outside: kernels that are loops on a processor, unrolled more or less."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels import BACKENDS, Backend, TileKernel
from tilewise.ops import Problem, Target

DTYPES = {"row_sum": ("bf16",)}


# A kernel: src/tilewise/kernels/loops/kernel.py
@dataclass(frozen=True)
class LoopKernel(TileKernel):
    unroll: int

    @property
    def config(self) -> str:
        return f"{self.tile_m}x{self.tile_n}x{self.tile_k}_{self.pipeline}_u{self.unroll}"

    @classmethod
    def from_config(cls, config: str) -> Self:
        match = re.fullmatch(r"(\d+)x(\d+)x(\d+)_([a-z]+)_u(\d+)", config)
        if match is None:
            raise KernelError(f"{config!r} is not a loop such as 8x1x64_rows_u4")
        m, n, k, pipeline, unroll = match.groups()
        return cls(int(m), int(n), int(k), pipeline, int(unroll))


# Its rules: src/tilewise/kernels/loops/rules.py
def illegal(kernel: LoopKernel, target: Target, arch: HardwareProfile) -> str | None:
    if target.dtype not in DTYPES.get(target.op, ()):
        return f"there are no {target.dtype} loops for {target.op}"
    needed = kernel.unroll * kernel.tile_m
    return f"needs {needed} registers, {arch.name} has {arch.registers}" if needed > arch.registers else None


def checks(kernel: Any, problem: Problem, variant: str, dtype: str) -> Iterator[tuple[Any, str]]:
    yield kernel.unroll > problem.implicit_gemm(variant).k, "unrolled further than there are columns"


# Its answers to features
def pipelines(op: str) -> Mapping[str, int]:
    return {"rows": 1000}


def common_columns(columns: SimpleNamespace) -> SimpleNamespace:
    one = np.ones_like(columns.unroll)
    return SimpleNamespace(**vars(columns), num_warps=one, num_stages=columns.unroll, group_m=one, split_k=one)


# The backend: src/tilewise/kernels/loops/backend.py
LOOPS = Backend(
    name="loops",
    label="Loops",
    kernel=LoopKernel,
    illegal=illegal,
    checks=checks,
    dtypes=DTYPES,
    pipelines=pipelines,
    common_columns=common_columns,
)


@contextmanager
def registered() -> Iterator[None]:
    """Register the backend."""
    with patch.dict(BACKENDS, {LOOPS.name: lambda: LOOPS}):
        yield
