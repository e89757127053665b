"""Merge of tables of one target. Every row keeps its provenance, and faulty rows block the merge until decided on.

A merged table is a data version, so it is written only when a person has decided to leave out each faulty row. Its
metadata hold these decisions and the source files, and pass them on when the table is merged again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import pyarrow.parquet as pq

from tilewise.data._backends import joined
from tilewise.data._row_source import FrameSource
from tilewise.data._rows import is_of
from tilewise.data._schema import parquet_files, read_raw_measurements, to_measurements
from tilewise.data.importers import content_hash, open_parquet
from tilewise.data.quality._exclusions import EXCLUSIONS_METADATA, Exclusion, find_exclusions, template
from tilewise.data.quality._faults import HARMLESS, REPEAT, SUPERSEDED
from tilewise.data.quality._screen import screen
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

_Entry: TypeAlias = dict[str, Any]  # one JSON object of the metadata

SOURCES = b"tilewise.sources"


@dataclass(frozen=True)
class Merged:
    """The result of :func:`merge_measurements`.

    Attributes:
        frame: the good rows, file after file; only the first of equal rows.
        faults: columns `rule` and `reason` of undecided faulty rows. Unless it is empty, the merge is blocked.
        template: an exclusions file for `faults`.
        repeats: number of rows left out because an equal row of the same run, problem and kernel precedes them.
        superseded: number of rows left out because the same problem and kernel was measured with later programs.
        applied: each decision with the number of rows that it left out, which may be 0.
        metadata: sources and decisions, for the parquet file.
    """

    frame: pd.DataFrame
    faults: pd.DataFrame
    template: str
    repeats: int
    superseded: int
    applied: tuple[tuple[Exclusion, int], ...]
    metadata: dict[bytes, bytes]


def merge_measurements(inputs: Sequence[Path], target: Target) -> Merged:
    """Merge the rows of `target` in files and folders.

    Args:
        inputs: parquet files, or folders of them, with their exclusions files beside them. Repeated files count once.
        target: the target whose rows to take.

    Raises:
        DataError: an input cannot be read, no input holds a row of the target, all rows are bad, or an exclusions file
            is malformed.
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    files = list(dict.fromkeys(f.resolve() for path in inputs for f in parquet_files(path)))
    exclusions = find_exclusions(dict.fromkeys([*inputs, *files]))
    exclusions = tuple({(e.rule, json.dumps(dict(e.key))): e for e in exclusions}.values())
    frames = {f: rows for f in files if (rows := _rows(f, target)) is not None}
    if not frames:
        raise DataError(f"{', '.join(map(str, inputs))}: no row of {target.name}")
    rows = joined(list(frames.values())).reset_index(drop=True)
    screened = screen(FrameSource(rows), target, exclusions)
    rules = screened.faults["rule"]
    blocking = screened.faults[~rules.isin(HARMLESS)]
    if not screened.n_good:
        raise DataError(f"all {len(rows)} rows of {target.name} are bad or excluded")
    key = [*OPS[target.op].column_names(), "kernel_name", "run_id", "latency_ms"]
    return Merged(
        to_measurements(rows[screened.good]),
        blocking,
        template(rows, blocking, key),
        int((rules == REPEAT).sum()),
        int((rules == SUPERSEDED).sum()),
        screened.applied,
        _metadata(frames, screened.applied),
    )


def _rows(file: Path, target: Target) -> pd.DataFrame | None:
    """Return the target's rows of a file; None if it has no such row."""
    if not open_parquet(file).metadata.num_rows:  # such as the import of an empty log
        return None
    rows = read_raw_measurements(file)
    rows = rows[is_of(rows, target)]
    return rows if len(rows) else None


def _metadata(frames: dict[Path, pd.DataFrame], applied: Sequence[tuple[Exclusion, int]]) -> dict[bytes, bytes]:
    sources: list[_Entry] = []
    decisions: list[_Entry] = []
    for file, rows in frames.items():
        earlier = pq.read_schema(file).metadata or {}
        sources += _list(earlier.get(SOURCES)) or [{"file": file.name, "sha256": content_hash(file), "rows": len(rows)}]
        decisions += [d for d in _list(earlier.get(EXCLUSIONS_METADATA)) if d not in decisions]
    decisions += [{**decision.to_dict(), "rows": count} for decision, count in applied if count]
    return {SOURCES: json.dumps(sources).encode(), EXCLUSIONS_METADATA: json.dumps(decisions).encode()}


def _list(text: bytes | None) -> list[_Entry]:
    """Return the list that an earlier merge wrote; an empty one for foreign or damaged metadata."""
    try:
        values = json.loads(text or b"[]")
    except ValueError:
        return []
    return [v for v in values if isinstance(v, dict)] if isinstance(values, list) else []
