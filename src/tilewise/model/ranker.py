"""A model for the compiled core: rules, features, estimate and trees of one pool, with only the problem left open.

The formulas stay where they are: they run once with symbols for the problem's columns (:mod:`tilewise.core.trace`).
Scores are those of the NumPy path bit for bit, as the core computes in the same order and takes NumPy's logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile
from tilewise.core.compile import Compiler
from tilewise.core.trace import Symbol, Text, Trace, UntraceableError
from tilewise.features import FeatureTable
from tilewise.features import estimate as limits
from tilewise.features.estimate import LaunchEstimate, log_work
from tilewise.kernels.pool import Pool
from tilewise.model.trees import Ensemble
from tilewise.ops import OPS, Problem


class Best(NamedTuple):
    """The best kernels for a problem: indices into the pool, best first, and their scores.

    `scale`: what the scale model adds to the logarithm of the TFLOPS; 0 without one.
    """

    kernels: tuple[int, ...]
    scores: tuple[float, ...]
    scale: float


class Ranker:
    """The compiled form of a model; immutable, safe to share between threads, which run side by side.

    A problem whose sizes take a formula beyond int64 raises an OverflowError: the NumPy path has to answer.
    """

    def __init__(self, core: Any, op: str, codes: dict[str, dict[str, int]], used: npt.NDArray[np.int64]) -> None:
        self._core = core
        self._codes = [(OPS[op].column_names().index(name), known) for name, known in codes.items()]
        self.used_features = used

    @classmethod
    def of(cls, core: ModuleType, parts: Parts, op: str) -> Self:
        """What the compiled core makes of a model's parts.

        Raises:
            ValueError: the core cannot serve them.
        """
        return cls(core.Ranker(**parts.arrays, log=np.log, log2=np.log2), op, parts.codes, parts.used)

    def best(self, problem: Problem, most: int) -> Best:
        """The supported kernels, best first, ties in the pool's order, at most so many."""
        return Best(*self._core.rank(self._values(problem), most))

    def score(self, problem: Problem, n_kernels: int) -> npt.NDArray[np.float64]:
        """Scores of all kernels: (kernels,), minus infinity where they do not support the problem."""
        scores = np.empty(n_kernels)
        self._core.score(self._values(problem), scores)
        return scores

    def supported(self, problem: Problem, n_kernels: int) -> npt.NDArray[np.bool_]:
        """Which kernels support the problem: (kernels,)."""
        supported = np.empty(n_kernels, dtype=bool)
        self._core.supported(self._values(problem), supported)
        return supported

    def matrix(self, problem: Problem, n_kernels: int) -> npt.NDArray[np.float64]:
        """The features that trees use: (kernels, used features)."""
        matrix = np.empty((n_kernels, len(self.used_features)))
        self._core.features(self._values(problem), matrix)
        return matrix

    def _values(self, problem: Problem) -> tuple[int, ...]:
        values = problem.values()
        if self._codes:
            coded = list(values)
            for place, known in self._codes:
                coded[place] = known.get(coded[place], -1)
            values = tuple(coded)
        return values


@dataclass(frozen=True, eq=False)
class Parts:
    """A model as the core takes it, before it does.

    Attributes:
        arrays: the arguments of ``_core.Ranker``, but for the logarithms.
        codes: of each text column, what number the program has for a text; others are -1.
        used: int64, the features that trees use, by their place in the model's table.
    """

    arrays: dict[str, Any]
    codes: dict[str, dict[str, int]]
    used: npt.NDArray[np.int64]


class _Symbols(SimpleNamespace):
    """A problem's columns as symbols. What else a problem has, e.g. methods, only NumPy's path can ask for."""

    def __getattr__(self, name: str) -> Any:
        raise UntraceableError(f"{name} of a problem")


