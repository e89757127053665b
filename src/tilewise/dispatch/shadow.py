"""Shadowing: a second model ranks beside production, and some calls time both picks on their own operands.

A call that needs nothing pays a look-up and a few additions. Ranking and compiling happen in a thread; a kernel is
timed behind the call that it belongs to, on its stream, and the events are read by a later call. Whatever goes wrong
costs an observation, never a call. docs/shadow.md tells how to use it.

Half of the budget is a pool that pays for the first observations of each problem, the other half repeats: each problem
pays with its own calls, so that no cheap one starves an expensive one. Both only spend what calls have earned, and
which calls are sampled follows from the calls alone: nothing is random.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tilewise.dispatch import forks
from tilewise.dispatch.appender import Appender
from tilewise.dispatch.budget import NEVER, Account
from tilewise.dispatch.challenger import Challenger
from tilewise.dispatch.folder import cache_folder
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.measure import Measurer, capturing
from tilewise.dispatch.origin import Origin
from tilewise.dispatch.pair import Case, Pair, Times
from tilewise.dispatch.switches import Switches
from tilewise.dispatch.ticker import Ticker
from tilewise.dispatch.timers import RecordedTimer, Running, Timer
from tilewise.errors import UnknownTargetError, one_line
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

FILE = "shadow.jsonl"  # in the cache
_PAUSE_S = 0.25
_MOST = 4096  # problems of a pair
_FIRST = 2  # observations of a problem that the pool pays
_SOON = 16  # calls
_MOST_SAID = 100  # warnings


class _Queued(NamedTuple):
    """A timing that is under way, and what was reserved for it."""

    running: Running
    pair: Pair
    case: Case
    account: Account
    reserved_ms: float


class Shadow:
    """The model beside production; see the module.

    Args:
        target: what both select for.
        switches: the dispatcher's; `shadow`, `shadow_budget` and `shadow_journal` are for this.
        origin: of the model in production; None: the registry that the environment names.
        measurer: answers where a GPU is simulated.
    """

    def __init__(self, target: Target, switches: Switches, origin: Origin | None, measurer: Measurer) -> None:
        self._target, self._switches = target, switches
        self._challenger = Challenger(target, switches, origin, measurer)
        self._half = switches.shadow_budget / 2
        self._timer: Timer | None = RecordedTimer(measurer) if switches.simulate else None
        path = switches.shadow_journal or cache_folder() / FILE
        self._appender = Appender(path, int(switches.journal_mb * 1e6))
        self._production: Generation | None = None
        self._candidate: Generation | None = None
        self._said: set[str] = set()
        self._ticker = Ticker(self._tick, _PAUSE_S, f"tilewise shadow {target.name}")
        self.after_fork()
        forks.register(self)

    def after_fork(self) -> None:
        """Begin anew in a child: cases, accounts and what is under way are the parent's."""
        self._refreshing, self._pairing = threading.Lock(), threading.Lock()
        self._preparing, self._busy = threading.Lock(), threading.Lock()
        self._waiting: deque[tuple[Pair, Case]] = deque()
        self._queued: _Queued | None = None
        self._pool, self.spent_ms = Account(), 0.0
        self._pair: Pair | None = None
        self._looked = self._candidate is not None
        if self._production is not None:
            self.follow(self._production)

    @property
    def content_hash(self) -> str | None:
        """Identity of the model that is compared with production; None where there is nothing to compare."""
        pair = self._pair
        return None if pair is None else pair.candidate.content_hash

    @property
    def served_ms(self) -> float:
        """What calls took, as far as known; :attr:`spent_ms` is what timing took."""
        return self._pool.served_ms

    def follow(self, production: Generation) -> None:
        """Compare with this generation from now on; a thread looks for the model beside it, where it is not there."""
        with self._pairing:
            self._production = production
            self._pair_up()
        if production.model is not None:
            self._ticker.start(at_once=True)

    def refresh(self) -> None:
        """Look for the model beside production, or for a newer one; what goes wrong is said once."""
        with self._refreshing:
            candidate, self._looked = self._candidate, True
            try:
                candidate = self._challenger.newest(candidate)
            except UnknownTargetError as e:  # no such alias, or not any more
                candidate = None
                self._say(f"nothing is compared: {e}")
            except Exception as e:  # whatever it is, production goes on
                self._say(f"its model cannot be had now: {e}")
            with self._pairing:
                self._candidate = candidate
                self._pair_up()

    def decided(self, generation: Generation, problem: Problem) -> None:
        """Note a new decision: where a GPU is simulated, it is compared without being run."""
        pair = self._pair
        if pair is not None and pair.production is generation and self._offline:
            self._meet(pair, problem)

    def ran(self, generation: Generation, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Count a call that was launched by `generation`, and time both picks where it is its turn."""
        pair = self._pair
        if pair is None or pair.production is not generation:
            return
        try:
            case = pair.cases.get(problem) or self._meet(pair, problem)
            if case is None:
                return
            case.calls += 1
            case.account.served_ms += case.ms
            self._pool.served_ms += case.ms
            if (case.calls >= case.due or self._queued is not None) and self._busy.acquire(blocking=False):
                try:
                    self._attend(pair, case, tensors, out)
                finally:
                    self._busy.release()
        except Exception as e:  # the call is done, and well
            self._say(f"{type(e).__name__}: {e}")

    def prepare(self) -> None:
        """Let the candidate rank what waits, and compile what it picks."""
        with self._preparing:
            while self._waiting:
                pair, case = self._waiting.popleft()
                try:
                    if case.rival is None and case.error is None:  # else two threads met it at once
                        self._rank(pair, case)
                except Exception as e:
                    self._fail(pair, case, e)

    def close(self) -> None:
        """Write what is known; nothing more is compared."""
        self._ticker.stop()
        self.prepare()
        with self._busy:
            self._settle()
        with self._pairing:
            pair, self._pair, self._production = self._pair, None, None
        if pair is not None:
            self._tell_rest(pair)
        self._appender.close()

    def _tick(self) -> None:
        """What is done in the background."""
        if not self._looked:
            self.refresh()
        self.prepare()

    def _pair_up(self) -> None:
        """A pair of what is there now; under the lock."""
        before = self._pair
        if before is not None and before.production is self._production and before.candidate is self._candidate:
            return
        self._pair = pair = Pair.of(self._production, self._candidate)
        if pair is not None and self._offline:
            for problem in pair.production.known:
                self._meet(pair, problem)
        if before is not None:
            self._tell_rest(before)

    def _meet(self, pair: Pair, problem: Problem) -> Case | None:
        """A new case, to be ranked in the background if it is production's model that decided."""
        selection = pair.production.known.get(problem)
        if selection is None or len(pair.cases) >= _MOST:
            return None
        case = pair.cases.setdefault(problem, Case(problem, selection))
        case.calls += self._offline  # where nothing has to run, a decision counts
        if selection.why == "model" and case.rival is None:
            self._waiting.append((pair, case))
        return case

    def _rank(self, pair: Pair, case: Case) -> None:
        case.rival = pair.candidate.rank(case.problem, 1)[0]
        timer = self._the_timer()
        if not case.agrees:
            timer.prepare(pair, case)
            case.cost_ms = timer.cost_ms(pair, case)
        case.due = 0
        if timer.offline:
            with self._busy:
                self._attend(pair, case, (), None)

    def _attend(self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> None:
        """What a call that is due does; one thread at a time."""
        if capturing():
            return
        self._settle()
        if self._queued is not None or case.calls < case.due:
            return
        if case.agrees:
            self._tell(pair, case, None)
            case.due = max(2 * case.calls, 1)
            return
        account = self._pool if case.observed < _FIRST else case.account
        if not account.affords(case.cost_ms, self._half):
            wait = account.calls_until(case.cost_ms, self._half, case.ms)
            case.due = case.calls + (min(wait, _SOON) if account is self._pool else wait)
            return
        try:
            running = self._the_timer().start(pair, case, tensors, out)
        except Exception as e:
            self._fail(pair, case, e)
            return
        case.due = case.calls + _SOON
        if running is not None:
            account.gone_ms += case.cost_ms
            self._queued = _Queued(running, pair, case, account, case.cost_ms)
            self._settle()

    def _settle(self) -> None:
        """Take the times of what was queued, if they are there."""
        if self._queued is None:
            return
        running, pair, case, account, reserved_ms = self._queued
        try:
            times = running()
        except Exception as e:
            self._queued = None
            self._fail(pair, case, e)
            return
        if times is None:
            return
        self._queued = None
        account.gone_ms += times.cost_ms - reserved_ms
        self.spent_ms += times.cost_ms
        case.cost_ms = times.cost_ms
        if times.production:
            case.ms = statistics.median(times.production)
            case.observed += 1
            self._tell(pair, case, times)
        wait = case.account.calls_until(case.cost_ms, self._half, case.ms)
        case.due = max(2 * case.calls, 1) if case.observed < _FIRST or self._offline else case.calls + wait

    def _fail(self, pair: Pair, case: Case, error: Exception) -> None:
        """Compare this problem no more."""
        case.due, case.error = NEVER, one_line(error)
        self._say(f"{case.problem} is not compared: {case.error}")
        self._tell(pair, case, None)

    def _tell(self, pair: Pair, case: Case, times: Times | None) -> None:
        """An observation into the journal."""
        device = "" if times is None or self._timer is None else self._timer.device
        self._appender.put(pair.observation(case, times, device).dumps)

    def _tell_rest(self, pair: Pair) -> None:
        """The calls that no observation told of yet."""
        for case in list(pair.cases.values()):
            if case.rival is not None and case.error is None and case.calls > case.told:
                self._tell(pair, case, None)

    def _say(self, text: str) -> None:
        if text not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(text)
            _log.warning("shadow=%s: %s", self._switches.shadow, text)

    @property
    def _offline(self) -> bool:
        return self._timer is not None and self._timer.offline

    def _the_timer(self) -> Timer:
        if self._timer is None:
            from tilewise.dispatch.gpu_timer import GpuTimer  # torch: something ran, so it is there

            self._timer = GpuTimer()
        return self._timer
