"""Labels by which problems are grouped when asking where a model is weak."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.ops import GroupedConvProblem, Problem

SLICES = ("family", "size", "bound")
SIZES = ((1e9, "tiny"), (1e10, "small"), (1e11, "medium"), (float("inf"), "large"))  # FLOPs below


def slice_labels(problems: Sequence[Problem], dtype: str, arch: HardwareProfile) -> pd.DataFrame:
    """The columns of :data:`SLICES`, a row a problem.

    ``family`` says what kind of problem it is (``depthwise``, ``grouped``, ``1x1``, ``3x3``, ... with ``/2`` where
    strided; ``gemm``); ``size`` grades its FLOPs (tiny < 1e9 <= small < 1e10 <= medium < 1e11 <= large); ``bound`` says
    whether peak or bandwidth of `arch` limits it.
    """
    ridge = arch.peak(dtype) * 1e3 / arch.dram_gb_s  # FLOP/byte
    return pd.DataFrame(
        {
            "family": [_family(p) for p in problems],
            "size": [next(name for limit, name in SIZES if p.flops < limit) for p in problems],
            "bound": ["compute" if p.flops / p.min_bytes(dtype) >= ridge else "memory" for p in problems],
        },
        columns=list(SLICES),
    ).astype("str")


def _family(problem: Problem) -> str:
    if not isinstance(problem, GroupedConvProblem):
        return problem.op
    filt = f"{problem.Y}x{problem.X}" if problem.ndim == 2 else f"{problem.Z}x{problem.Y}x{problem.X}"
    strides = (problem.stride_d, problem.stride_h, problem.stride_w)
    kind = filt
    if problem.G > 1:
        kind = "depthwise" if problem.G == problem.C else "grouped"
    return f"{kind}/{max(strides)}" if max(strides) > 1 else kind
