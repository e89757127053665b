"""Slices: labels that group problems by properties, and the efficiency within each group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.ops import GroupedConvProblem, OpDefinition, Problem, Target, definition_of


class SliceFigures(TypedDict):
    """Efficiency within one group of problems; `slice` is the label."""

    slice: str
    value: str
    n_problems: int
    mean_efficiency: float
    median_efficiency: float
    p10_efficiency: float
    min_efficiency: float


SLICES = ("family", "size", "bound", "m_size")  # of every op
# Further labels per op; a problem column (layout) can serve as a label.
SLICES_OF_OP: Mapping[str, tuple[str, ...]] = {
    "grouped_conv": ("filter", "grouping", "stride", "dims"),
    "gemm": ("layout",),
}
# Labels that depend on the table: the oracle's pipeline, and the distance to the training data.
SLICES_OF_TABLE = ("pipeline", "distance")

SIZES = ((1e9, "tiny"), (1e10, "small"), (1e11, "medium"), (float("inf"), "large"))  # FLOPs below
M_SIZES = ((64, "tiny"), (1024, "small"), (16384, "medium"), (float("inf"), "large"))  # rows below
# CK Tile's bounds of M, shown beside ours: a model is gated by ours only.
CK_M_SIZES = ((8, "tiny"), (128, "small"), (1024, "medium"), (float("inf"), "large"))
CK_M_SIZE = "ck_m_size"
MIN_PROBLEMS_SHOWN = 10  # smaller groups say little, and are not shown
_ORDER = {name: place for place, name in enumerate(("tiny", "small", "medium", "large"))}


def slice_labels(problems: Sequence[Problem], target: Target, arch: HardwareProfile) -> pd.DataFrame:
    """Return the labels that depend on the problems alone, :data:`SLICES` and those of the op, one row per problem.

    * ``family``: the kind of problem (``depthwise``, ``grouped``, ``1x1``, ``3x3``, ... with ``/2`` where
      strided; ``gemm``).
    * ``size`` grades its FLOPs (tiny < 1e9 <= small < 1e10 <= medium < 1e11 <= large).
    * ``bound``: ``compute`` or ``memory``, by the peak and the bandwidth of `arch`.
    * ``m_size`` grades the rows of the (implicit) matrix product: M, or the pixels (backward weight: the output
      channels) (tiny < 64 <= small < 1024 <= medium < 16384 <= large).
    * convolutions: ``filter`` (1x1, 3x3, other), ``grouping`` (dense, grouped, depthwise), ``stride`` (1, 2, ...; the
      largest), ``dims`` (2D, 3D).
    * an op of the user's own: ``family``, the op; ``size`` where its FLOPs are stated; each flag and category.
    """
    definition = definition_of(target.op)
    if definition is not None:
        return _labels_of_own_op(problems, definition)
    ridge = arch.peak(target.dtype) * 1e3 / arch.dram_gb_s  # FLOP/byte
    formulas: dict[str, Callable[[Any], str]] = {
        "family": _family,
        "size": lambda p: _grade(p.flops, SIZES),
        "bound": lambda p: "compute" if p.flops / p.min_bytes(target.dtype) >= ridge else "memory",
        "m_size": lambda p: _grade(p.implicit_gemm(target.variant).m, M_SIZES),
    }
    if target.op == "grouped_conv":
        formulas |= {
            "filter": lambda p: taps if (taps := _filter(p)) in ("1x1", "3x3") else "other",
            "grouping": _grouping,
            "stride": lambda p: str(_stride(p)),
            "dims": lambda p: f"{p.ndim}D",
        }
    return pd.DataFrame({name: [f(p) for p in problems] for name, f in formulas.items()}).astype("str")


def _labels_of_own_op(problems: Sequence[Problem], definition: OpDefinition) -> pd.DataFrame:
    labels = {"family": [definition.name] * len(problems)}
    if definition.flops:
        labels["size"] = [_grade(p.flops, SIZES) for p in problems]
    labels |= {name: [str(getattr(p, name)) for p in problems] for name in _flags_and_categories(definition)}
    return pd.DataFrame(labels).astype("str")


def _flags_and_categories(definition: OpDefinition) -> tuple[str, ...]:
    return tuple(name for name in definition.problem_names if name not in definition.sizes)


def with_ck_slices(per_problem: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the table with the label :data:`CK_M_SIZE` of matrix products (tiny M < 8, medium M >= 128, ...).

    Reports and the gate do not use it, so their files stay as they are.
    """
    if op != "gemm":
        return per_problem
    return per_problem.assign(**{CK_M_SIZE: [_grade(m, CK_M_SIZES) for m in per_problem["M"]]})


def slice_names(op: str, per_problem: pd.DataFrame) -> tuple[str, ...]:
    """Return the columns of `per_problem` that group problems of `op`."""
    definition = definition_of(op)
    own = _flags_and_categories(definition) if definition else SLICES_OF_OP.get(op, ())
    known = (*SLICES, *own, *SLICES_OF_TABLE, CK_M_SIZE)
    return tuple(name for name in known if name in per_problem.columns)


def problem_groups(
    per_problem: pd.DataFrame, names: Sequence[str], least: int = 2
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield label, value and problem indices of each group, with the values in a readable order.

    Labels with fewer than `least` values are left out: one value for all problems says nothing.
    """
    for name in names:
        values = per_problem[name].to_numpy(dtype=object)
        distinct = sorted(set(values), key=lambda v: (_ORDER.get(v, -1), v))
        if len(distinct) >= least:
            yield from ((name, str(value), np.flatnonzero(values == value)) for value in distinct)


def sliced_metrics(per_problem: pd.DataFrame, names: Sequence[str], least: int = 2) -> list[SliceFigures]:
    """Return the efficiency within each group of :func:`problem_groups`: mean, median, P10 and minimum."""
    efficiency = per_problem["efficiency"].to_numpy(dtype=np.float64)
    records: list[SliceFigures] = []
    for name, value, members in problem_groups(per_problem, names, least):
        e = efficiency[members]
        p10, p50 = np.percentile(e, [10, 50])
        records.append(
            {
                "slice": name,
                "value": value,
                "n_problems": len(e),
                "mean_efficiency": float(e.mean()),
                "median_efficiency": float(p50),
                "p10_efficiency": float(p10),
                "min_efficiency": float(e.min()),
            }
        )
    return records


def _grade(value: float, limits: Sequence[tuple[float, str]]) -> str:
    return next(name for limit, name in limits if value < limit)


def _family(problem: Problem) -> str:
    if not isinstance(problem, GroupedConvProblem):
        return problem.op
    kind = _filter(problem) if problem.G == 1 else _grouping(problem)
    stride = _stride(problem)
    return f"{kind}/{stride}" if stride > 1 else kind


def _filter(p: GroupedConvProblem) -> str:
    return f"{p.Y}x{p.X}" if p.ndim == 2 else f"{p.Z}x{p.Y}x{p.X}"


def _grouping(p: GroupedConvProblem) -> str:
    if p.G == 1:
        return "dense"
    return "depthwise" if p.G == p.C else "grouped"


def _stride(p: GroupedConvProblem) -> int:
    return max(p.stride_d, p.stride_h, p.stride_w)
