"""A model, its pool and what they decided: one object, so that swapping it swaps all at once.

A request takes the dispatcher's present generation once and asks nothing else: an answer never mixes two models. What
can change in a generation is what it remembers: decisions, measurements, launched kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewise.dispatch.fallback import Fallback
from tilewise.dispatch.measure import Measurer
from tilewise.dispatch.recent import Recent
from tilewise.dispatch.selection import Decision, Selection
from tilewise.dispatch.switches import Switches
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels.backends import unsupported
from tilewise.kernels.pool import Pool
from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.launchers import Launches


class Generation:
    """Decides for one target with one model, or with none.

    Args:
        target: what it selects for.
        pool: the kernels to choose from.
        model: scores them; None: measurements decide, or the pool's order.
        version: the model's version in the registry, where it came from there.
        switches: what is forced and forbidden.
        measurer: measures where that is allowed.
        missing: why there is no model.

    Raises:
        ConfigError: the switches leave no kernel of the pool.
    """

    def __init__(
        self,
        target: Target,
        pool: Pool,
        model: TrainedModel | None,
        version: int | None,
        switches: Switches,
        measurer: Measurer,
        missing: str = "there is no model",
    ) -> None:
        self.target, self.pool, self.switches = target, pool, switches
        self.loaded, self.version = model, version
        self.model = None if switches.model == "off" else model
        self._missing = missing if model is None else "the switch model=off forbids the model"
        allowed = np.array([switches.allows(k.config, n) for k, n in zip(pool.kernels, pool.names, strict=True)])
        if not allowed.any():
            raise ConfigError(f"the switches kernel and forbid leave none of the {len(pool)} kernels of {target.name}")
        self._allowed = None if allowed.all() else allowed
        self._fallback = Fallback(target, pool, self.model, switches, measurer)
        # decisions by problem; `fast` are the same, read without a look at anything else: empty where each is counted
        self.known: Recent[Problem, Selection] = Recent(switches.decisions)
        self.fast = self.known if not switches.record else Recent[Problem, Selection](0)
        self.by_mapping: Recent[tuple[Any, ...], Selection] = Recent(0 if switches.record else switches.decisions)
        self.before: Launches | None = None  # of the generation that served before, if that ran anything
        self.launcher: Launches | None = None  # made by the first run(): selecting needs no GPU, no torch, no triton

    @property
    def content_hash(self) -> str | None:
        """Identity of the model's files; None without a model."""
        return None if self.loaded is None else self.loaded.content_hash

    def supported(self, problem: Problem) -> np.ndarray:
        """Which kernels may be selected: bool, (len(pool),)."""
        supported = (self.loaded or self.pool).supported(problem)
        return supported if self._allowed is None else supported & self._allowed

    def rank(self, problem: Problem, top_k: int | None = None) -> tuple[Selection, ...]:
        """See :meth:`tilewise.dispatch.Dispatcher.rank`."""
        ranked = self._by_model(problem, top_k) if self.model else self._by_default(problem, top_k)
        if not ranked:
            raise self._no_kernel(problem)
        return ranked

    def require_kernel(self, problem: Problem) -> None:
        """Do nothing where a kernel may be selected.

        Raises:
            KernelError: none may.
        """
        if not self.supported(problem).any():
            raise self._no_kernel(problem)

    def keep(self, problem: Problem, decision: Decision) -> Selection:
        """Answer alike from now on, unless the decision was one for the moment; returns the answer."""
        if decision.lasting:
            self.known.put(problem, decision.selection)
        return decision.selection

    def decide(self, problem: Problem) -> Decision:
        """Decide anew, measuring where that is wanted and allowed.

        Raises:
            KernelError: no kernel supports the problem.
        """
        known = self._fallback.known(problem)
        wanted = self._fallback.wanted(problem, self.supported)
        remembered = None if known is None else self._fastest(problem, known.latency_ms, "cache")
        if known is not None and remembered is not None and (wanted is None or wanted.kernels <= known.tried):
            return Decision(remembered)
        cause, lasting = (None if self.model else self._missing), True
        if wanted is not None and wanted.kernels:
            cause = wanted.cause or cause
            outcome = self._fallback.measure(problem, wanted.kernels)
            if outcome.entry is not None:
                best = self._fastest(problem, outcome.entry.latency_ms, "measured" if outcome.fresh else "cache")
                if best is not None:
                    return Decision(best, cause)
            cause = "; ".join(filter(None, (cause, outcome.why_not)))
            lasting = outcome.lasting
        if remembered is not None:
            return Decision(remembered, cause, lasting)
        return Decision(self._first(problem), cause, lasting)

    def _first(self, problem: Problem) -> Selection:
        """The first of :meth:`rank`, without going through what a ranking of several needs."""
        if self.model is not None and self._allowed is None:
            order, tflops = self.model.best(problem, 1)
            if order:
                return Selection(*self._kernel(order[0]), tflops[0], "model")
        return self.rank(problem, 1)[0]

    def _fastest(
        self, problem: Problem, latency_ms: Iterable[tuple[int, float]], why: Any
    ) -> Selection | None:  # fmt: skip
        supported = self.supported(problem)
        for index, ms in latency_ms:
            if supported[index]:
                return Selection(*self._kernel(index), None, why, ms)
        return None

    def _by_model(self, problem: Problem, top_k: int | None) -> tuple[Selection, ...]:
        assert self.model is not None
        order, tflops = self.model.best(problem, top_k if self._allowed is None else None)
        ranked: Iterable[tuple[int, float]] = zip(order, tflops, strict=True)
        if self._allowed is not None:
            ranked = islice((pair for pair in ranked if self._allowed[pair[0]]), top_k)
        return tuple(Selection(*self._kernel(i), t, "model") for i, t in ranked)

    def _by_default(self, problem: Problem, top_k: int | None) -> tuple[Selection, ...]:
        order = self.supported(problem).nonzero()[0][:top_k]
        return tuple(Selection(*self._kernel(int(i)), None, "fallback") for i in order)

    def _kernel(self, index: int) -> tuple[Any, str]:
        return self.pool.kernels[index], self.pool.names[index]

    def _no_kernel(self, problem: Problem) -> KernelError:
        reason = unsupported(self.pool.default, problem, self.target.variant)
        forbidden = "" if self._allowed is None else " and the switches kernel and forbid allow"
        told = "" if reason is None else f"; the default one: {reason}"
        return KernelError(f"no kernel of {self.target.name} supports{forbidden} {problem}{told}")
