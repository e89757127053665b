"""Drift: the share of requests that are far from a model's training data, and the measured regret, by slice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import pandas as pd

from tilewise.errors import DataError
from tilewise.evaluate._distance import distance_labels
from tilewise.evaluate._slices import problem_groups, slice_labels, slice_names
from tilewise.model import TrainedModel
from tilewise.ops import Problem

ALL = "all"  # the slice of all problems


@dataclass(frozen=True)
class TimedPick:
    """A problem whose selection was timed beside another one.

    Attributes:
        calls: Number of its calls.
        ms: Time of the selected kernel.
        best_ms: Time of the faster of both; `ms` if both models select the same kernel.
    """

    calls: int
    ms: float
    best_ms: float


class DriftRow(TypedDict):
    """The figures of one slice; `regret` is empty where nothing was timed."""

    slice: str
    value: str
    problems: int
    requests: int
    far_problems: float
    far_requests: float
    timed: int
    regret: float | None


def drift_rows(
    model: TrainedModel, requests: Mapping[Problem, int], timed: Mapping[Problem, TimedPick]
) -> list[DriftRow]:
    """Return the drift of all problems, and of each slice.

    A problem is far if it lies beyond the reach of the model's calibration. `far_problems` counts each problem once,
    `far_requests` weights it by its requests. `regret` is the share of the timed calls' GPU time that the faster of the
    two timed kernels would have saved, a lower bound of the true regret.

    Args:
        model: The model that served.
        requests: How often each problem was requested; those that were timed may be missing here.
        timed: Timed problems.

    Raises:
        DataError: There are no problems, or the model has no calibration.
    """
    calibration = model.calibration
    if calibration is None:
        raise DataError(f"{model.where}: drift needs a model with a calibration; train it again")
    problems = list(dict.fromkeys([*requests, *timed]))
    if not problems:
        raise DataError(f"{model.target.name}: drift needs at least one request; set TILEWISE_RECORD for dispatchers")
    distance = np.array([calibration.shape_distance(p) for p in problems])
    labels = slice_labels(problems, model.target, model.arch).assign(distance=distance_labels(distance))
    frame = pd.DataFrame(
        {
            "requests": [requests.get(p, timed[p].calls if p in timed else 0) for p in problems],
            "far": distance > calibration.farthest,
            "ms": [timed[p].calls * timed[p].ms if p in timed else 0.0 for p in problems],
            "best_ms": [timed[p].calls * timed[p].best_ms if p in timed else 0.0 for p in problems],
        }
    )
    groups = problem_groups(labels, slice_names(model.target.op, labels))
    everything = (ALL, ALL, np.arange(len(problems)))
    return [_row(name, value, frame.iloc[members]) for name, value, members in (everything, *groups)]


def _row(name: str, value: str, members: pd.DataFrame) -> DriftRow:
    requests, ms = int(members["requests"].sum()), float(members["ms"].sum())
    far = members["far"]
    return {
        "slice": name,
        "value": value,
        "problems": len(members),
        "requests": requests,
        "far_problems": float(far.mean()),
        "far_requests": float(members["requests"][far].sum() / requests) if requests else 0.0,
        "timed": int((members["ms"] > 0).sum()),
        "regret": float(1 - members["best_ms"].sum() / ms) if ms else None,
    }
