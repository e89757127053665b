"""Which problems of a training table judge selections out of fold."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewise.data import Bools

# A selection can be judged on a problem only if this share of its supported kernels was measured: the fastest measured
# kernel is then taken for the fastest of all.
MIN_MEASURED_SHARE = 0.5
# That rule is dropped unless it leaves this share of the problems, or this many of them.
MIN_JUDGED_SHARE = 0.1
ENOUGH_JUDGED = 100


def is_judging(measured: npt.NDArray[np.int64], candidates: npt.NDArray[np.int64]) -> Bools:
    """Return whether a selection can be judged on each problem: enough of its kernels were measured.

    All problems count where hardly any meets the rule.

    Args:
        measured: number of measured kernels, of shape (problems,).
        candidates: number of kernels that support the problem, of shape (problems,).
    """
    judges = measured >= MIN_MEASURED_SHARE * candidates
    enough = judges.sum() >= min(ENOUGH_JUDGED, MIN_JUDGED_SHARE * len(judges))
    return judges if enough else np.ones(len(judges), dtype=bool)


def with_calls(judges: Bools, called: Bools) -> Bools:
    """Return the judging problems on which the calls that PyTorch makes by itself were measured as well.

    Such a call is a candidate that is hard to predict and costs much where it is mistaken. Problems without its row
    would flatter a model. They count all the same where too few others are left.

    Args:
        judges: from :func:`is_judging`, of shape (problems,).
        called: whether a problem has a row of such a call, of shape (problems,).
    """
    both = judges & called
    return both if both.sum() >= ENOUGH_JUDGED else judges
