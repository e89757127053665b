"""How far a problem is from everything that a model learnt from.

The scale is octaves: a group key's dimensions are taken as log2, so 1 is a factor of two in one dimension, and the
distance of two problems is Euclidean. A dimension of 0 (padding) counts as 1/2: none, one and two are an octave apart
each. Layouts share a group key, so another layout of a known shape is at distance 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data.rows import is_of
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.metrics import Floats, Ints
from tilewise.model.artefact import TrainedModel
from tilewise.ops import OPS

BINS = ((0.0, "0"), (1.0, "0-1"), (2.0, "1-2"), (4.0, "2-4"), (float("inf"), "4+"))  # octaves up to
UNKNOWN = "unknown"
# A table is taken for the one that a model was trained on where it has the number of problems that the manifest names,
# but for what a quarantine may have kept from either.
TOLERANCE = 0.01


def training_keys(model: TrainedModel, frame: pd.DataFrame) -> Ints | None:
    """(problems, dimensions) group keys that the model learnt from, as far as `frame` tells.

    They are those of the table's problems that the model's own holdout rule left to training, with a valid kernel of
    its pool.

    Returns:
        None where `frame` is not the table that the model was trained on.
    """
    target = model.target
    known = is_of(frame, target) & frame["is_valid"].to_numpy() & frame["kernel_name"].isin(model.pool.names).to_numpy()
    problems = frame.loc[known, list(OPS[target.op].column_names())].drop_duplicates()
    keys = group_keys(target.op, problems)
    keys = keys[~holdout_mask(target.op, keys, float(model.manifest.get("holdout_fraction", 0.0)))]
    expected = int(model.manifest.get("n_problems", 0))
    if not len(keys) or abs(len(keys) - expected) > TOLERANCE * expected:
        return None
    return np.unique(keys, axis=0)


def nearest_octaves(keys: npt.ArrayLike, known: npt.ArrayLike) -> Floats:
    """(problems,) distance of each of `keys` to the nearest of `known`, in octaves.

    Args:
        keys: (problems, dimensions) group keys.
        known: (others, dimensions), at least one.
    """
    a, b = (np.log2(np.maximum(np.asarray(k, dtype=np.float64), 0.5)) for k in (keys, known))
    return np.array([np.sqrt(((b - row) ** 2).sum(axis=1).min()) for row in a], dtype=np.float64)


def distance_labels(octaves: Floats) -> list[str]:
    """The bin of each distance; NaN is :data:`UNKNOWN`."""
    return [next(name for limit, name in BINS if d <= limit) if np.isfinite(d) else UNKNOWN for d in octaves]
