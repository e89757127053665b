"""Log2 shape distance of problems to a model's training data, see :mod:`tilewise.features`."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data import TargetTable
from tilewise.metrics import Floats, Ints
from tilewise.model import TrainedModel
from tilewise.ops import OPS

BINS = ((0.0, "0"), (1.0, "0-1"), (2.0, "1-2"), (4.0, "2-4"), (float("inf"), "4+"))  # upper limit, label
UNKNOWN = "unknown"
# A table counts as a model's training table if its number of problems differs by no more than this share from the
# manifest's: quarantine may have removed rows from either.
TOLERANCE = 0.01


def training_keys(model: TrainedModel, frame: pd.DataFrame) -> Ints | None:
    """Return the distinct group keys of the model's training problems, of shape (keys, dimensions).

    A calibrated model stores them. Otherwise they are the keys of the problems in `frame` with a valid kernel of the
    model's pool, outside the model's holdout.

    Returns:
        None if `frame` is not the table that the model was trained on.
    """
    if model.calibration is not None:
        return model.calibration.keys
    target = model.target
    table = TargetTable.of(frame, target)
    in_pool = table.rows["kernel_name"].isin(model.pool.names).to_numpy()
    known = table.take(table.rows["is_valid"].to_numpy() & in_pool).rows
    problems = TargetTable(target, known[list(OPS[target.op].column_names())].drop_duplicates())
    training = problems.training(float(model.manifest.get("holdout_fraction", 0.0)))
    expected = int(model.manifest.get("n_problems", 0))
    if not len(training) or abs(len(training) - expected) > TOLERANCE * expected:
        return None
    return training.distinct_keys


def distance_labels(distance: Floats) -> list[str]:
    """Return the bin of each distance; NaN is :data:`UNKNOWN`."""
    return [next(name for limit, name in BINS if d <= limit) if np.isfinite(d) else UNKNOWN for d in distance]
