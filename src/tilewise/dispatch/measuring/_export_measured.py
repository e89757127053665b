"""The measured cache as training data: a table with each kernel of each problem, as ``tilewise collect`` writes it.

Entries state kernels as indices into a pool and know only that pool's hash, so the pool has to be found: the shipped
one, or that of a model with a local copy. This module needs pyarrow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.arch import load_arch
from tilewise.collect import FailedKernels, Item, JournalEntry, Plan, Timing, measurement_table
from tilewise.collect.engines import REGIME, Device
from tilewise.data import TARGET_COLUMNS
from tilewise.dispatch.measuring._machine import Machine, kernels_hash
from tilewise.dispatch.measuring._measure import RUN_ID
from tilewise.dispatch.measuring._measured_cache import MeasuredContext, MeasuredEntry
from tilewise.dispatch.sources import pool_without_model
from tilewise.errors import DataError, TilewiseError
from tilewise.kernels import PROGRAM_VERSIONS, Pool
from tilewise.ops import OPS, Problem, Target


@dataclass(frozen=True)
class Export:
    """A measurement table made from a cache.

    Attributes:
        rows: the table.
        problems: number of problems in it; a problem measured on two machines counts twice.
        known: number of entries skipped because the training data holds them already.
        stale: number of entries skipped because other kernel code or an unknown pool made them.
    """

    rows: pa.Table
    problems: int
    known: int
    stale: int


def export_measurements(
    contexts: Mapping[MeasuredContext, Sequence[MeasuredEntry]],
    target: Target,
    run_id: str,
    *,
    models: Iterable[Path],
    known: frozenset[tuple[Problem, str]],
) -> Export:
    """Make a measurement table of a target's entries; each context becomes a run of its own, ``RUN_ID-CONTEXT``.

    Args:
        contexts: entries by context; see :func:`tilewise.dispatch.measuring.entries_by_context`.
        target: of the entries.
        run_id: prefix of the runs' names.
        models: folders of models whose pools the entries may refer to.
        known: entries to skip; see :func:`read_exported`.

    Raises:
        DataError: no entries are left to export.
    """
    pools = {pool.hash: pool for pool in _pools(target, models)}
    tables, problems, skipped, stale = [], 0, 0, 0
    for context, entries in contexts.items():
        if context.target != target.name:
            continue
        if context.machine.kernels != kernels_hash() or context.pool not in pools:
            stale += len(entries)
            continue
        new = [e for e in entries if (e.problem, e.measured_at) not in known]
        skipped += len(entries) - len(new)
        problems += len(new)
        if new:
            tables.append(_table(new, target, pools[context.pool], f"{run_id}-{context.folder.name[:8]}"))
    if not tables:
        raise DataError(
            f"there is nothing of {target.name} to export: {skipped} problems are among the measurements already, "
            f"{stale} were measured with other sources of the kernels or with a pool that no model here has"
        )
    return Export(pa.concat_tables(tables), problems, skipped, stale)


def read_exported(data: Path, target: Target) -> frozenset[tuple[Problem, str]]:
    """Return (problem, time of measurement) of a target's rows in a measurement table or a folder of tables.

    Raises:
        DataError: a file is not a measurement table.
    """
    problem, found = OPS[target.op], set()
    for file in sorted(data.rglob("*.parquet")) if data.is_dir() else [data]:
        try:
            names = set(pq.read_schema(file).names)
            if not set(problem.column_names()) - set(problem.later_columns) <= names:
                continue  # a table of another op
            columns = [*(n for n in problem.column_names() if n in names), "measured_at"]
            of_target = [(c.name, "==", getattr(target, c.name)) for c in TARGET_COLUMNS]
            rows = pq.read_table(file, columns=columns, filters=of_target, partitioning=None)
        except (pa.ArrowException, OSError) as e:
            raise DataError(f"{file}: not a table of measurements: {(str(e).splitlines() or [''])[0]}") from e
        for row in rows.group_by(columns).aggregate([]).to_pylist():
            measured_at = row.pop("measured_at")
            found.add((problem.from_dict(row), measured_at))
    return frozenset(found)


def _pools(target: Target, models: Iterable[Path]) -> Iterator[Pool]:
    """Yield every loadable pool; missing and invalid ones are skipped."""
    with suppress(TilewiseError):
        yield pool_without_model(target)
    for folder in models:
        with suppress(TilewiseError, OSError, ValueError):
            yield Pool.from_dict(json.loads((folder / "pool.json").read_text()))


def _table(entries: Sequence[MeasuredEntry], target: Target, pool: Pool, run_id: str) -> pa.Table:
    items = tuple(Item(e.problem, RUN_ID, tuple(sorted(e.tried))) for e in entries)
    device = _device(entries[0].context.machine, target.op)
    journal = [
        JournalEntry(i, e.measured_at, device, e.ok, [FailedKernels(*group) for group in e.failed])
        for i, e in enumerate(entries)
    ]
    return measurement_table(Plan(target, load_arch(target.arch), pool, items, Timing(), run_id), journal)


def _device(machine: Machine, op: str) -> Device:
    """Return the device columns of a machine; one without torch took its figures from a replay table.

    The kernels' code is today's (:func:`export_measurements`), and so is the version of an op's programs.
    """
    if not machine.torch:
        return Device(machine.device, None, None, "", "recorded")
    libraries = f"torch {machine.torch}, triton {machine.triton}"
    return Device(machine.device, None, machine.driver or None, libraries, REGIME, PROGRAM_VERSIONS.get(op))
