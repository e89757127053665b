"""Facts that the page of a decision shows besides the explanation: the ranking, measurements, and near shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewise.arch import load_arch
from tilewise.cli.runtime.explanation_page import Nearby, PageFacts, Ranked
from tilewise.dispatch import Dispatcher
from tilewise.kernels import backend_of
from tilewise.ops import OPS, Problem

if TYPE_CHECKING:
    from tilewise.data import TargetTable

RANKED = 15
NEARBY = 6


def page_facts(dispatcher: Dispatcher, problem: Problem, data: Path) -> PageFacts:
    """Return the facts about a problem; measurements are left out where `data` does not exist.

    Raises:
        DataError: the measurements cannot be read, or have no row of the target.
    """
    target, arch = dispatcher.target, load_arch(dispatcher.target.arch)
    table = _read(data, dispatcher) if data.exists() else None
    measured = {} if table is None else _measured(table, problem)
    ranked = [
        Ranked(
            s.kernel_name.removeprefix(f"{target.op}_{target.variant}_{target.dtype}_"), s.predicted_tflops,
            measured.get(s.kernel_name), backend_of(s.kernel).in_pytorch,
        )
        for s in dispatcher.rank(problem, RANKED)
    ]  # fmt: skip
    return PageFacts(
        words=OPS[target.op].in_words(problem.to_dict()),
        ranked=ranked,
        nearby=[] if table is None else _nearby(table, problem),
        flops=problem.flops,
        bytes_moved=problem.min_bytes(target.dtype),
        peak_tflops=arch.peak(target.dtype),
        dram_gb_s=arch.dram_gb_s,
        measurements="" if table is None else str(data),
    )


def _read(data: Path, dispatcher: Dispatcher) -> TargetTable:
    """Return the valid rows of a dispatcher's target."""
    from tilewise.data import TargetTable
    from tilewise.data.importers import read_table_or_import

    frame, _ = read_table_or_import(data, dispatcher.target)
    return TargetTable.of(frame, dispatcher.target).labelled()


def _measured(table: TargetTable, problem: Problem) -> dict[str, float]:
    """Return the median TFLOPS of each kernel that was measured on a problem."""
    is_own = np.logical_and.reduce([table.rows[name] == value for name, value in problem.to_dict().items()])
    medians = table.rows[is_own].groupby("kernel_name")["tflops"].median()
    return {str(name): float(value) for name, value in medians.items()}


def _nearby(table: TargetTable, problem: Problem) -> list[Nearby]:
    """Return the nearest measured shapes, each with its fastest kernel."""
    from tilewise.features import log_sizes, shape_distances

    keys = table.distinct_keys
    distances = shape_distances(log_sizes(problem.group_key), log_sizes(keys))
    found = []
    for i in distances.argsort(kind="stable")[:NEARBY]:
        rows = table.rows[(table.keys == keys[i]).all(axis=1)]
        best = rows.loc[rows["tflops"].idxmax()]
        words = OPS[table.target.op].in_words({name: best[name] for name in type(problem).column_names()})
        found.append(Nearby(words, float(distances[i]), str(best["kernel_name"]), float(best["tflops"])))
    return found
