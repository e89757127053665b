"""Screening of a target's rows: some are left out by decision, and the rest is checked for faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tilewise.data.quality._exclusions import Exclusion, matching
from tilewise.data.quality._faults import find_faults
from tilewise.ops import Target


@dataclass(frozen=True)
class Screened:
    """The result of :func:`screen`; both frames are indexed like the rows.

    Attributes:
        faults: columns `rule` and `reason` of each remaining row, "" for a good one.
        excluded: columns `rule`, `reason` and `decided_by` of the decision, for each row left out.
        applied: each decision with the number of rows that it left out, which may be 0.
    """

    faults: pd.DataFrame
    excluded: pd.DataFrame
    applied: tuple[tuple[Exclusion, int], ...]


def screen(rows: pd.DataFrame, target: Target, exclusions: Sequence[Exclusion] = ()) -> Screened:
    """Leave out the rows that decisions match, and find faults in the rest.

    Args:
        rows: rows of `target`, with a unique index.
        target: target of all rows.
        exclusions: decisions; if several match a row, the first counts.

    Raises:
        DataError: a decision names a column that the table lacks.
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    faults = find_faults(rows, target)
    excluded = pd.DataFrame(index=rows.index[:0], columns=["rule", "reason", "decided_by"], dtype=object)
    applied = []
    left = pd.Series(True, index=rows.index)
    for decision in exclusions:
        out = matching(decision, rows, faults) & left
        applied.append((decision, int(out.sum())))
        left &= ~out
        cells = {"rule": decision.rule, "reason": decision.reason, "decided_by": decision.decided_by}
        excluded = pd.concat([excluded, pd.DataFrame(cells, index=rows.index[out], dtype=object)])
    if len(excluded):
        faults = find_faults(rows[left], target) if left.any() else faults[left]
    return Screened(faults, excluded, tuple(applied))
