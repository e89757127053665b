"""Tables of one target put together: every row keeps its provenance, and no faulty row gets in unless it is decided on.

A merged table is a data version: it is written only when each fault in it was left out on purpose. The decisions, and
the files that it was made of, are kept in its metadata and travel on when it is merged again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from tilewise.data.exclusions import METADATA, Exclusion, find_exclusions, template
from tilewise.data.faults import HARMLESS
from tilewise.data.importers.source import content_hash
from tilewise.data.importers.tables import open_parquet
from tilewise.data.rows import is_of
from tilewise.data.schema import parquet_files, read_raw, to_measurements
from tilewise.data.screen import screen
from tilewise.errors import DataError
from tilewise.kernels.backends import backend_of_columns
from tilewise.ops import OPS, Target

SOURCES = b"tilewise.sources"


@dataclass(frozen=True)
class Merged:
    """What :func:`merge` made.

    Attributes:
        frame: the good rows, file after file; of rows that repeat each other the first.
        faults: of the rows that nobody decided on: empty, or the merge is blocked. Columns `rule`, `reason`.
        template: an exclusions file for them.
        repeats: rows left away because the same run, problem and kernel is there already, with the same figures.
        applied: how many rows each decision left out, also where none.
        metadata: sources and decisions, for the parquet file.
    """

    frame: pd.DataFrame
    faults: pd.DataFrame
    template: str
    repeats: int
    applied: tuple[tuple[Exclusion, int], ...]
    metadata: dict[bytes, bytes]


def merge(inputs: Sequence[Path], target: Target) -> Merged:
    """Put the rows of `target` in these files and folders together.

    Args:
        inputs: parquet files, or folders of them; a file that is given twice counts once. Exclusions lie beside them.
        target: whose rows to take.

    Raises:
        DataError: an input cannot be read or holds no row of the target, or an exclusions file is malformed.
        ConfigError: the arch has no profile, or no peak for the dtype.
    """
    files = list(dict.fromkeys(f.resolve() for path in inputs for f in parquet_files(path)))
    exclusions = find_exclusions(dict.fromkeys([*inputs, *files]))
    exclusions = tuple({(e.rule, json.dumps(dict(e.key))): e for e in exclusions}.values())
    frames = {f: rows for f in files if (rows := _rows(f, target)) is not None}
    if not frames:
        raise DataError(f"{', '.join(map(str, inputs))}: no row of {target.name}")
    made_by = {backend_of_columns(f.columns).name for f in frames.values()}
    if len(made_by) > 1:
        raise DataError(
            f"{', '.join(map(str, inputs))}: kernels of {' and '.join(sorted(made_by))} do not fit together"
        )
    rows = pd.concat(frames.values(), ignore_index=True)
    screened = screen(rows, target, exclusions)
    rule = screened.faults["rule"]
    good, blocking = rule == "", ~rule.isin(["", HARMLESS])
    if not good.any():
        raise DataError(f"all {len(rows)} rows of {target.name} are bad or excluded")
    key = [*OPS[target.op].column_names(), "kernel_name", "run_id", "latency_ms"]
    return Merged(
        to_measurements(rows.loc[rule.index[good]]),
        screened.faults[blocking],
        template(rows, screened.faults[blocking], key),
        int((rule == HARMLESS).sum()),
        screened.applied,
        _metadata(frames, screened.applied),
    )


def _rows(file: Path, target: Target) -> pd.DataFrame | None:
    """The target's rows of a file, None where it has none."""
    if not open_parquet(file).metadata.num_rows:  # an import of an empty log
        return None
    rows = read_raw(file)
    rows = rows[is_of(rows, target)]
    return rows if len(rows) else None


def _metadata(frames: dict[Path, pd.DataFrame], applied: Sequence[tuple[Exclusion, int]]) -> dict[bytes, bytes]:
    sources: list[dict[str, Any]] = []
    decisions: list[dict[str, Any]] = []
    for file, rows in frames.items():
        earlier = pq.read_schema(file).metadata or {}
        sources += _list(earlier.get(SOURCES)) or [{"file": file.name, "sha256": content_hash(file), "rows": len(rows)}]
        decisions += [d for d in _list(earlier.get(METADATA)) if d not in decisions]
    decisions += [{**decision.to_dict(), "rows": count} for decision, count in applied if count]
    return {SOURCES: json.dumps(sources).encode(), METADATA: json.dumps(decisions).encode()}


def _list(text: bytes | None) -> list[dict[str, Any]]:
    """A list that an earlier merge wrote; foreign or damaged metadata is none of ours."""
    try:
        values = json.loads(text or b"[]")
    except ValueError:
        return []
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []
