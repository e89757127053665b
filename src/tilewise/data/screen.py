"""Rows of a target sorted into good ones, faulty ones, and those that somebody decided to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from tilewise.data.exclusions import Exclusion, matching
from tilewise.data.faults import find_faults
from tilewise.ops import Target


@dataclass(frozen=True)
class Screened:
    """What :func:`screen` found.

    Attributes:
        faults: (rows left,) columns `rule` and `reason`, "" where a row is good; indexed like the rows.
        excluded: (rows left out,) columns `rule`, `reason` and `decided_by` of the decision; likewise.
        applied: how many rows each decision left out, also where none.
    """

    faults: pd.DataFrame
    excluded: pd.DataFrame
    applied: tuple[tuple[Exclusion, int], ...]


def screen(rows: pd.DataFrame, target: Target, exclusions: Sequence[Exclusion] = ()) -> Screened:
    """Leave out what was decided on, and look for faults in the rest.

    Args:
        rows: of `target`, with a unique index.
        target: theirs.
        exclusions: decisions; of two that match a row the first counts.

    Raises:
        DataError: a decision names a column that the table does not have.
        ConfigError: the arch has no profile, or no peak for the dtype.
    """
    faults = find_faults(rows, target)
    excluded = pd.DataFrame(index=rows.index[:0], columns=["rule", "reason", "decided_by"], dtype=object)
    applied = []
    left = pd.Series(True, index=rows.index)
    for decision in exclusions:
        out = matching(decision, rows, faults) & left
        applied.append((decision, int(out.sum())))
        left &= ~out
        words = {"rule": decision.rule, "reason": decision.reason, "decided_by": decision.decided_by}
        excluded = pd.concat([excluded, pd.DataFrame(words, index=rows.index[out], dtype=object)])
    if len(excluded):
        faults = find_faults(rows[left], target) if left.any() else faults[left]
    return Screened(faults, excluded, tuple(applied))
