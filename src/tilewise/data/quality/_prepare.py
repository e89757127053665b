"""Preparation of a training table: bad rows and doubtful labels go to quarantine, each with a reason."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from tilewise.data._backends import joined
from tilewise.data._columns import table_columns
from tilewise.data._derived import implied_columns
from tilewise.data._parquet_bytes import write_parts
from tilewise.data._row_source import CHUNK_ROWS, FrameSource, RowSource, open_rows
from tilewise.data._schema import SOURCE, to_measurements
from tilewise.data._text import in_words
from tilewise.data.quality._exclusions import EXCLUSIONS_METADATA, Exclusion, find_exclusions
from tilewise.data.quality._faults import HARMLESS
from tilewise.data.quality._screen import Screened, screen
from tilewise.errors import DataError
from tilewise.files import replacing
from tilewise.ops import Target


@dataclass(frozen=True)
class Prepared:
    """A training table, and the rows that are not in it. Rows are read as they are asked for.

    Attributes:
        rows: all rows of the target.
        screened: which of them are faulty, and which were left out by decision.
    """

    target: Target
    rows: RowSource
    screened: Screened

    def parts(self) -> Iterator[pd.DataFrame]:
        """Yield the good rows in order, in the table's columns and types."""
        for part in self.rows.select(self.screened.good):
            yield to_measurements(part, self.rows.tags)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The good rows as one table."""
        return pd.concat(list(self.parts()), ignore_index=True)

    @cached_property
    def quarantined(self) -> pd.DataFrame:
        """Faulty rows, with `rule`, `reason` and, if known, `source_file` and `source_row`."""
        return self._with(self.screened.faults.astype("str"))

    @cached_property
    def excluded(self) -> pd.DataFrame:
        """Rows left out by decision, with `rule`, `reason` and `decided_by`."""
        return self._with(self.screened.excluded)

    @property
    def applied(self) -> tuple[tuple[Exclusion, int], ...]:
        """Each decision with the number of rows that it left out, which may be 0."""
        return self.screened.applied

    @property
    def quarantined_share(self) -> float:
        """Share of the rows that is in quarantine, not counting repeats of other rows and superseded ones."""
        doubtful = int((~self.screened.faults["rule"].isin(HARMLESS)).sum())
        return doubtful / (self.screened.n_good + len(self.screened.faults))

    def _with(self, cells: pd.DataFrame) -> pd.DataFrame:
        """Return the rows that `cells` has, with its columns."""
        wanted = np.zeros(len(self.rows), dtype=bool)
        wanted[cells.index] = True
        if not len(cells):
            wanted[0] = True  # an empty table has columns, too
        found = joined(list(self.rows.select(wanted)))
        columns = [c.name for c in table_columns(self.target.op, found.columns, self.rows.tags)]
        columns += [n for n in SOURCE if n in found.columns]
        return pd.concat([in_words(found.loc[cells.index, columns]), cells], axis=1).reset_index(drop=True)


def prepare_measurements(
    rows: pd.DataFrame | RowSource, target: Target, exclusions: Sequence[Exclusion] = ()
) -> Prepared:
    """Split the rows of `target` into good, quarantined and excluded ones.

    Args:
        rows: rows of `target` from :func:`tilewise.data.open_rows`; or a table, whose other targets are ignored.
        target: the target whose rows to take.
        exclusions: decisions to leave rows out, see :mod:`tilewise.data.quality`.

    Raises:
        DataError: there is no row, no row is good, or a decision names a column that the table lacks.
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    source = FrameSource.of(rows, target) if isinstance(rows, pd.DataFrame) else rows
    if not len(source):
        raise DataError(f"no row of {target.name} in a table of {len(rows)} rows")
    screened = screen(source, target, exclusions)
    if not screened.n_good:
        whole = len(screened.faults) == len(source)
        fate = f"bad, the first because {screened.faults['reason'].iloc[0]}" if whole else "bad or left out"
        raise DataError(f"all {len(source)} rows of {target.name} are {fate}")
    return Prepared(target, source, screened)


def prepare_files(path: Path, target: Target, chunk_rows: int = CHUNK_ROWS) -> Prepared:
    """Split the rows of `target` in a file or folder by the rules and by the decisions beside the files.

    Args:
        path: as for :func:`tilewise.data.open_rows`.
        target: the target whose rows to take.
        chunk_rows: likewise.

    Raises:
        DataError: a file cannot be read; or as for :func:`prepare_measurements`.
        ConfigError: likewise.
    """
    return prepare_measurements(open_rows(path, target, chunk_rows), target, find_exclusions([path]))


def write_prepared(path: Path, prepared: Prepared) -> int:
    """Write the training table part by part, and return its number of valid rows.

    The file has the bytes that :func:`tilewise.data.parquet_bytes` gives for all rows together.
    """
    n_valid = 0

    def counted() -> Iterator[pd.DataFrame]:
        nonlocal n_valid
        for part in prepared.parts():
            n_valid += int(part["is_valid"].sum())
            yield part.drop(columns=[n for n in unused if n in part])

    implied = implied_columns(prepared.target.op, prepared.rows.backend)
    unused = set(implied) - prepared.rows.used(implied, prepared.screened.good)
    with replacing(path) as file:
        write_parts(file, counted(), prepared_metadata(prepared))
    return n_valid


def prepared_metadata(prepared: Prepared) -> dict[bytes, bytes] | None:
    """Return the metadata of the prepared table: each decision that left rows out, and how many; None without any."""
    applied = [{**decision.to_dict(), "rows": count} for decision, count in prepared.applied if count]
    return {EXCLUSIONS_METADATA: json.dumps(applied).encode()} if applied else None
