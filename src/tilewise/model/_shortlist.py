"""The shortlist: the kernels that trees choose from, which are the best by the cost model.

The cost model alone ranks the fastest kernel among its first few dozen (docs/learnings.md). Trees therefore learn and
rank only these, in a fraction of the time. Other kernels follow the shortlist in the order of the cost model.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from tilewise.metrics import Floats, Numbers, place_within

BEHIND = 1e-6  # distance, as a logarithm, from the last kernel of the shortlist to the best of the others


def shortlisted(problem: Numbers, rates: Floats, most: int) -> npt.NDArray[np.bool_]:
    """Return which rows are among the best `most` of their problem by the cost model: (rows,).

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        rates: (rows,) log(TFLOPS) by the cost model; ties go to the earlier row.
        most: rows of each problem's shortlist, at least 1.
    """
    return place_within(problem, rates) < most


def put_behind(problem: Numbers, rates: Floats, scores: Floats, listed: npt.NDArray[np.bool_]) -> Floats:
    """Return the scores of the shortlisted rows, and scores behind them in the cost model's order for others: (rows,).

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        rates: (rows,) log(TFLOPS) by the cost model.
        scores: (rows,) log(TFLOPS) by cost model and trees; values outside the shortlist are ignored.
        listed: (rows,) whether each row is shortlisted, from :func:`shortlisted`.
    """
    last, lowest = np.full((2, int(problem.max(initial=-1)) + 1), np.inf)
    np.minimum.at(last, problem[listed], rates[listed])
    np.minimum.at(lowest, problem[listed], scores[listed])
    return cast(Floats, np.where(listed, scores, rates + (lowest - BEHIND - last)[problem]))
