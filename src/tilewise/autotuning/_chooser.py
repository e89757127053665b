"""The choice of a configuration for a new key: remembered times, a model's ranking, or measuring."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal, NamedTuple, Protocol

from tilewise.autotuning._aside import aside
from tilewise.autotuning._call import Call
from tilewise.autotuning._configurations import Configuration
from tilewise.autotuning._machines import device_id, machine_of
from tilewise.autotuning._measure_call import Bench, measure_call
from tilewise.autotuning._pruning import Pruning
from tilewise.autotuning._ranks import agreed, is_distributed
from tilewise.autotuning.records import TunedContext, TunedEntry, TunedKey, TunedStore
from tilewise.collect import Outcome, percentile
from tilewise.dispatch.background import register_after_fork
from tilewise.dispatch.measuring import Machine, is_capturing
from tilewise.errors import ConfigError, UsageError

_log = logging.getLogger(__name__)
Why = Literal["only", "cache", "model", "measured", "default"]
Measure = Literal["call", "aside", "never"]


class Choice(NamedTuple):
    """A configuration and the reason for it.

    Attributes:
        configuration: the configuration.
        why: ``only``: there is no other; ``cache``: the fastest in an earlier measurement; ``model``: the first by the
            model; ``measured``: the fastest in a measurement just made; ``default``: the first of the list.
        lasting: whether the choice may be remembered for the key.
    """

    configuration: Configuration
    why: Why
    lasting: bool = True


class Advice(NamedTuple):
    """A model's opinion of a key.

    Attributes:
        ranked: names of configurations, best first.
        unsure: number of the first ones to measure, as the model cannot tell them apart; 1 if it is sure.
    """

    ranked: Sequence[str]
    unsure: int


class Adviser(Protocol):
    """A model of the kernel."""

    def advise(self, key: TunedKey, *, quickly: bool = False) -> Advice | None:
        """Return the model's opinion of a key; None if it has none. `quickly`: without telling how sure it is."""


@dataclass(frozen=True)
class Policy:
    """When measuring is allowed.

    Attributes:
        measure: ``call``: a new key is measured in its first call; ``aside``: by another thread, with arguments of its
            own, while the model's choice or the default serves; ``never``: the model decides, or the default.
        top: most configurations to measure where the model is unsure.
        wait: whether to wait while another process measures the same key, instead of taking the default meanwhile.
        keep: whether measurements are kept on disk.

    Raises:
        ConfigError: a value is out of its range.
    """

    measure: Measure = "call"
    top: int = 8
    wait: bool = True
    keep: bool = True

    def __post_init__(self) -> None:
        if self.measure not in ("call", "aside", "never"):
            raise ConfigError(f"measure must be call, aside or never, got {self.measure!r}")
        if not isinstance(self.top, int) or self.top < 1:
            raise ConfigError(f"top must be a whole number of 1 or more, got {self.top!r}")


