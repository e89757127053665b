"""The measured cache as measurements to learn from: every kernel of every problem, as `tilewise collect` writes it.

Entries name kernels by their place in a pool and know that pool's hash alone, so the pool has to be found again: the
one that is shipped, or that of a model of which there is a copy. Needs pyarrow, as everything that makes tables.
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
from tilewise.collect import journal
from tilewise.collect.engine import REGIME, Device
from tilewise.collect.plan import Item, Plan, Timing
from tilewise.collect.table import table
from tilewise.data.columns import TARGET
from tilewise.dispatch.machine import Machine, kernels_hash
from tilewise.dispatch.measure import RUN_ID
from tilewise.dispatch.measured import Context, Entry
from tilewise.dispatch.origin import pool_without_model
from tilewise.errors import DataError, TilewiseError
from tilewise.kernels.pool import Pool
from tilewise.ops import OPS, Problem, Target


@dataclass(frozen=True)
class Exported:
    """What :func:`export` made of a cache.

    Attributes:
        rows: the measurement table.
        problems: how many problems it holds, those that two machines measured twice.
        known: entries left out because the measurements hold them already.
        stale: entries left out because other sources of the kernels, or a pool that is nowhere to be found, made them.
    """

    rows: pa.Table
    problems: int
    known: int
    stale: int


def export(
    contexts: Mapping[Context, Sequence[Entry]],
    target: Target,
    run_id: str,
    *,
    models: Iterable[Path],
    known: frozenset[tuple[Problem, str]],
) -> Exported:
    """Make a table of a target's entries; each context is a run of its own, ``RUN_ID-CONTEXT``.

    Args:
        contexts: see :func:`tilewise.dispatch.housekeeping.contexts`.
        target: whose entries.
        run_id: what the runs' names begin with.
        models: folders of models whose pools the entries may be of.
        known: from :func:`measured_before`.

    Raises:
        DataError: nothing is left to export.
    """
    pools = {pool.hash: pool for pool in _pools(target, models)}
    tables, problems, left_out, stale = [], 0, 0, 0
    for context, entries in contexts.items():
        if context.target != target.name:
            continue
        if context.machine.kernels != kernels_hash() or context.pool not in pools:
            stale += len(entries)
            continue
        new = [e for e in entries if (e.problem, e.measured_at) not in known]
        left_out += len(entries) - len(new)
        problems += len(new)
        if new:
            tables.append(_table(new, target, pools[context.pool], f"{run_id}-{context.folder.name[:8]}"))
    if not tables:
        raise DataError(
            f"there is nothing of {target.name} to export: {left_out} problems are among the measurements already, "
            f"{stale} were measured with other sources of the kernels or with a pool that no model here has"
        )
    return Exported(pa.concat_tables(tables), problems, left_out, stale)


def measured_before(data: Path, target: Target) -> frozenset[tuple[Problem, str]]:
    """(problem, time) of all that the measurements in a file or folder hold of a target.

    Raises:
        DataError: a file is no table of measurements.
    """
    problem, found = OPS[target.op], set()
    for file in sorted(data.rglob("*.parquet")) if data.is_dir() else [data]:
        try:
            if not set(problem.column_names()) <= set(pq.read_schema(file).names):
                continue  # of another op
            columns = [*problem.column_names(), "measured_at"]
            of_target = [(c.name, "==", getattr(target, c.name)) for c in TARGET]
            rows = pq.read_table(file, columns=columns, filters=of_target, partitioning=None)
        except (pa.ArrowException, OSError) as e:
            raise DataError(f"{file}: not a table of measurements: {(str(e).splitlines() or [''])[0]}") from e
        for row in rows.group_by(columns).aggregate([]).to_pylist():
            at = row.pop("measured_at")
            found.add((problem.from_dict(row), at))
    return frozenset(found)


def _pools(target: Target, models: Iterable[Path]) -> Iterator[Pool]:
    """The pools that can be found; what is none, or nowhere, is not one of them."""
    with suppress(TilewiseError):
        yield pool_without_model(target)[1]
    for folder in models:
        with suppress(TilewiseError, OSError, ValueError):
            yield Pool.from_dict(json.loads((folder / "pool.json").read_text()))


def _table(entries: Sequence[Entry], target: Target, pool: Pool, run_id: str) -> pa.Table:
    items = tuple(Item(e.problem, RUN_ID, tuple(sorted(e.tried))) for e in entries)
    device = _device(entries[0].context.machine)
    done = [
        journal.Entry(i, e.measured_at, device, e.ok, [journal.Failed(*group) for group in e.failed])
        for i, e in enumerate(entries)
    ]
    return table(Plan(target, load_arch(target.arch), pool, items, Timing(), run_id), done)


def _device(machine: Machine) -> Device:
    """What tables say of a machine; one without torch looked its figures up."""
    if not machine.torch:
        return Device(machine.device, None, None, "", "recorded")
    libraries = f"torch {machine.torch}, triton {machine.triton}"
    return Device(machine.device, None, machine.driver or None, libraries, REGIME)
