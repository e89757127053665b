"""How far problems are from each other, in octaves.

A group key's dimensions are taken as log2, so 1 is a factor of two in one dimension, and the distance of two problems
is Euclidean. A dimension of 0 (padding) counts as 1/2: none, one and two are an octave apart each. Layouts share a
group key, so another layout of a known shape is at distance 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_sizes(keys: npt.ArrayLike) -> Floats:
    """(problems, dimensions) group keys as points whose distances are octaves."""
    return np.log2(np.maximum(np.asarray(keys, dtype=np.float64), 0.5))


def nearest_octaves(keys: npt.ArrayLike, known: npt.ArrayLike) -> Floats:
    """(problems,) distance of each of `keys` to the nearest of `known`, in octaves.

    Args:
        keys: (problems, dimensions) group keys.
        known: (others, dimensions), at least one.
    """
    a, b = log_sizes(keys), log_sizes(known)
    return np.array([nearest(row, b) for row in a], dtype=np.float64)


def nearest(point: Floats, known: Floats) -> float:
    """The distance of one point of :func:`log_sizes` to the nearest of others."""
    return float(distances(point, known).min())


def distances(point: Floats, others: Floats) -> Floats:
    """(others,) distance of one point of :func:`log_sizes` to each of others, in octaves."""
    found: Floats = np.sqrt(((others - point) ** 2).sum(axis=1))
    return found
