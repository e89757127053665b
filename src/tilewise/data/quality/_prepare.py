"""Preparation of a training table: bad rows and doubtful labels go to quarantine, each with a reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tilewise.data._backends import tags_of
from tilewise.data._columns import table_columns
from tilewise.data._rows import is_of
from tilewise.data._schema import SOURCE, to_measurements
from tilewise.data.quality._exclusions import EXCLUSIONS_METADATA, Exclusion
from tilewise.data.quality._faults import HARMLESS
from tilewise.data.quality._screen import screen
from tilewise.errors import DataError
from tilewise.ops import Target


@dataclass(frozen=True)
class Prepared:
    """A training table, and the rows that are not in it.

    Attributes:
        frame: good rows of one target, in the table's columns and types.
        quarantined: faulty rows, with `rule`, `reason` and, if known, `source_file` and `source_row`.
        excluded: rows left out by decision, with `rule`, `reason` and `decided_by`.
        applied: each decision with the number of rows that it left out, which may be 0.
    """

    frame: pd.DataFrame
    quarantined: pd.DataFrame
    excluded: pd.DataFrame
    applied: tuple[tuple[Exclusion, int], ...] = ()

    @property
    def quarantined_share(self) -> float:
        """Share of the rows that is in quarantine, not counting repeats of other rows."""
        doubtful = int((self.quarantined["rule"] != HARMLESS).sum())
        return doubtful / (len(self.frame) + len(self.quarantined))


def prepare_measurements(frame: pd.DataFrame, target: Target, exclusions: Sequence[Exclusion] = ()) -> Prepared:
    """Split the rows of `target` into good, quarantined and excluded ones.

    Args:
        frame: rows from :func:`tilewise.data.read_raw_measurements`, or a measurement table; rows of other targets are
            ignored.
        target: the target whose rows to take.
        exclusions: decisions to leave rows out, see :mod:`tilewise.data.quality`.

    Raises:
        DataError: no row belongs to `target`, no row is good, or a decision names a column that the table lacks.
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    rows = frame[is_of(frame, target)].reset_index(drop=True)
    if not len(rows):
        raise DataError(f"no row of {target.name} in a table of {len(frame)} rows")
    screened = screen(rows, target, exclusions)
    faults = screened.faults
    good = faults["rule"] == ""
    if not good.any():
        fate = f"bad, the first because {faults['reason'].iloc[0]}" if len(faults) == len(rows) else "bad or left out"
        raise DataError(f"all {len(rows)} rows of {target.name} are {fate}")
    columns = [c.name for c in table_columns(target.op, rows.columns, tags_of(rows))]
    columns += [n for n in SOURCE if n in rows.columns]
    bad = faults[~good].astype("str")
    return Prepared(
        to_measurements(rows.loc[faults.index[good]]),
        rows.loc[bad.index, columns].assign(rule=bad["rule"], reason=bad["reason"]).reset_index(drop=True),
        pd.concat([rows.loc[screened.excluded.index, columns], screened.excluded], axis=1).reset_index(drop=True),
        screened.applied,
    )


def prepared_metadata(prepared: Prepared) -> dict[bytes, bytes] | None:
    """Return the metadata of the prepared table: each decision that left rows out, and how many; None without any."""
    applied = [{**decision.to_dict(), "rows": count} for decision, count in prepared.applied if count]
    return {EXCLUSIONS_METADATA: json.dumps(applied).encode()} if applied else None
