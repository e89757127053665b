"""How far a problem is from everything that a model learnt from, in octaves (:mod:`tilewise.features.octaves`)."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.rows import is_of
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.metrics import Floats, Ints
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS

BINS = ((0.0, "0"), (1.0, "0-1"), (2.0, "1-2"), (4.0, "2-4"), (float("inf"), "4+"))  # octaves up to
UNKNOWN = "unknown"
# A table is taken for the one that a model was trained on where it has the number of problems that the manifest names,
# but for what a quarantine may have kept from either.
TOLERANCE = 0.01


def training_keys(model: TrainedModel, frame: pd.DataFrame) -> Ints | None:
    """(problems, dimensions) group keys that the model learnt from, as far as `frame` tells.

    A model with a calibration names them itself. Else they are those of the table's problems that the model's own
    holdout rule left to training, with a valid kernel of its pool.

    Returns:
        None where that is unknown: `frame` is not the table that the model was trained on.
    """
    if model.calibration is not None:
        return model.calibration.keys
    target = model.target
    known = is_of(frame, target) & frame["is_valid"].to_numpy() & frame["kernel_name"].isin(model.pool.names).to_numpy()
    problems = frame.loc[known, list(OPS[target.op].column_names())].drop_duplicates()
    keys = group_keys(target.op, problems)
    keys = keys[~holdout_mask(target.op, keys, float(model.manifest.get("holdout_fraction", 0.0)))]
    expected = int(model.manifest.get("n_problems", 0))
    if not len(keys) or abs(len(keys) - expected) > TOLERANCE * expected:
        return None
    return np.unique(keys, axis=0)


def distance_labels(octaves: Floats) -> list[str]:
    """The bin of each distance; NaN is :data:`UNKNOWN`."""
    return [next(name for limit, name in BINS if d <= limit) if np.isfinite(d) else UNKNOWN for d in octaves]
