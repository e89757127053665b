"""Timers of two selections for a problem: the GPU that has just run one of them, or a replay table in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tilewise.arch import load_arch
from tilewise.dispatch._generation import Generation
from tilewise.dispatch.measuring import MeasurementJob, Measurer
from tilewise.dispatch.shadowing._pair import Case, Pair, PairTimes
from tilewise.errors import MeasurementError
from tilewise.ops import Problem

if TYPE_CHECKING:
    import torch

PendingTimes = Callable[[], PairTimes | None]  # returns None until the times are available


class Timer(Protocol):
    """Times the selections of a case.

    Attributes:
        offline: whether it works without calls, tensors and a GPU.
        device: name of the device that it times on.
    """

    offline: bool
    device: str

    def prepare(self, pair: Pair, case: Case) -> None:
        """Do the slow preparations, in the background.

        Raises:
            Exception: the candidate's kernel cannot be compiled or found.
        """

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Return the GPU time that timing is expected to take, in milliseconds."""

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> PendingTimes | None:
        """Start timing without waiting for the GPU or changing `tensors` and `out`; None if it is not possible now.

        Raises:
            Exception: the candidate's kernel cannot be launched.
        """


class ReplayTimer:
    """A timer that looks both times up, for a simulated GPU."""

    offline = True

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self.device = "simulated"

    def prepare(self, pair: Pair, case: Case) -> None:
        """See :meth:`Timer.prepare`."""
        machine = self._measurer.machine(pair.production.target)
        self.device = "simulated" if machine is None else machine.device

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Return 0: looking times up takes no GPU time."""
        return 0.0

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> PendingTimes | None:
        """See :meth:`Timer.start`.

        Raises:
            MeasurementError: the table lacks a kernel.
        """
        assert case.candidate is not None
        production = self._median(pair.production, case.problem, case.production.kernel_name)
        candidate = self._median(pair.candidate, case.problem, case.candidate.kernel_name)
        times = PairTimes((production,), (candidate,), 0.0)
        return lambda: times

    def _median(self, generation: Generation, problem: Problem, kernel_name: str) -> float:
        from tilewise.collect import summarize_samples

        index, target = generation.pool.find(kernel_name), generation.target
        job = MeasurementJob(target, load_arch(target.arch), generation.pool, {problem: [index]})
        outcome = self._measurer.measure(job)[problem][index]
        if outcome.samples is None:
            raise MeasurementError(f"{kernel_name}: {outcome.status}: {outcome.error}")
        return float(summarize_samples(outcome.samples)["latency_ms"] or 0)
