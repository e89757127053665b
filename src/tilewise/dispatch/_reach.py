"""Problems of a dispatcher that are far from the training data of its model."""

from __future__ import annotations

from collections.abc import Iterable

from tilewise.model import TrainedModel
from tilewise.ops import Problem

MAX_PROBLEMS = 1 << 16
_MOST = 256  # of one update; a distance takes some 30 microseconds


class Reach:
    """Counts problems beyond the reach of a model's calibration, a few at each update, so that no update takes long.

    Args:
        model: the model; None: nothing is counted.

    Attributes:
        checked: number of problems whose distance is known.
        far: number of those that are farther from the training data than any calibration problem.
    """

    def __init__(self, model: TrainedModel | None) -> None:
        self._model = model
        self._seen: set[Problem] = set()
        self.checked = self.far = 0

    def update(self, problems: Iterable[Problem]) -> None:
        """Compute the distances of problems that are new."""
        calibration = None if self._model is None else self._model.calibration
        if calibration is None or len(self._seen) >= MAX_PROBLEMS:
            return
        new = [p for p in problems if p not in self._seen][:_MOST]
        self._seen.update(new)
        self.far += sum(calibration.shape_distance(p) > calibration.farthest for p in new)
        self.checked += len(new)
