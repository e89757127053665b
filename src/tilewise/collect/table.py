"""Journal entries -> the measurement table, as parquet. Needs pyarrow alone, so it runs on a bare GPU machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.collect.journal import Entry
from tilewise.collect.plan import Plan
from tilewise.data.columns import measurement_columns

_ARROW = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def rows(plan: Plan, entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """One row a (problem, kernel), failures included, in the plan's order."""
    target = dataclasses.asdict(plan.target)
    kernels = [{"kernel_name": n, **k.to_dict()} for n, k in zip(plan.pool.names, plan.pool.kernels, strict=True)]
    for entry in sorted(entries, key=lambda e: e.index):
        item = plan.items[entry.index]
        flops, moved = item.problem.flops, item.problem.min_bytes(plan.target.dtype)
        shared = {
            **target,
            **item.problem.to_dict(),
            **dataclasses.asdict(entry.device),
            "run_id": plan.run_id,
            "origin": item.origin,
            "measured_at": entry.measured_at,
        }
        for kernel, result in zip(kernels, entry.kernels, strict=True):
            row = {**shared, **kernel, **result, "is_valid": result["status"] == "ok"}
            if row["is_valid"]:
                row["tflops"] = flops / row["latency_ms"] / 1e9
                row["bandwidth_gb_s"] = moved / row["latency_ms"] / 1e6
            yield row


def write_parquet(plan: Plan, entries: Iterable[Entry], path: Path) -> int:
    """Write the table aside and rename it to `path`; the number of rows."""
    columns = measurement_columns(plan.target.op)
    schema = pa.schema([pa.field(c.name, _ARROW[c.kind], c.nullable) for c in columns])
    table = pa.Table.from_pylist(list(rows(plan, entries)), schema=schema)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, aside, compression="zstd", compression_level=12, write_page_checksum=True)
    aside.replace(path)
    return int(table.num_rows)
