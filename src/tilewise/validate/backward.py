"""Models of gradients without a measurement: how long a selection takes, and whether what is predicted can be."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem


@dataclass(frozen=True)
class Predictions:
    """What a model predicts for problems, without a GPU.

    Attributes:
        target: of the model.
        problems: number of problems that a kernel of the pool supports.
        unsupported: number of the others.
        seconds: of selecting for all of them, one by one, first use included.
        median_ms: of one selection.
        kernels: distinct kernels selected.
        median_tflops: predicted of the selected kernels.
        above_peak: predictions above the hardware's peak, which cannot be.
        not_finite: predictions that are no number.
    """

    target: str
    problems: int
    unsupported: int
    seconds: float
    median_ms: float
    kernels: int
    median_tflops: float
    above_peak: int
    not_finite: int

    @property
    def sound(self) -> bool:
        """Whether every prediction can be."""
        return self.problems > 0 and not self.above_peak and not self.not_finite


def predictions(model: TrainedModel, problems: Sequence[Problem]) -> Predictions:
    """Let a model select for each problem."""
    tflops, chosen, took, unsupported = [], set(), [], 0
    for problem in problems:
        begun = time.perf_counter()
        kernels, rates = model.best(problem, 1)
        if not kernels:
            unsupported += 1
            continue
        tflops.append(float(rates[0]))
        took.append(time.perf_counter() - begun)
        chosen.add(kernels[0])
    predicted = np.array(tflops)
    peak = model.arch.peak(model.target.dtype)
    return Predictions(
        model.target.name,
        len(tflops),
        unsupported,
        sum(took),
        float(np.median(took)) * 1e3 if took else 0.0,
        len(chosen),
        float(np.median(predicted)) if tflops else 0.0,
        int((predicted > peak).sum()),
        int((~np.isfinite(predicted)).sum()),
    )
