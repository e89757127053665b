"""Rows of any table: CSV, TSV, parquet, JSON records, or the caches of ``triton.autotune``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from tilewise.data.importers._flat_tables import open_parquet
from tilewise.errors import DataError

LATENCY = "latency_ms"  # the column that the rows of a cache get
_CACHES = "*.autotune.json"
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def read_rows(path: Path, key: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table of measurements in whatever columns it has.

    Args:
        path: a file; or a folder of ``triton.autotune``'s caches, which it writes with ``cache_results=True`` below
            ``TRITON_CACHE_DIR``.
        key: names of the values of a cache's key, in order; the caches state the values only.

    Raises:
        DataError: the file cannot be read, has no rows or repeats a column's name.
    """
    if path.is_dir() or path.name.endswith(".autotune.json"):
        frame = pd.DataFrame(_cached_rows(path, key))
    elif path.suffix == ".parquet":
        open_parquet(path)  # names faults
        frame = pd.read_parquet(path)
    else:
        frame = _read_text(path)
    if not len(frame):
        raise DataError(f"{path}: has no rows; give a table with one measurement per row")
    frame.columns = [str(name).strip() for name in frame.columns]
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise DataError(f"{path}: column names must be unique, got {repeated[0]} more than once")
    return frame


def first_line_number(path: Path) -> int:
    """Return the number of the line of a table's first row: 2 below the header of a CSV; 0 where rows are no lines."""
    name = _unpacked_name(path)
    return 0 if path.is_dir() or name.endswith((".parquet", ".json")) else 1 if name.endswith(".jsonl") else 2


def _unpacked_name(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".bz2")


def _read_text(path: Path) -> pd.DataFrame:
    name = _unpacked_name(path)
    try:
        if name.endswith((".json", ".jsonl")):
            return pd.read_json(
                path, lines=name.endswith(".jsonl"), orient=None if name.endswith(".jsonl") else "records"
            )
        # A column of texts must not turn "1e3" or "NA" into other values; columns of numbers are recognised.
        return pd.read_csv(path, sep="\t" if name.endswith(".tsv") else ",", skipinitialspace=True)
    except (OSError, ValueError) as e:
        raise DataError(f"{path}: must be a readable CSV, JSON or parquet table: {str(e).splitlines()[0]}") from e


def _cached_rows(path: Path, key: Sequence[str]) -> Iterator[dict[str, object]]:
    files = sorted(path.rglob(_CACHES)) if path.is_dir() else [path]
    if not files:
        raise DataError(
            f"{path}: no file {_CACHES} in this folder; triton.autotune writes them with cache_results=True"
        )
    if not key:
        raise DataError(f"{path}: a cache states values without names; name them in order, as in 'problem=[M,N,K]'")
    for file in files:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            values = [value for value in content["key"] if not str(value).startswith("torch.")]
            timings = [(_configuration(config), timing) for config, timing in content["configs_timings"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
            raise DataError(f"{file}: is no cache of triton.autotune: {e!r:.200}") from e
        if len(values) != len(key):
            raise DataError(
                f"{file}: the key has {len(values)} values, but {len(key)} names are given: {', '.join(key)}"
            )
        for configuration, timing in timings:
            latency = timing[0] if isinstance(timing, list) else timing
            yield {**dict(zip(key, values, strict=True)), **configuration, LATENCY: latency}


def _configuration(config: Mapping[str, object]) -> dict[str, object]:
    kwargs = config["kwargs"]
    if not isinstance(kwargs, dict):
        raise TypeError("kwargs must be an object")
    return {**kwargs, **{name: config[name] for name in _LAUNCH_OPTIONS if config.get(name) is not None}}
