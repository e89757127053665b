"""The part of a dispatcher that launches kernels."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._selector import ProblemLike, Selector
from tilewise.errors import KernelError
from tilewise.kernels import NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.ops import Problem

if TYPE_CHECKING:
    import torch

    from tilewise.dispatch.launching import DirectCall, KernelLauncher
    from tilewise.dispatch.shadowing import Shadow


class Runner:
    """Launches the selected kernels, with one launcher per generation.

    Args:
        selector: selects the kernels.
        shadow: may time a launch.
    """

    def __init__(self, selector: Selector, shadow: Shadow | None) -> None:
        self._selector, self._shadow = selector, shadow

    @property
    def failures(self) -> int:
        """Return how many kernels could not be launched, so that the next in rank was."""
        generation = self._selector.generation
        launcher = generation.launcher or generation.previous_launcher
        return 0 if launcher is None else launcher.failures

    def run(
        self, problem: ProblemLike, tensors: Sequence[torch.Tensor], out: torch.Tensor | None,
        epilogue: Epilogue = NO_EPILOGUE,
    ) -> torch.Tensor:  # fmt: skip
        """See :meth:`tilewise.dispatch.Dispatcher.run`."""
        selector = self._selector
        generation = selector.generation  # read once: a swap during this call changes nothing here
        launcher = generation.launcher or self._make_launcher(generation)
        parsed = selector.parse(problem)
        if selector.logs_requests:
            with suppress(KernelError):  # the launcher may pad the problem, or raises it again
                selector.select(generation, parsed)
        result = launcher.run(parsed, tensors, out, epilogue)
        if self._shadow is not None and epilogue is NO_EPILOGUE:  # it times kernels without one
            self._shadow.on_run(generation, parsed, tensors, result)
        return result

    def direct(self, problem: Problem, device: int, kind: EpilogueKind) -> DirectCall | None:
        """See :meth:`tilewise.dispatch.Dispatcher.direct`."""
        launcher = self._selector.generation.launcher
        if launcher is None or self._shadow is not None or self._selector.logs_requests:
            return None
        return launcher.direct(problem, device, kind)

    def _make_launcher(self, generation: Generation) -> KernelLauncher:
        from tilewise.dispatch.launching import make_launcher  # selecting does not need it

        decide, backend = partial(self._selector.decide_with, generation), generation.pool.backend
        previous = generation.previous_launcher
        launcher = make_launcher(backend, generation.target, decide, generation.rank_with, previous)
        launcher.failures = 0 if previous is None else previous.failures
        generation.launcher, generation.previous_launcher = launcher, None
        return launcher
