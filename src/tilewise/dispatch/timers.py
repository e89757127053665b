"""What times two picks of a problem: the GPU that just ran one of them, or a recorded table in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from tilewise.arch import load_arch
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.measure import Measurer, Work
from tilewise.dispatch.pair import Case, Pair, Times
from tilewise.errors import MeasurementError
from tilewise.ops import Problem

if TYPE_CHECKING:
    import torch

Running = Callable[[], Times | None]  # the times, once they are there


class Timer(Protocol):
    """Times the picks of a case; see the module.

    Attributes:
        offline: whether it needs no call, no tensors and no GPU.
        device: what it times on.
    """

    offline: bool
    device: str

    def prepare(self, pair: Pair, case: Case) -> None:
        """Do in the background what takes long.

        Raises:
            Exception: the candidate's kernel cannot be had.
        """

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """What timing is expected to cost the GPU."""

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Running | None:  # fmt: skip
        """Begin, without waiting for the GPU and without touching `tensors` and `out`; None: not now.

        Raises:
            Exception: the candidate's kernel cannot be launched.
        """


class RecordedTimer:
    """Looks both times up where a GPU is simulated."""

    offline = True

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self.device = "simulated"

    def prepare(self, pair: Pair, case: Case) -> None:
        """See :class:`Timer`."""
        machine = self._measurer.machine(pair.production.target)
        self.device = "simulated" if machine is None else machine.device

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Nothing: see :class:`Timer`."""
        return 0.0

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Running | None:  # fmt: skip
        """See :class:`Timer`.

        Raises:
            MeasurementError: the table does not know one of the kernels.
        """
        assert case.rival is not None
        production = self._median(pair.production, case.problem, case.selection.kernel_name)
        times = Times((production,), (self._median(pair.candidate, case.problem, case.rival.kernel_name),), 0.0)
        return lambda: times

    def _median(self, generation: Generation, problem: Problem, kernel_name: str) -> float:
        from tilewise.collect.results import summary

        index, target = generation.pool.find(kernel_name), generation.target
        work = Work(target, load_arch(target.arch), generation.pool, problem, [index])
        outcome = self._measurer.measure(work)[index]
        if outcome.samples is None:
            raise MeasurementError(f"{kernel_name}: {outcome.status}: {outcome.error}")
        return float(summary(outcome.samples)["latency_ms"] or 0)
