"""Predictions without measurements, for gradient models: time of a selection, and plausibility of the predictions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.model import TrainedModel
from tilewise.ops import Problem


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model, without a GPU.

    Attributes:
        target: name of the target.
        problems: number of problems that a kernel of the pool supports.
        unsupported: number of the other problems.
        seconds: time of all selections, one by one, first use included.
        median_ms: median time of a selection.
        kernels: number of distinct kernels selected.
        median_tflops: median prediction for the selected kernels.
        above_peak: number of predictions above the hardware's peak, which are impossible.
        not_finite: number of predictions that are infinite or NaN.
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
        """True if all predictions are possible."""
        return self.problems > 0 and not self.above_peak and not self.not_finite


def predict_problems(model: TrainedModel, problems: Sequence[Problem]) -> Predictions:
    """Let a model select a kernel for each problem, and time it."""
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
