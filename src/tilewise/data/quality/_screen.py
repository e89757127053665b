"""Screening of a target's rows: some are left out by decision, and the rest is checked for faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._row_source import RowSource
from tilewise.data.quality._exclusions import Exclusion, matching
from tilewise.data.quality._faults import find_faults
from tilewise.ops import Target


@dataclass(frozen=True)
class Screened:
    """The result of :func:`screen`; both frames are indexed by the rows' numbers.

    Attributes:
        n_rows: number of rows that were screened.
        faults: columns `rule` and `reason` of the faulty rows that no decision left out.
        excluded: columns `rule`, `reason` and `decided_by` of the decision, for each row left out.
        applied: each decision with the number of rows that it left out, which may be 0.
    """

    n_rows: int
    faults: pd.DataFrame
    excluded: pd.DataFrame
    applied: tuple[tuple[Exclusion, int], ...]

    @cached_property
    def good(self) -> npt.NDArray[np.bool_]:
        """Mask of the rows that are neither faulty nor left out, of shape (rows,)."""
        good = np.ones(self.n_rows, dtype=bool)
        good[self.faults.index] = False
        good[self.excluded.index] = False
        return good

    @property
    def n_good(self) -> int:
        """Number of good rows."""
        return self.n_rows - len(self.faults) - len(self.excluded)


def screen(rows: RowSource, target: Target, exclusions: Sequence[Exclusion] = ()) -> Screened:
    """Leave out the rows that decisions match, and find faults in the rest.

    Args:
        rows: rows of `target`.
        target: target of all rows.
        exclusions: decisions; if several match a row, the first counts.

    Raises:
        DataError: a decision names a column that the table lacks.
        ConfigError: the arch has no profile, or the profile has no peak for the dtype.
    """
    faults = find_faults(rows, target)
    counts, excluded = [0] * len(exclusions), [_no_rows()]
    for chunk in rows if exclusions else ():
        rules = faults.reindex(chunk.index, fill_value="")
        left = pd.Series(True, index=chunk.index)
        for number, decision in enumerate(exclusions):
            out = matching(decision, chunk, rules) & left
            counts[number] += int(out.sum())
            left &= ~out
            cells = {"rule": decision.rule, "reason": decision.reason, "decided_by": decision.decided_by}
            excluded.append(pd.DataFrame(cells, index=chunk.index[out], dtype=object))
    found = pd.concat(excluded)
    if len(found):
        kept = (chunk[~chunk.index.isin(found.index)] for chunk in rows)
        faults = find_faults((chunk for chunk in kept if len(chunk)), target)
    return Screened(len(rows), faults, found, tuple(zip(exclusions, counts, strict=True)))


def _no_rows() -> pd.DataFrame:
    return pd.DataFrame(index=pd.Index([], dtype=np.int64), columns=["rule", "reason", "decided_by"], dtype=object)
