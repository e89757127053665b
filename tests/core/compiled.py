"""Small rankers of the compiled core: formulas or a matrix, and trees over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tilewise.core import Compiler, Symbol, Trace, compiled_core
from tilewise.model import Ensemble

needs_core = pytest.mark.skipif(compiled_core() is None, reason="the compiled core was not built")


def forest(trees: Ensemble) -> tuple[Any, ...]:
    """Return the trees as arguments of the core."""
    arrays = (trees.roots, trees.feature, trees.threshold, trees.children, trees.missing, trees.default_left)
    return (trees.n_features, *arrays, trees.value)


def stumps(n_features: int, threshold: float = 0.0) -> Ensemble:
    """Return trees with one split per feature."""
    n = np.arange(n_features)
    feature = np.zeros((n_features, 3), dtype=np.int64)
    feature[:, 0] = n
    children = np.array([[2, 1], [1, 1], [2, 2]]).reshape(-1) + 3 * np.repeat(n, 6).reshape(n_features, 6)
    value = np.zeros((n_features, 3))
    value[:, 1:] = np.random.default_rng(0).normal(size=(n_features, 2))
    return Ensemble(
        tuple(f"f{i}" for i in n),
        3 * n,
        feature.reshape(-1),
        np.full(3 * n_features, threshold),
        children.reshape(-1),
        np.zeros(3 * n_features, dtype=np.int8),
        np.zeros(3 * n_features, dtype=bool),
        value.reshape(-1),
        1,
    )


def build(
    trace: Trace, n_inputs: int, features: Sequence[Symbol], trees: Ensemble, rules: Sequence[Symbol] = ()
) -> Any:
    """Return a ranker without a cost model."""
    core = compiled_core()
    assert core is not None
    compiled = Compiler(trace, n_inputs, [*features, *rules])
    code, none = compiled.bytecode, np.empty((0, 2), dtype=np.int32)

    def places(symbols: Sequence[Symbol]) -> np.ndarray:
        return np.array([compiled.output(s) for s in symbols], dtype=np.int32).reshape(-1, 2)

    return core.Ranker(
        n_kernels=trace.partitions.n_kernels,
        bytecode=(
            n_inputs,
            code.n_slots,
            code.constants,
            np.array(code.instructions, dtype=np.int32),
            np.array(code.index, dtype=np.int32),
        ),
        classes=[c.of_kernel.astype(np.int32) for c in trace.partitions.all],
        rules=places(rules),
        features=places(features),
        problem=none,
        costs=none,
        drivers=none,
        single=none,
        scores=forest(trees),
        scale=None,
        cost_model=None,
        shortlist=0,
        log=np.log,
        log2=np.log2,
    )


def over_matrix(trees: Ensemble, matrix: np.ndarray, dead: np.ndarray | None = None) -> Any:
    """Return a ranker whose kernels are the rows of a matrix; the kernels of `dead` break a rule."""
    trace = Trace(len(matrix))
    rules = [] if dead is None else [trace.symbol(dead)]
    return build(trace, 0, [trace.symbol(np.ascontiguousarray(column)) for column in matrix.T], trees, rules)


def computed(formula: Callable[[Mapping[str, Any]], Any], values: Mapping[str, int], n_kernels: int) -> np.ndarray:
    """Return the core's result of a formula of integers: float64, (kernels,)."""
    trace = Trace(n_kernels)
    result = formula({name: trace.input(i) for i, name in enumerate(values)})
    ranker = build(trace, len(values), [trace.cast(trace.symbol(result), np.dtype(np.float64))], stumps(1))
    out = np.empty((n_kernels, 1))
    ranker.features(tuple(values.values()), out)
    return out[:, 0]
