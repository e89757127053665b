"""Which kernels trees choose from: those that the launch estimate puts first.

The estimate alone finds the fastest kernel among its first few dozen (docs/learnings.md), so trees need not be asked
about the others, neither when they learn nor when they rank: they tell apart what is close, in a fraction of the time.
The others keep the order that the estimate gives them, behind the shortlist.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from tilewise.metrics import Floats, Ints, place_within

BEHIND = 1e-6  # of a logarithm: what the best of the others lacks to the last of the shortlist


def shortlisted(problem: Ints, rates: Floats, most: int) -> npt.NDArray[np.bool_]:
    """(rows,) which rows are among the `most` of their problem that the estimate puts first.

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        rates: (rows,) log(TFLOPS) by the estimate; ties go to the earlier row.
        most: rows of a problem, at least 1.
    """
    return place_within(problem, rates) < most


def put_behind(problem: Ints, rates: Floats, scores: Floats, most: int) -> Floats:
    """(rows,) the scores of the shortlist, and behind each problem's last of them the others in the estimate's order.

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        rates: (rows,) log(TFLOPS) by the estimate.
        scores: (rows,) log(TFLOPS) by estimate and trees; those outside the shortlist do not count.
        most: rows of a problem's shortlist, at least 1.
    """
    listed = shortlisted(problem, rates, most)
    last, lowest = np.full((2, int(problem.max(initial=-1)) + 1), np.inf)
    np.minimum.at(last, problem[listed], rates[listed])
    np.minimum.at(lowest, problem[listed], scores[listed])
    return cast(Floats, np.where(listed, scores, rates + (lowest - BEHIND - last)[problem]))