def compile_parts(
    features: FeatureTable,
    pool: Pool,
    arch: HardwareProfile,
    scores: Ensemble,
    scale: Ensemble | None,
    estimate: LaunchEstimate | None,
    shortlist: int,
) -> Parts:
    """Trace the formulas of a model and lay out what is left of them.

    Raises:
        UntraceableError: a formula asks for what only NumPy can answer.
    """
    trace = Trace(len(pool))
    kinds = OPS[pool.op].column_kinds()
    columns = {n: trace.text(i) if k == "str" else trace.input(i) for i, (n, k) in enumerate(kinds.items())}
    problem: Any = _Symbols(op=pool.op, **columns)
    rows = features.rows_of_pool(problem, pool, arch)
    rules = [broken for broken, _ in pool.backend.checks(SimpleNamespace(**pool.columns), problem, pool.variant)]
    trees, of_scores = _used(scores, features)
    scale_trees, of_scale = _used(scale, features.of_role("problem")) if scale else (None, features.select(()))
    single = [rows.program_class, log_work(rows)] if estimate else []
    wanted = {
        "rules": [trace.symbol(r) for r in rules],
        "features": [_float(trace, f.compute(rows)) for f in of_scores.features],
        "problem": [_float(trace, f.compute(rows)) for f in of_scale.features],
        "costs": [_float(trace, c.compute(rows)) for c in features.costs] if estimate else [],
        "drivers": _drivers(trace, features, rows, estimate) if estimate else [],
        "single": [trace.symbol(x) for x in single],
    }
    compiled = Compiler(trace, len(kinds), [x for symbols in wanted.values() for x in symbols])
    program = compiled.program
    arrays = {
        "n_kernels": len(pool),
        "program": (
            program.n_inputs,
            program.n_slots,
            program.constants,
            np.array(program.steps, dtype=np.int32),
            np.array(program.index, dtype=np.int32),
        ),
        "classes": [c.of_kernel.astype(np.int32) for c in trace.partitions.all],
        **{n: np.array([compiled.output(x) for x in xs], dtype=np.int32) for n, xs in wanted.items()},
        "scores": trees,
        "scale": scale_trees,
        "estimate": _estimate(estimate, len(features.costs), len(features.drivers), len(pool)),
        "shortlist": shortlist,
    }
    codes = {n: c.codes for n, c in columns.items() if isinstance(c, Text)}
    return Parts(arrays, codes, np.array([features.names.index(n) for n in of_scores.names]))


def _float(trace: Trace, x: Any) -> Symbol:
    return trace.cast(trace.symbol(x), np.dtype(np.float64))


def _drivers(trace: Trace, features: FeatureTable, rows: Any, estimate: LaunchEstimate) -> list[Symbol]:
    """Drivers in standard deviations, as :func:`tilewise.features.estimate.basis` has them."""
    first, most = len(features.costs), limits.MOST_DEVIATIONS
    centred = zip(features.drivers, estimate.centre[first:].tolist(), estimate.scale[first:].tolist(), strict=True)
    return [trace.symbol(np.clip((_float(trace, d.compute(rows)) - c) * (1 / s), -most, most)) for d, c, s in centred]


def _used(trees: Ensemble, features: FeatureTable) -> tuple[tuple[Any, ...], FeatureTable]:
    """The trees over the features that some split uses, and these."""
    splits = trees.children[::2] != trees.children[1::2]
    used = np.flatnonzero(np.bincount(trees.feature[splits])) if splits.any() else np.array([0])
    renumbered = np.zeros(trees.n_features, dtype=np.int64)
    renumbered[used] = np.arange(len(used))
    arrays = (trees.roots, renumbered[trees.feature], trees.threshold, trees.children, trees.missing)
    table = features.select(features.names[i] for i in used)
    return (len(used), *arrays, trees.default_left, trees.value), table


def _estimate(estimate: LaunchEstimate | None, n_costs: int, n_drivers: int, n_kernels: int) -> Any:
    if estimate is None:
        return None
    most = (limits.INTERCEPT, limits.MOST_DEVIATIONS, limits.MOST_CORRECTION, limits.MOST_SHARE)
    weights = np.ascontiguousarray(estimate.weights[:n_kernels])
    centre, scale = (np.ascontiguousarray(x[:n_costs]) for x in (estimate.centre, estimate.scale))
    return n_costs, n_drivers, most, estimate.programs, estimate.factors, centre, scale, weights
