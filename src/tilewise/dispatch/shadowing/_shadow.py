"""A shadow: a second model that ranks beside production, and times both selections on the operands of some calls.

A call that needs no attention pays for a look-up and a few additions. Ranking and compiling happen in a thread. Kernels
are timed behind a call, on its stream, and a later call reads the events. A failure costs an observation, never a call.
docs/shadow.md describes the use.

Half of the time budget is a pool that pays for the first observations of each problem. The other half pays for
repetitions: each problem spends what its own calls earned, so cheap problems cannot starve expensive ones. Nothing is
random: which calls are timed follows from the calls alone.
"""

from __future__ import annotations

import logging
import statistics
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.background import Appender, Ticker, register_after_fork
from tilewise.dispatch.measuring import Measurer, is_capturing
from tilewise.dispatch.shadowing._challenger import Challenger
from tilewise.dispatch.shadowing._pair import Case, Pair, PairTimes
from tilewise.dispatch.shadowing._shadow_figures import ShadowFigures, shadow_figures
from tilewise.dispatch.shadowing._time_budget import NEVER, TimeAccount
from tilewise.dispatch.shadowing._timers import PendingTimes, ReplayTimer, Timer
from tilewise.dispatch.sources import Origin, cache_folder
from tilewise.errors import UnknownTargetError, one_line
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    import torch

_log = logging.getLogger(__name__)

SHADOW_JOURNAL = "shadow.jsonl"  # in the cache
_PAUSE_S = 0.25
_MAX_CASES = 4096  # per pair
_POOL_OBSERVATIONS = 2  # of each problem are paid by the pool
_RETRY_CALLS = 16
_MAX_WARNINGS = 100


class _Queued(NamedTuple):
    """A timing in progress, and the time reserved for it."""

    pending: PendingTimes
    pair: Pair
    case: Case
    account: TimeAccount
    reserved_ms: float


