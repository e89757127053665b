"""Calibrations typed by hand: the simplest that say something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tilewise.metrics import Floats
from tilewise.model import COVARIATES, Calibration


def one_bin(keys: npt.NDArray[np.int64], farthest: float, count: int, losses: Sequence[Floats]) -> Calibration:
    """All problems share a bin, whatever their covariates.

    Args:
        keys: (shapes, dimensions) group keys of the known shapes.
        farthest: octaves beyond which it says nothing.
        count: of problems that it was calibrated on.
        losses: for k = 1 to DEPTH: (some,) losses of those that lost anything.
    """
    n = len(COVARIATES)
    return Calibration(
        keys=keys,
        farthest=farthest,
        centre=np.zeros(n),
        scale=np.ones(n),
        weights=np.zeros(n),
        intercept=0.0,
        edges=np.zeros(0),
        counts=np.array([count]),
        losses=[losses],
    )
