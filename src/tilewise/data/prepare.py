"""From files as collected to a table to learn from: bad rows and doubtful labels go to quarantine with a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tilewise.data.columns import table_columns
from tilewise.data.exclusions import Exclusion
from tilewise.data.faults import HARMLESS
from tilewise.data.rows import is_of
from tilewise.data.schema import SOURCE, to_measurements
from tilewise.data.screen import screen
from tilewise.errors import DataError
from tilewise.ops import Target


@dataclass(frozen=True)
class Prepared:
    """A table to learn from, and what was kept out of it.

    Attributes:
        frame: good rows of one target, in the table's columns and types.
        quarantined: the other rows, with `rule`, `reason` and, if known, `source_file` and `source_row`.
        excluded: rows that somebody decided to leave out, with `rule`, `reason` and `decided_by`.
        applied: how many rows each decision left out, also where none.
    """

    frame: pd.DataFrame
    quarantined: pd.DataFrame
    excluded: pd.DataFrame
    applied: tuple[tuple[Exclusion, int], ...] = ()

    @property
    def quarantined_share(self) -> float:
        """Part of all rows that is in quarantine; rows that only repeat another do not count."""
        doubtful = int((self.quarantined["rule"] != HARMLESS).sum())
        return doubtful / (len(self.frame) + len(self.quarantined))


def prepare(frame: pd.DataFrame, target: Target, exclusions: Sequence[Exclusion] = ()) -> Prepared:
    """Split the rows of `target` into good ones, quarantined ones, and those left out on purpose.

    Args:
        frame: from :func:`tilewise.data.schema.read_raw` or a measurement table; rows of other targets are ignored.
        target: what to prepare for.
        exclusions: decisions about rows, see :mod:`tilewise.data.exclusions`.

    Raises:
        DataError: no row is of `target`, or none of its rows is good, or a decision does not fit the table.
        ConfigError: the arch has no profile, or that no peak for the dtype.
    """
    rows = frame[is_of(frame, target)].reset_index(drop=True)
    if not len(rows):
        raise DataError(f"no row of {target.name} in a table of {len(frame)} rows")
    screened = screen(rows, target, exclusions)
    faults = screened.faults
    good = faults["rule"] == ""
    if not good.any():
        what = f"bad, the first because {faults['reason'].iloc[0]}" if len(faults) == len(rows) else "bad or left out"
        raise DataError(f"all {len(rows)} rows of {target.name} are {what}")
    kept = [c.name for c in table_columns(target.op, rows.columns)] + [n for n in SOURCE if n in rows.columns]
    bad = faults[~good].astype("str")
    return Prepared(
        to_measurements(rows.loc[faults.index[good]]),
        rows.loc[bad.index, kept].assign(rule=bad["rule"], reason=bad["reason"]).reset_index(drop=True),
        pd.concat([rows.loc[screened.excluded.index, kept], screened.excluded], axis=1).reset_index(drop=True),
        screened.applied,
    )