class Shadow:
    """A model that is compared with production.

    Args:
        target: of both models.
        switches: `shadow`, `shadow_budget` and `shadow_journal` configure the shadow.
        origin: of the model in production; None for the registry that the environment names.
        measurer: answers for a simulated GPU.

    Attributes:
        spent_ms: GPU time that timing took, in milliseconds.
    """

    def __init__(self, target: Target, switches: Switches, origin: Origin | None, measurer: Measurer) -> None:
        self._target, self._switches = target, switches
        self._challenger = Challenger(target, switches, origin, measurer)
        self._half_share = switches.shadow_budget / 2
        self._timer: Timer | None = ReplayTimer(measurer) if switches.simulate else None
        path = switches.shadow_journal or cache_folder() / SHADOW_JOURNAL
        self._appender = Appender(path, int(switches.journal_mb * 1e6))
        self._production: Generation | None = None
        self._candidate: Generation | None = None
        self._warnings: set[str] = set()
        self._ticker = Ticker(self._tick, _PAUSE_S, f"tilewise shadow {target.name}")
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Start with empty accounts and no cases in a forked child: the parent keeps its own."""
        self._refreshing, self._pairing = threading.Lock(), threading.Lock()
        self._preparing, self._timing = threading.Lock(), threading.Lock()
        self._waiting: deque[tuple[Pair, Case]] = deque()
        self._queued: _Queued | None = None
        self._pool, self.spent_ms = TimeAccount(), 0.0
        self._pair: Pair | None = None
        self._has_looked = self._candidate is not None
        if self._production is not None:
            self.follow(self._production)

    @property
    def content_hash(self) -> str | None:
        """Hash of the model that is compared with production; None if nothing is compared."""
        pair = self._pair
        return None if pair is None else pair.candidate.content_hash

    @property
    def served_ms(self) -> float:
        """GPU time that calls took, predicted or measured, in milliseconds."""
        return self._pool.served_ms

    def figures(self) -> ShadowFigures:
        """Return the figures of the present pair, for monitoring."""
        return shadow_figures(self._pair, self._pool.served_ms, self.spent_ms)

    def follow(self, production: Generation) -> None:
        """Compare with this generation from now on; a thread looks for the candidate if it is not loaded yet."""
        with self._pairing:
            self._production = production
            self._pair_up()
        if production.model is not None:
            self._ticker.start(at_once=True)

    def refresh(self) -> None:
        """Look for the candidate, or for a newer one; a failure is logged once and raises nothing."""
        with self._refreshing:
            candidate, self._has_looked = self._candidate, True
            try:
                candidate = self._challenger.newest(candidate)
            except UnknownTargetError as e:  # there is no such alias, or it was removed
                candidate = None
                self._warn_once(f"nothing is compared: {e}")
            except Exception as e:  # production goes on, whatever the error
                self._warn_once(f"its model cannot be loaded now: {e}")
            with self._pairing:
                self._candidate = candidate
                self._pair_up()

    def on_decision(self, generation: Generation, problem: Problem) -> None:
        """Note a new decision; with a simulated GPU it is compared without being run."""
        pair = self._pair
        if pair is not None and pair.production is generation and self._offline:
            self._add_case(pair, problem)

    def on_run(
        self, generation: Generation, problem: Problem, tensors: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:  # fmt: skip
        """Count a call that `generation` launched, and time both selections if a timing is due."""
        pair = self._pair
        if pair is None or pair.production is not generation:
            return
        try:
            case = pair.cases.get(problem) or self._add_case(pair, problem)
            if case is None:
                return
            case.calls += 1
            case.account.served_ms += case.call_ms
            self._pool.served_ms += case.call_ms
            if (case.calls >= case.due or self._queued is not None) and self._timing.acquire(blocking=False):
                try:
                    self._attend(pair, case, tensors, out)
                finally:
                    self._timing.release()
        except Exception as e:  # the call itself has succeeded
            self._warn_once(f"{type(e).__name__}: {e}")

    def prepare(self) -> None:
        """Let the candidate rank the waiting problems, and compile the kernels that it selects."""
        with self._preparing:
            while self._waiting:
                pair, case = self._waiting.popleft()
                try:
                    if case.candidate is None and case.error is None:  # two threads may have added the case
                        self._rank(pair, case)
                except Exception as e:
                    self._fail(pair, case, e)

    def close(self) -> None:
        """Write all observations, and compare nothing more."""
        self._ticker.stop()
        self.prepare()
        with self._timing:
            self._collect_times()
        with self._pairing:
            pair, self._pair, self._production = self._pair, None, None
        if pair is not None:
            self._report_remaining(pair)
        self._appender.close()

    def _tick(self) -> None:
        """Do the background work."""
        if not self._has_looked:
            self.refresh()
        self.prepare()

    def _pair_up(self) -> None:
        """Pair the current generations; the caller holds the lock."""
        previous = self._pair
        if (
            previous is not None
            and previous.production is self._production
            and previous.candidate is self._candidate
        ):  # fmt: skip
            return
        self._pair = pair = Pair.of(self._production, self._candidate)
        if pair is not None and self._offline:
            for problem in pair.production.decisions:
                self._add_case(pair, problem)
        if previous is not None:
            self._report_remaining(previous)

    def _add_case(self, pair: Pair, problem: Problem) -> Case | None:
        """Add a case, and queue it for ranking if production's model decided."""
        selection = pair.production.decisions.get(problem)
        if selection is None or len(pair.cases) >= _MAX_CASES:
            return None
        case = pair.cases.setdefault(problem, Case(problem, selection))
        case.calls += self._offline  # nothing runs offline, so a decision counts as a call
        if selection.why == "model" and case.candidate is None:
            self._waiting.append((pair, case))
        return case

    def _rank(self, pair: Pair, case: Case) -> None:
        case.candidate = pair.candidate.rank(case.problem, 1)[0]
        timer = self._get_timer()
        if not case.agrees:
            timer.prepare(pair, case)
            case.cost_ms = timer.cost_ms(pair, case)
        case.due = 0
        if timer.offline:
            with self._timing:
                self._attend(pair, case, (), None)

    def _attend(self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> None:
        """Collect the times in progress, and start a timing if the case is due and affordable; one thread at a time."""
        if is_capturing():
            return
        self._collect_times()
        if self._queued is not None or case.calls < case.due:
            return
        if case.agrees:
            self._report(pair, case, None)
            case.due = max(2 * case.calls, 1)
            return
        account = self._pool if case.observed < _POOL_OBSERVATIONS else case.account
        if not account.affords(case.cost_ms, self._half_share):
            wait = account.calls_until(case.cost_ms, self._half_share, case.call_ms)
            case.due = case.calls + (min(wait, _RETRY_CALLS) if account is self._pool else wait)
            return
        try:
            pending = self._get_timer().start(pair, case, tensors, out)
        except Exception as e:
            self._fail(pair, case, e)
            return
        case.due = case.calls + _RETRY_CALLS
        if pending is not None:
            account.gone_ms += case.cost_ms
            self._queued = _Queued(pending, pair, case, account, case.cost_ms)
            self._collect_times()

    def _collect_times(self) -> None:
        """Take the times of the timing in progress, if they are available."""
        if self._queued is None:
            return
        pending, pair, case, account, reserved_ms = self._queued
        try:
            times = pending()
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
            case.call_ms, case.candidate_ms = map(statistics.median, (times.production, times.candidate))
            case.observed += 1
            self._report(pair, case, times)
        wait = case.account.calls_until(case.cost_ms, self._half_share, case.call_ms)
        soon = case.observed < _POOL_OBSERVATIONS or self._offline
        case.due = max(2 * case.calls, 1) if soon else case.calls + wait

    def _fail(self, pair: Pair, case: Case, error: Exception) -> None:
        """Stop comparing this problem."""
        case.due, case.error = NEVER, one_line(error)
        self._warn_once(f"{case.problem} is not compared: {case.error}")
        self._report(pair, case, None)

    def _report(self, pair: Pair, case: Case, times: PairTimes | None) -> None:
        """Append an observation to the journal."""
        device = "" if times is None or self._timer is None else self._timer.device
        self._appender.put(pair.observation(case, times, device).dumps)

    def _report_remaining(self, pair: Pair) -> None:
        """Report the calls that no observation contains yet."""
        for case in list(pair.cases.values()):
            if case.candidate is not None and case.error is None and case.calls > case.reported:
                self._report(pair, case, None)

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings and len(self._warnings) < _MAX_WARNINGS:
            self._warnings.add(text)
            _log.warning("shadow=%s: %s", self._switches.shadow, text)

    @property
    def _offline(self) -> bool:
        return self._timer is not None and self._timer.offline

    def _get_timer(self) -> Timer:
        if self._timer is None:
            from tilewise.dispatch.shadowing._gpu_timer import GpuTimer  # imports torch, which has been used by now

            self._timer = GpuTimer()
        return self._timer
