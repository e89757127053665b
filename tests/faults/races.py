"""Scenarios of processes that use one registry at once: promotions alone, and beside rollbacks and dispatchers."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

from faults.schedule import DONE, SAID, Scenario, forked
from faults.turns import Seat, Turns
from registry import lives
from registry.stress import Outcome, promote_one, write_models, wrong_reports
from small_model import table
from store import fresh_store
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher
from tilewise.dispatch.sources import _model_source
from tilewise.errors import ConfigError, RegistryUnavailableError
from tilewise.ops import Target
from tilewise.registry import read_history, registry_session, roll_back

_PROCESSES, _EACH = 4, 5
_PATIENCE_S = 600.0
_PROBLEMS = problems(Target.parse(CONV), 4)


@dataclass(frozen=True)
class Place:
    """The registry of a schedule, and the process that works on it.

    Attributes:
        folder: of the registry.
        process: its number.
    """

    folder: Path
    process: int

    @property
    def uri(self) -> str:
        """Return the URI of the registry."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"


Action = Callable[[Place], Outcome]


def promotes(number: int) -> Action:
    """Return the promotion of a model."""
    return lambda place: promote_one(_models()[number], place.folder / "reports")


def rolls_back(number: int | None) -> Action:
    """Return the rollback to a version, or to the previous one; other processes may leave nothing to do."""

    def act(place: Place) -> Outcome:
        try:
            return Outcome("", "rolled back", roll_back(CONV, number, reason=lives.REASON)[0].number)
        except ConfigError:
            return Outcome("", "not rolled back", 0)

    return act


def starts(place: Place) -> Outcome:
    """Start a dispatcher, which must select by a model. Turns of others may take longer than its own patience."""
    _model_source.ANSWER_S = _PATIENCE_S
    os.environ["TILEWISE_CACHE"] = str(place.folder / f"cache{place.process}")
    with Dispatcher.from_registry(CONV, uri=place.uri) as dispatcher:
        assert {dispatcher.select(problem).why for problem in _PROBLEMS} == {"model"}
        return Outcome("", "started", dispatcher.version or 0)


class Race:
    """Processes that each do one thing after the other in the same registry."""

    patience_s = _PATIENCE_S
    injector = Turns()

    def __init__(self, begin: Callable[[], Path], promoted: int, works: Sequence[Sequence[Action]]) -> None:
        """Take the registry that schedules begin with, its promoted versions, and the actions of each process."""
        self._begin, self._promoted, self._works = begin, promoted, works

    def load(self) -> None:
        """Fit all models, and fill the registry."""
        table()
        _models()
        self._begin()

    def prepare(self, folder: Path) -> None:
        """Copy the registry."""
        shutil.copytree(self._begin(), folder, dirs_exist_ok=True)

    def act(self, folder: Path) -> None:
        """Do everything that is not reported yet, at once."""
        ends = self.injector.race([partial(self._work, Place(folder, i)) for i in range(len(self._works))])
        if -signal.SIGKILL in ends:
            os.kill(os.getpid(), signal.SIGKILL)
        if SAID in ends:
            raise RegistryUnavailableError("a process gave up")
        assert set(ends) == {DONE}, ends

    def _work(self, place: Place, seat: Seat) -> None:
        seat.take()
        with registry_session(place.uri):
            for number, action in enumerate(self._works[place.process]):
                report = place.folder / f"{place.process}-{number}.report"
                if not report.exists():
                    with seat:
                        outcome = action(place)
                    report.write_text(json.dumps(asdict(outcome)))

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check production, its history and tags, and that all reports agree with them."""
        reports = [Outcome(**json.loads(path.read_text())) for path in sorted(folder.glob("*.report"))]
        uri = Place(folder, 0).uri
        wrong = lives.inspect(uri, folder) + lives.inspect_rollbacks(uri) + lives.half_copies(folder)
        with registry_session(uri):
            log = read_history(CONV)
            wrong += wrong_reports([r for r in reports if r.model], log, self._promoted, complete=complete)
        served = {entry.production for entry in log}
        wrong += [f"{r} never served" for r in reports if r.outcome == "started" and r.version not in served]
        missing = sum(map(len, self._works)) - len(reports)
        return wrong + ([f"{missing} actions did not end"] if complete and missing else [])


@cache
def _models() -> list[str]:
    return write_models(Path(tempfile.mkdtemp()), range(_PROCESSES * _EACH))


@cache
def _empty() -> Path:
    folder = Path(tempfile.mkdtemp())
    fresh_store(folder)
    return folder


@cache
def _three_promoted() -> Path:
    folder = Path(tempfile.mkdtemp())
    shutil.copytree(_empty(), folder, dirs_exist_ok=True)
    place = Place(folder, 0)

    def promote() -> None:
        with registry_session(place.uri):
            assert [promotes(i)(place).outcome for i in (0, 1, 3)] == ["promoted"] * 3

    assert forked(promote) == DONE
    return folder


SCENARIOS: dict[str, Scenario] = {
    "race_promote": Race(
        _empty, 0, [[promotes(i) for i in range(p, _PROCESSES * _EACH, _PROCESSES)] for p in range(_PROCESSES)]
    ),
    "race_rollback": Race(
        _three_promoted,
        3,
        [
            [promotes(4), promotes(5)],
            [rolls_back(None), rolls_back(1)],
            [rolls_back(2), promotes(7)],  # a bad one
            [starts, starts, starts],
        ],
    ),
}
