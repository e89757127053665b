"""Generations: a model with its pool and all that was decided with them, in one object, so that a swap is atomic.

A request reads the dispatcher's current generation once and uses nothing else, so an answer never mixes two models.
Only caches change within a generation: decisions, measurements and bound kernels.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from tilewise.arch import HardwareProfile, load_arch
from tilewise.dispatch._mapping import MappingKey
from tilewise.dispatch._reach import Reach
from tilewise.dispatch._recent import Recent
from tilewise.dispatch._selection import Comparison, Decision, Selection, Why
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.measuring import Fallback, Measurer
from tilewise.errors import ConfigError, KernelError, MeasurementError
from tilewise.kernels import EMPTY_KIND, EpilogueKind, KernelBase, Pool, pass_ms, store_ms, unsupported
from tilewise.model import Predictor, TrainedModel
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.launching import KernelLauncher
    from tilewise.dispatch.sources import FetchedModel


class Deployment(NamedTuple):
    """The kernels of a target, and the model that ranks them.

    Attributes:
        target: the target.
        pool: the kernels to choose from, the default first.
        model: ranks the kernels; None: measurements decide, or else the pool's order.
        version: the model's number in the registry; None for models from elsewhere.
        why_no_model: reason for a missing model, used as the cause of decisions.
        registered_ms: when the version was registered, in ms since 1970; 0: unknown.
    """

    target: Target
    pool: Pool
    model: TrainedModel | None = None
    version: int | None = None
    why_no_model: str = "there is no model"
    registered_ms: int = 0

    @classmethod
    def of(cls, fetched: FetchedModel) -> Self:
        """Return the deployment of a fetched model."""
        model = fetched.model
        return cls(model.target, model.pool, model, fetched.version, registered_ms=fetched.registered_ms)


class Generation:
    """A deployment with the decisions made for it.

    Args:
        deployment: target, pool and model.
        switches: restrict kernels, model and measuring.
        measurer: measures where the switches allow it.

    Attributes:
        decisions: remembered selections by problem.
        with_epilogue: remembered selections by problem and kind of epilogue.
        fast_decisions: the same object, for look-ups that do nothing else; empty if each request has to be logged.
        fast_by_mapping: selections by the key of a problem's dict, likewise.
        in_pytorch: names of the kernels that are calls which PyTorch makes by itself.
        launcher: launches the selected kernels; None until the first run, as selecting needs neither torch nor a GPU.
        previous_launcher: launcher of the generation that served before, until :attr:`launcher` replaces it.
        reach: counts problems far from the training data, when somebody asks.
        loaded_at: time of its creation, in seconds since 1970.

    Raises:
        ConfigError: the switches forbid every kernel of the pool.
    """

    def __init__(self, deployment: Deployment, switches: Switches, measurer: Measurer) -> None:
        self.target, self.pool, self.switches = deployment.target, deployment.pool, switches
        self.loaded, self.version = deployment.model, deployment.version
        self.registered_ms = deployment.registered_ms
        self.model = None if switches.model == "off" else deployment.model
        no_model = deployment.why_no_model
        self._why_no_model = no_model if self.loaded is None else "the switch model=off forbids the model"
        pool = self.pool
        allowed = np.array([_allows(switches, pool, i) for i in range(len(pool))])
        if not allowed.any():
            raise ConfigError(
                f"the switches kernel, forbid and vendor leave none of the {len(pool)} kernels of "
                f"{self.target.name}; loosen them"
            )
        self._allowed = None if allowed.all() else allowed
        self.in_pytorch = frozenset(n for i, n in enumerate(pool.names) if _is_in_pytorch(pool, i))
        self._fallback = Fallback(self.target, pool, self.model, switches, measurer)
        self._forget()
        self.reach, self.loaded_at = Reach(self.model), time.time()
        self.launcher: KernelLauncher | None = None
        self.previous_launcher: KernelLauncher | None = None

    def _forget(self) -> None:
        """Start with empty memories.

        They are new objects: who began to decide before a measurement puts the result into the old ones. The decisions
        come first, as the others are made from them.
        """
        size, fast_size = self.switches.decisions, 0 if self.switches.record else self.switches.decisions
        self.decisions: Recent[Problem, Selection] = Recent(size)
        self.fast_decisions = self.decisions if fast_size else Recent[Problem, Selection](0)
        self.with_epilogue: Recent[tuple[Problem, EpilogueKind], Selection] = Recent(size)
        self._comparisons: Recent[tuple[Problem, EpilogueKind], Comparison] = Recent(size)
        self.fast_by_mapping: Recent[MappingKey, Selection] = Recent(fast_size)

    @property
    def content_hash(self) -> str | None:
        """Hash of the model's files; None without a model."""
        return None if self.loaded is None else self.loaded.content_hash

    @cached_property
    def arch(self) -> HardwareProfile:
        """See :attr:`tilewise.dispatch.Dispatcher.arch`."""
        return load_arch(self.target.arch) if self.loaded is None else self.loaded.arch

    @cached_property
    def predictor(self) -> Predictor | None:
        """The model's predictor; None without a model, or where the switches forbid it."""
        return None if self.model is None else Predictor(self.model)

    @cached_property
    def identity(self) -> str:
        """Digest of everything but measurements that decides: target, pool, model and switches."""
        s = self.switches
        parts = (self.target.name, self.pool.hash, self.content_hash, s.model, s.kernel, s.forbid, s.vendor)
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def supported(self, problem: Problem) -> np.ndarray:
        """Return which kernels may be selected: bool, (len(pool),)."""
        supported = (self.loaded or self.pool).supported(problem)
        return supported if self._allowed is None else supported & self._allowed

    def why_unsupported(self, problem: Problem, kernel: KernelBase | str) -> str | None:
        """See :meth:`tilewise.dispatch.Dispatcher.why_unsupported`."""
        name, stated = kernel, None
        if isinstance(kernel, str) and kernel.endswith("]"):  # an instance string, which states more than a name
            from tilewise.kernels.ck import Instance, parse_instance_string  # only such strings need it

            instance = parse_instance_string(kernel)
            name, stated = instance.name, instance.kernel if isinstance(instance, Instance) else None
        index = self.pool.find(name)
        stated = stated or self.pool.kernels[index]
        if reason := unsupported(stated, problem, self.target.variant, self.target.dtype):
            return reason
        if self._allowed is None or self._allowed[index]:
            return None
        return "the switches kernel, forbid and vendor leave it out"

    def rank(self, problem: Problem, top_k: int | None = None) -> tuple[Selection, ...]:
        """See :meth:`tilewise.dispatch.Dispatcher.rank`."""
        ranked = self._by_model(problem, top_k) if self.model else self._by_default(problem, top_k)
        if not ranked:
            raise self._no_kernel(problem)
        return ranked

    def rank_with(self, problem: Problem, kind: EpilogueKind) -> tuple[Selection, ...]:
        """Return the kernels for a problem with an epilogue, the measured ones first, then those of :meth:`rank`.

        Kernels that leave a part of the epilogue take a pass longer.
        """
        timed = self._timed(problem)
        names = {selection.kernel_name for selection in timed}
        ranked = (*timed, *(selection for selection in self.rank(problem) if selection.kernel_name not in names))
        if self.model is None or kind.is_empty:
            return ranked
        ms_of = self._ms_with(problem, kind)
        by_time = sorted(ranked, key=lambda selection: (selection.measured_ms is None, ms_of(selection)))
        if kind.in_one_launch:
            by_time.sort(key=lambda selection: not self._is_one_launch(selection.kernel, problem, kind))
        return tuple(by_time)

    def _is_one_launch(self, kernel: KernelBase, problem: Problem, kind: EpilogueKind) -> bool:
        backend = self.pool.backend
        alone = backend.is_one_launch(kernel, problem, self.target.variant)
        return alone and backend.leaves(kernel, problem, self.target, kind.computed).is_empty

    def select_with(self, problem: Problem, kind: EpilogueKind, plain: Selection) -> Selection:
        """Return the selection for a problem with an epilogue, given the one without; it is remembered.

        Without a model the decision holds, as nothing tells what the epilogue costs.
        """
        if kind.is_empty or self.model is None:
            return plain
        memory = self.with_epilogue  # read before ranking, see _forget
        found = memory.get((problem, kind))
        if found is None:
            found = self.rank_with(problem, kind)[0]
            memory.put((problem, kind), found)
        return found

    def compare_with_pytorch(self, problem: Problem, kind: EpilogueKind = EMPTY_KIND) -> Comparison:
        """See :meth:`tilewise.dispatch.Dispatcher.compare_with_pytorch`; comparisons are remembered."""
        memory = self._comparisons  # read before comparing, see _forget
        found = memory.get((problem, kind))
        if found is None:  # networks repeat their layers
            found = self._compare_with_pytorch(problem, kind)
            memory.put((problem, kind), found)
        return found

    def _compare_with_pytorch(self, problem: Problem, kind: EpilogueKind) -> Comparison:
        memory, pick = self.with_epilogue, self.rank_with(problem, kind)[0]
        is_pytorch = pick.kernel_name in self.in_pytorch
        if self.model is None:
            return Comparison(pick, None, None, is_pytorch)
        if not kind.is_empty:  # a network that was compared runs next
            memory.put((problem, kind), pick)
        known = self._fallback.known(problem)  # this and the ranking below also have calls that the switches forbid
        times = () if known is None else known.latency_ms
        pytorch_ms = next((ms for i, ms in times if self.pool.names[i] in self.in_pytorch), None)
        is_measured = pick.measured_ms is not None and pytorch_ms is not None
        if pytorch_ms is None:
            every = zip(*self.model.best(problem, None), strict=True)
            tflops = max((t for i, t in every if self.pool.names[i] in self.in_pytorch), default=None)
            pytorch_ms = None if tflops is None else problem.flops / (tflops * 1e9)
        return Comparison(pick, self._ms_with(problem, kind)(pick), pytorch_ms, is_pytorch, is_measured)

    def measure(self, problems: Iterable[Problem], top_k: int) -> None:
        """See :meth:`tilewise.dispatch.Dispatcher.measure`."""
        if self.switches.model == "require":
            raise ConfigError("the switch model=require lets the model alone decide; measuring would change nothing")
        wanted = {problem: self._worth_measuring(problem, top_k) for problem in problems}
        results = self._fallback.measure({problem: some for problem, some in wanted.items() if some}).values()
        if results and all(result.entry is None for result in results):
            raise MeasurementError(next(iter(results)).why_not or "nothing was measured")
        self._forget()
        self.previous_launcher, self.launcher = self.launcher or self.previous_launcher, None

    def _worth_measuring(self, problem: Problem, top_k: int) -> frozenset[int]:
        """Return the best kernels by rank and all of PyTorch's own calls, as indices; none where it has no rival."""
        runnable = (self.loaded or self.pool).supported(problem).nonzero()[0].tolist()
        in_pytorch = [i for i in runnable if self.pool.names[i] in self.in_pytorch]  # also where the switches forbid it
        ranked = self.rank(problem) if self.supported(problem).any() else ()
        best = [self.pool.find(s.kernel_name) for s in ranked if s.kernel_name not in self.in_pytorch][:top_k]
        return frozenset([*best, *in_pytorch] if best else [])

    def _ms_with(self, problem: Problem, kind: EpilogueKind) -> Callable[[Selection], float]:
        """Return a function of a selection: its time, measured or predicted, the epilogue in its store or a pass."""
        arch, target, backend, kind = self.arch, self.target, self.pool.backend, kind.computed

        def ms_of(selection: Selection) -> float:
            plain_ms = selection.measured_ms
            if plain_ms is None:
                assert selection.predicted_tflops is not None  # a model ranked it
                plain_ms = problem.flops / (selection.predicted_tflops * 1e9)
            if kind.is_empty:
                return plain_ms
            left = backend.leaves(selection.kernel, problem, target, kind)
            stored_ms = store_ms(kind.without(left), problem, target.variant, arch)
            stored_ms *= backend.store_factor(selection.kernel)
            return plain_ms + stored_ms + pass_ms(left, problem, target.variant, arch)

        return ms_of

    def require_kernel(self, problem: Problem) -> None:
        """Check that a kernel may be selected.

        Raises:
            KernelError: no kernel may be selected.
        """
        if not self.supported(problem).any():
            raise self._no_kernel(problem)

    def decide(self, problem: Problem) -> Decision:
        """Decide without looking at remembered decisions, and measure if the switches say so.

        Raises:
            KernelError: no kernel supports the problem.
        """
        known = self._fallback.known(problem)
        wish = self._fallback.wish(problem, self.supported)
        cached = None if known is None else self._fastest(problem, known.latency_ms, "cache")
        if known is not None and cached is not None and (wish is None or wish.kernels <= known.tried):
            return Decision(cached)
        cause, lasting = (None if self.model else self._why_no_model), True
        if wish is not None and wish.kernels:
            cause = wish.cause or cause
            result = self._fallback.measure({problem: wish.kernels})[problem]
            if result.entry is not None:
                best = self._fastest(problem, result.entry.latency_ms, "measured" if result.fresh else "cache")
                if best is not None:
                    return Decision(best, cause)
            cause = "; ".join(filter(None, (cause, result.why_not)))
            lasting = result.lasting
        if cached is not None:
            return Decision(cached, cause, lasting)
        return Decision(self._first(problem), cause, lasting)

    def _first(self, problem: Problem) -> Selection:
        """Return the first selection of :meth:`rank`, by a shortcut if the model alone decides."""
        if self.model is not None and self._allowed is None:
            order, tflops = self.model.best(problem, 1)
            if order:
                return Selection(*self._kernel(order[0]), tflops[0], "model")
        return self.rank(problem, 1)[0]

    def _fastest(self, problem: Problem, latency_ms: Iterable[tuple[int, float]], why: Why) -> Selection | None:
        return next(self._selectable(problem, latency_ms, why), None)

    def _timed(self, problem: Problem) -> list[Selection]:
        """Return the kernels that were measured on a problem and may be selected, fastest first."""
        known = self._fallback.known(problem)
        return [] if known is None else list(self._selectable(problem, known.latency_ms, "cache"))

    def _selectable(self, problem: Problem, latency_ms: Iterable[tuple[int, float]], why: Why) -> Iterator[Selection]:
        supported = self.supported(problem)
        return (Selection(*self._kernel(i), None, why, ms) for i, ms in latency_ms if supported[i])

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
        reason = unsupported(self.pool.default, problem, self.target.variant, self.target.dtype)
        allow = "" if self._allowed is None else " and the switches kernel, forbid and vendor allow"
        default = "" if reason is None else f"; the default one: {reason}"
        return KernelError(f"no kernel of {self.target.name} supports{allow} {problem}{default}")


def _allows(switches: Switches, pool: Pool, index: int) -> bool:
    kernel = pool.kernels[index]
    return switches.allows(kernel.config, pool.names[index], _is_in_pytorch(pool, index))


def _is_in_pytorch(pool: Pool, index: int) -> bool:
    return pool.backend.source_of(pool.kernels[index]).in_pytorch
