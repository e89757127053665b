"""The log2 shape distance of problems: Euclidean, over the base-2 logarithms of the group key's dimensions.

A distance of 1 is a factor of two in one dimension. A dimension of 0 (padding) counts as 1/2, so 0, 1 and 2 are 1 apart
each. Layouts share a group key, so another layout of a known shape is at distance 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def log_sizes(keys: npt.ArrayLike) -> Floats:
    """Return group keys as points, whose Euclidean distances are log2 shape distances: (problems, dimensions)."""
    return np.log2(np.maximum(np.asarray(keys, dtype=np.float64), 0.5))


def nearest_shape_distances(keys: npt.ArrayLike, known: npt.ArrayLike) -> Floats:
    """Return the log2 shape distance of each of `keys` to the nearest of `known`: (problems,).

    Args:
        keys: (problems, dimensions) group keys.
        known: (others, dimensions), at least one.
    """
    a, b = log_sizes(keys), log_sizes(known)
    return np.array([nearest_shape_distance(row, b) for row in a], dtype=np.float64)


def nearest_shape_distance(point: Floats, known: Floats) -> float:
    """Return the distance of one point of :func:`log_sizes` to the nearest of others."""
    return float(shape_distances(point, known).min())


def shape_distances(point: Floats, others: Floats) -> Floats:
    """Return the distance of one point of :func:`log_sizes` to each of others: (others,)."""
    found: Floats = np.sqrt(((others - point) ** 2).sum(axis=1))
    return found
