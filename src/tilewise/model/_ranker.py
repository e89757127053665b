"""The compiled form of a model: rules, features, cost model and trees of one pool, with only the problem left open.

The formulas run once with symbols for the problem's columns (:mod:`tilewise.core`). Scores equal those of the NumPy
path bit for bit, because the core computes in the same order and calls NumPy's logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import NamedTuple, NoReturn, Protocol, Self, TypeAlias, TypedDict, cast

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile
from tilewise.core import Compiler, Symbol, Text, Trace, UntraceableError
from tilewise.features import (
    INTERCEPT,
    MOST_CORRECTION,
    MOST_DEVIATIONS,
    MOST_SHARE,
    CostModel,
    FeatureTable,
    Inputs,
    log_work,
)
from tilewise.kernels import Pool
from tilewise.metrics import Floats, Ints
from tilewise.model._trees import Ensemble
from tilewise.ops import OPS, Problem

Array: TypeAlias = npt.NDArray[np.generic]
Codes: TypeAlias = dict[str, dict[str, int]]  # text column -> text -> its number in the bytecode
Values: TypeAlias = tuple[int | str, ...]  # the columns of a problem

BytecodeArrays: TypeAlias = tuple[int, int, bytes, Array, Array]  # inputs, slots, constants, instructions, index
# features, then roots, feature, threshold, children, missing, default_left, value
TreeArrays: TypeAlias = tuple[int, Array, Array, Array, Array, Array, Array, Array]
# costs, drivers, limits, programs, factors, centre, scale, weights
CostModelArrays: TypeAlias = tuple[int, int, tuple[float, float, float, float], Array, Array, Array, Array, Array]


class Best(NamedTuple):
    """The best kernels for a problem: indices into the pool, best first, and their scores.

    `scale`: the score of the scale model, to be added to get the logarithm of the TFLOPS; 0 without a scale model.
    """

    kernels: tuple[int, ...]
    scores: tuple[float, ...]
    scale: float


class _CoreRanker(Protocol):
    """The Ranker of the compiled core; see core/_core.c."""

    def rank(self, problem: Values, most: int) -> tuple[tuple[int, ...], tuple[float, ...], float]: ...
    def score(self, problem: Values, out: Floats) -> int: ...
    def supported(self, problem: Values, out: npt.NDArray[np.bool_]) -> int: ...
    def features(self, problem: Values, out: Floats) -> int: ...


class CoreArguments(TypedDict):
    """The arguments of the core's Ranker, except for the logarithms.

    Arrays of places have the shape (results, 2): the first slot and the partition of each result.
    """

    n_kernels: int
    bytecode: BytecodeArrays
    classes: Sequence[Array]
    rules: Array
    features: Array
    problem: Array
    costs: Array
    drivers: Array
    single: Array
    scores: TreeArrays
    scale: TreeArrays | None
    cost_model: CostModelArrays | None
    shortlist: int


@dataclass(frozen=True, eq=False)
class RankerParts:
    """A model in the form that the core takes.

    Attributes:
        arrays: arguments of the core's Ranker.
        codes: the number of each text of each text column; other texts are -1.
        used: int64, indices into the model's feature table of the features that trees use.
    """

    arrays: CoreArguments
    codes: Codes
    used: Ints


@dataclass(frozen=True, eq=False)
class RankerInputs:
    """The members of a model that decide its ranking.

    Attributes:
        features: the columns of the score trees.
        pool: the kernels to rank.
        arch: the hardware profile.
        scores: the trees of the scores.
        scale: the trees of the problem's best TFLOPS; None without them.
        cost_model: the cost model that scores are added to; None without one.
        shortlist: the number of kernels that trees rank, 0 for all.
    """

    features: FeatureTable
    pool: Pool
    arch: HardwareProfile
    scores: Ensemble
    scale: Ensemble | None
    cost_model: CostModel | None
    shortlist: int


class Ranker:
    """The compiled form of a model; immutable and safe to share between threads, which run in parallel.

    Every method raises an OverflowError if a problem's sizes take a formula beyond int64; use the NumPy path then.
    """

    def __init__(self, core: _CoreRanker, used: Ints) -> None:
        self._core = core
        self.used_features = used

    @classmethod
    def of(cls, core: ModuleType, parts: RankerParts, op: str) -> Self:
        """Return the ranker that the compiled core makes of a model's parts.

        Raises:
            ValueError: the parts are inconsistent or exceed the core's limits.
        """
        codes = tuple(parts.codes.get(name) for name in OPS[op].column_names())
        return cls(core.Ranker(**parts.arrays, log=np.log, log2=np.log2, codes=codes), parts.used)

    def best(self, problem: Problem, most: int) -> Best:
        """Return at most `most` supported kernels, best first, ties in the pool's order."""
        return Best(*self._core.rank(problem.values(), most))

    def score(self, problem: Problem, n_kernels: int) -> Floats:
        """Return the scores of all kernels: (kernels,), minus infinity for unsupported kernels."""
        scores = np.empty(n_kernels)
        self._core.score(problem.values(), scores)
        return scores

    def supported(self, problem: Problem, n_kernels: int) -> npt.NDArray[np.bool_]:
        """Return which kernels support the problem: (kernels,)."""
        supported = np.empty(n_kernels, dtype=bool)
        self._core.supported(problem.values(), supported)
        return supported

    def matrix(self, problem: Problem, n_kernels: int) -> Floats:
        """Return the features that trees use: (kernels, used features)."""
        matrix = np.empty((n_kernels, len(self.used_features)))
        self._core.features(problem.values(), matrix)
        return matrix


