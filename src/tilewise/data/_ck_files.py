"""Measurements in CK Tile's own formats: its benchmark CSV for convolutions, its benchmark JSON for matrix products.

:mod:`tilewise.data.importers` reads both back. The formats have no place for repeats, devices or provenance.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.data._target_table import TargetTable
from tilewise.errors import ConfigError, DataError
from tilewise.ops import GroupedConvProblem, Target

CSV_PROBLEM = ("N", "C", "K", "G", "Hi", "Wi", "Y", "X", "stride_h", "stride_w", "pad_h", "pad_w")
CSV_LATER = (
    "Di",
    "Z",
    "stride_d",
    "pad_d",
    "dilation_d",
    "dilation_h",
    "dilation_w",
)  # only where one is not the default
_CONFIG = (
    "tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k", "warp_tile_m", "warp_tile_n", "warp_tile_k", "pipeline",
    "scheduler", "epilogue", "pad_m", "pad_n", "pad_k", "persistent",
)  # fmt: skip


def to_ck_text(frame: pd.DataFrame, target: Target, path: Path) -> str:
    """Return measurements as the text of a benchmark file in the format that `path` ends with.

    Args:
        frame: a measurement table; rows of other targets are left out.
        target: a target whose kernels are CK Tile's.
        path: the file to write: ``.csv`` for convolutions, ``.json`` for matrix products.

    Raises:
        ConfigError: the ending is not that of the op's format.
        DataError: there is no row, or the format cannot state the rows.
    """
    ending = ".json" if target.op == "gemm" else ".csv"
    if path.suffix != ending:
        raise ConfigError(f"output: CK Tile's benchmark file of {target.op} ends with {ending}, got {path}")
    table = TargetTable.of(frame, target)
    rows = table.rows
    if not len(rows):
        raise DataError(f"the table has no row of {target.name}")
    if set(_CONFIG[:3]) - set(rows) or "store_immediate" not in rows:
        raise DataError(f"{target.name}: only measurements of CK Tile's kernels can be written in its formats")
    return _json(rows, target) if ending == ".json" else _csv(table)


def _csv(table: TargetTable) -> str:
    rows = table.rows
    if (rows["layout"] != GroupedConvProblem.layouts[0]).any():
        raise DataError("CK Tile's CSV states no layout, so only convolutions with channels last can be written to it")
    defaults = GroupedConvProblem.defaults()
    is_later = any((rows[name] != defaults[name]).any() for name in CSV_LATER)
    problem = [*CSV_PROBLEM, *(CSV_LATER if is_later else ())]
    written = rows[problem].astype(int)
    written.insert(0, "kernel", rows["kernel_name"])
    written.insert(1, "problem_idx", rows.groupby(problem, sort=False).ngroup())
    written["latency_ms"], written["tflops"] = (rows[name].fillna(0.0) for name in ("latency_ms", "tflops"))
    written["non_zero"] = _outputs(table).where(rows["is_valid"], 0)
    text = io.StringIO()
    written.to_csv(text, index=False, lineterminator="\n")
    return text.getvalue()


def _outputs(table: TargetTable) -> pd.Series:
    """Return the number of results of each row's problem; which of them were zero was not recorded."""
    dims = [problem.implicit_gemm(table.target.variant) for problem in table.problems]
    counts = np.array([d.m * d.n * d.batch for d in dims], dtype=np.int64)
    return pd.Series(counts[table.problem], index=table.rows.index)


def _json(rows: pd.DataFrame, target: Target) -> str:
    layouts = sorted(set(rows["layout"].astype(str)))
    results = []
    for name, of_kernel in rows.groupby("kernel_name", sort=False):
        first = of_kernel.iloc[0]
        config: dict[str, Any] = {"name": name, **{key: _plain(first[key]) for key in _CONFIG}}
        results.append({"kernel_config": config, "benchmarks": [_benchmark(r) for r in of_kernel.to_dict("records")]})
    metadata = {
        "dtype": target.dtype,
        "layout": layouts[0] if len(layouts) == 1 else "",
        "num_kernels": len(results),
        "num_problems": len(rows[["M", "N", "K"]].drop_duplicates()),
    }
    return json.dumps({"metadata": metadata, "results": results}, indent=1) + "\n"


def _benchmark(row: dict[Any, Any]) -> dict[str, object]:
    known = {name: row[name] if row[name] == row[name] else 0.0 for name in ("tflops", "latency_ms")}
    sizes = {name: int(row[name.upper()]) for name in ("m", "n", "k")}
    is_valid = bool(row["is_valid"])
    return {**sizes, "is_valid": is_valid, "tflops": known["tflops"], "avg_time_ms": known["latency_ms"]}


def _plain(value: Any) -> object:
    return value.item() if hasattr(value, "item") else value