@dataclass(eq=False)
class Chooser:
    """Chooses among the configurations of one kernel; threads may share it.

    Attributes:
        kernel: the kernel's name.
        code: gives the hash of its code.
        configurations: all of them, the default first.
        pruning: leaves out some of them.
        bench: how to time.
        policy: when to measure.
        version: see :class:`TunedContext`.
        adviser: gives the model for a key; None without a model.
        remake: makes a call with a key and tensors of its own; None if that is impossible.
    """

    kernel: str
    code: Callable[[], str]
    configurations: Sequence[Configuration]
    pruning: Pruning = field(default_factory=Pruning)
    bench: Bench = field(default_factory=Bench)
    policy: Policy = field(default_factory=Policy)
    version: str = ""
    adviser: Callable[[TunedContext, TunedKey], Adviser | None] = lambda context, key: None
    remake: Callable[[TunedKey], Call | None] = lambda key: None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()  # one measurement at a time in this process
        self._stores: dict[Machine, TunedStore] = {}
        self._by_name = {c.name: c for c in self.configurations}
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()

    def choose(self, call: Call, *, again: bool = False) -> Choice:
        """Return the configuration of a call whose key is new to this process.

        A model answers at once, and tells how sure it is when the key comes again: that takes ten times as long.

        Args:
            call: the call.
            again: whether an earlier choice for its key held for the moment only.

        Raises:
            KernelError: pruning keeps no configuration.
        """
        candidates = self.pruning.candidates(self.configurations, call)
        if len(candidates) == 1:
            return Choice(candidates[0], "only")
        if call.key is None:
            return self._measured_here(call, candidates)
        store, key = self.store(call), call.key
        why: list[Choice] = []

        def decide() -> str:
            choice = self._decide(call, candidates, store, again)
            why.append(choice)
            return choice.configuration.name

        name = agreed(f"{store.context.folder}/{key.file}/{again}", decide)
        return why[0] if why else Choice(self._by_name[name], "cache", lasting=again)

    def measure(self, call: Call) -> TunedEntry:
        """Measure every configuration for a call, and return the record without keeping it.

        Raises:
            UsageError: the call's key cannot be kept in a file.
        """
        if call.key is None:
            raise UsageError(f"{self.kernel}: the key must consist of whole numbers and texts to be recorded")
        return self._entry(
            call, self.store(call).context, [c.name for c in self.pruning.candidates(self.configurations, call)]
        )

    def store(self, call: Call) -> TunedStore:
        """Return the records of a call's context."""
        machine = machine_of(call, self.code())
        known = self._stores.get(machine)
        if known is None:
            known = self._stores[machine] = TunedStore(TunedContext(self.kernel, machine, self.version))
        return known

    def _decide(
        self, call: Call, candidates: Sequence[Configuration], store: TunedStore, again: bool
    ) -> Choice:  # fmt: skip
        assert call.key is not None
        context, names = store.context, [c.name for c in candidates]
        entry = store.read(call.key) if self.policy.keep else None
        if entry is not None and entry.tried.issuperset(names):
            return self._fastest(entry, names, "cache")
        only_model = self.policy.measure == "never"
        adviser = self.adviser(context, call.key)
        advice = None if adviser is None else adviser.advise(call.key, quickly=only_model or not again)
        ranked = names if advice is None else [n for n in advice.ranked if n in names] or names
        wanted = ranked if advice is None else ranked[: min(advice.unsure, self.policy.top)]
        if entry is not None and entry.tried.issuperset(wanted):
            return self._fastest(entry, names, "cache")
        if advice is not None and (only_model or len(wanted) == 1):
            return Choice(self._by_name[ranked[0]], "model", lasting=only_model or again)
        if only_model:
            return Choice(self._by_name[(entry and entry.fastest(names)) or ranked[0]], "default")
        if self.policy.measure == "aside" and not is_distributed():
            aside.submit((context, call.key.file), partial(self._measure_aside, call.key, store, wanted))
            return Choice(self._by_name[ranked[0]], "default", lasting=False)
        measured = None if is_capturing() else self._measure(call, store, names, wanted)
        return measured or Choice(self._by_name[ranked[0]], "default", lasting=False)

    def _measure(
        self, call: Call, store: TunedStore, names: Sequence[str], wanted: Sequence[str]
    ) -> Choice | None:  # fmt: skip
        """Measure the wanted configurations, unless another process does; None if the default must do meanwhile."""
        assert call.key is not None
        if not self.policy.keep:
            with self._lock:
                return self._fastest(self._entry(call, store.context, wanted), names)
        with self._lock, store.lock(call.key, wait=self.policy.wait) as locked:
            if not locked:
                return None
            entry = store.read(call.key)
            missing = [n for n in wanted if entry is None or n not in entry.tried]
            why: Why = "measured" if missing else "cache"
            if missing:
                with store.device(device_id(call)):
                    entry = store.extend(self._entry(call, store.context, missing))
            assert entry is not None
            return self._fastest(entry, names, why)

    def _measure_aside(self, key: TunedKey, store: TunedStore, wanted: Sequence[str]) -> None:
        """Measure a key with other tensors than the program's, and keep the result for later calls."""
        call = self.remake(key)
        if call is None or call.key != key:
            made = "none are defined" if call is None else f"they make {call.key}"
            _log.warning("%s: %s is not measured aside: its inputs must make such a call; %s", self.kernel, key, made)
            return
        # While a graph is captured, other threads of the program could not allocate memory.
        bench = replace(self.bench, graphs=False)
        with self._lock, store.lock(key, wait=True), store.device(device_id(call)):
            entry = store.read(key)
            missing = [self._by_name[n] for n in wanted if entry is None or n not in entry.tried]
            if missing:
                outcomes = measure_call(call, missing, bench)
                store.extend(TunedEntry.of(store.context, key, outcomes, _now()))

    def _entry(self, call: Call, context: TunedContext, names: Sequence[str]) -> TunedEntry:
        assert call.key is not None
        outcomes = self._outcomes(call, [self._by_name[n] for n in names])
        return TunedEntry.of(context, call.key, outcomes, _now())

    def _fastest(self, entry: TunedEntry, names: Sequence[str], why: Why = "measured") -> Choice:
        fastest = entry.fastest(names)
        if fastest is None:
            _log.warning("%s: %s: no configuration ran: %s", self.kernel, entry.key, next(iter(entry.failed.values())))
            return Choice(self._by_name[names[0]], "default")
        return Choice(self._by_name[fastest], why)

    def _measured_here(self, call: Call, candidates: Sequence[Configuration]) -> Choice:
        """Measure a call whose key cannot be kept in a file."""
        if self.policy.measure == "never" or is_capturing():
            return Choice(candidates[0], "default", lasting=False)
        with self._lock:
            outcomes = self._outcomes(call, candidates)
        times = {n: percentile(o.samples.times, 50) for n, o in outcomes.items() if o.samples is not None}
        fastest = min(times, key=times.__getitem__, default=candidates[0].name)
        return Choice(self._by_name[fastest], "measured" if times else "default")

    def _outcomes(self, call: Call, configurations: Sequence[Configuration]) -> dict[str, Outcome]:
        outcomes = measure_call(call, configurations, self.bench)
        for name, outcome in outcomes.items():
            if outcome.samples is None:
                _log.info("%s: %s: %s: %s", self.kernel, name, outcome.status, outcome.error)
        return outcomes


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