class _Symbols(SimpleNamespace):
    """The columns of a problem as symbols. Other attributes of a problem need its values, which are not known."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UntraceableError(f"{name} of a problem")


def compile_parts(model: RankerInputs) -> RankerParts:
    """Trace the formulas of a model and return it in the form that the core takes.

    Raises:
        UntraceableError: a formula needs the values of a problem.
    """
    features, pool, cost_model = model.features, model.pool, model.cost_model
    trace = Trace(len(pool))
    kinds = OPS[pool.op].column_kinds()
    columns = {n: trace.text(i) if k == "str" else trace.input(i) for i, (n, k) in enumerate(kinds.items())}
    problem = _Symbols(op=pool.op, **columns)
    rows = features.rows_of_pool(problem, pool, model.arch)
    # The order of tracing decides the order of nodes, and thereby the bytes of exported models.
    kernels = SimpleNamespace(**pool.columns)
    rules = [broken for broken, _ in pool.backend.checks(kernels, cast(Problem, problem), pool.variant, pool.dtype)]
    trees, of_scores = _used(model.scores, features)
    scale, of_scale = _used(model.scale, features.of_role("problem")) if model.scale else (None, features.select(()))
    single = [rows.program_class, log_work(rows)] if cost_model else []
    results = {
        "rules": [trace.symbol(broken) for broken in rules],
        "features": [_float(trace, f.compute(rows)) for f in of_scores.features],
        "problem": [_float(trace, f.compute(rows)) for f in of_scale.features],
        "costs": [_float(trace, c.compute(rows)) for c in features.costs] if cost_model else [],
        "drivers": _drivers(trace, features, rows, cost_model) if cost_model else [],
        "single": [trace.symbol(x) for x in single],
    }
    compiled = Compiler(trace, len(kinds), [x for symbols in results.values() for x in symbols])
    places = {n: np.array([compiled.output(x) for x in symbols], dtype=np.int32) for n, symbols in results.items()}
    arrays: CoreArguments = {
        "n_kernels": len(pool),
        "bytecode": _bytecode_arrays(compiled),
        "classes": [c.of_kernel.astype(np.int32) for c in trace.partitions.all],
        "rules": places["rules"],
        "features": places["features"],
        "problem": places["problem"],
        "costs": places["costs"],
        "drivers": places["drivers"],
        "single": places["single"],
        "scores": trees,
        "scale": scale,
        "cost_model": _cost_model_arrays(cost_model, features, len(pool)) if cost_model else None,
        "shortlist": model.shortlist,
    }
    codes = {n: c.codes for n, c in columns.items() if isinstance(c, Text)}
    return RankerParts(arrays, codes, np.array([features.names.index(n) for n in of_scores.names]))


def _float(trace: Trace, x: object) -> Symbol:
    return trace.cast(trace.symbol(x), np.dtype(np.float64))


def _drivers(trace: Trace, features: FeatureTable, rows: Inputs, cost_model: CostModel) -> list[Symbol]:
    """Return the drivers in standard deviations, computed as in :func:`tilewise.features.basis`."""
    first, most = len(features.costs), MOST_DEVIATIONS
    centres, scales = cost_model.centre[first:].tolist(), cost_model.scale[first:].tolist()
    return [
        trace.symbol(np.clip((_float(trace, driver.compute(rows)) - centre) * (1 / scale), -most, most))
        for driver, centre, scale in zip(features.drivers, centres, scales, strict=True)
    ]


def _used(trees: Ensemble, features: FeatureTable) -> tuple[TreeArrays, FeatureTable]:
    """Return the trees over the features that some split uses, and the table of these features."""
    splits = trees.children[::2] != trees.children[1::2]
    used = np.flatnonzero(np.bincount(trees.feature[splits])) if splits.any() else np.array([0])
    renumbered = np.zeros(trees.n_features, dtype=np.int64)
    renumbered[used] = np.arange(len(used))
    table = features.select(features.names[i] for i in used)
    arrays: TreeArrays = (
        len(used),
        trees.roots,
        renumbered[trees.feature],
        trees.threshold,
        trees.children,
        trees.missing,
        trees.default_left,
        trees.value,
    )
    return arrays, table


def _bytecode_arrays(compiled: Compiler) -> BytecodeArrays:
    code = compiled.bytecode
    instructions, index = (np.array(numbers, dtype=np.int32) for numbers in (code.instructions, code.index))
    return code.n_inputs, code.n_slots, code.constants, instructions, index


def _cost_model_arrays(cost_model: CostModel, features: FeatureTable, n_kernels: int) -> CostModelArrays:
    n_costs, n_drivers = len(features.costs), len(features.drivers)
    limits = (INTERCEPT, MOST_DEVIATIONS, MOST_CORRECTION, MOST_SHARE)
    weights = np.ascontiguousarray(cost_model.weights[:n_kernels])
    centre, scale = (np.ascontiguousarray(x[:n_costs]) for x in (cost_model.centre, cost_model.scale))
    return n_costs, n_drivers, limits, cost_model.programs, cost_model.factors, centre, scale, weights
