"""Races repeat their order by its seed, let one process at a time have its turn, and hit the right one."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.races import SCENARIOS
from faults.schedule import DONE, Fault, forked
from faults.turns import KINDS, Seat, Turns
from synthetic import CONV
from tilewise.registry import read_history, registry_session

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
_TURNS, _PROCESSES = 5, 3


def _write(log: Path, name: str, seat: Seat) -> None:
    """Write one letter at the begin and one at the end of each turn."""
    with seat:
        for turn in range(_TURNS):
            for letter in (name, name.upper()):
                with seat.turn(), seat.turn(), log.open("a") as file:
                    file.write(letter)
                    file.flush()
                    time.sleep(0.001 * (turn % 2))
                    file.write(letter)


def _race(log: Path, fault: Fault | None) -> tuple[str, list[int], list[int]]:
    log.write_text("")
    turns = Turns()
    turns.arm(log.parent, fault)
    ends = turns.race([partial(_write, log, "abc"[i]) for i in range(_PROCESSES)])
    return log.read_text(), ends, turns.order


@pytest.mark.long
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(0, 1 << 30))
def test_a_seed_repeats_the_order_and_no_turns_overlap(tmp_path: Path, kind: str, at: int, seed: int) -> None:
    fault = Fault(kind, at, seed)
    first, again = (_race(tmp_path / "log", fault) for _ in range(2))
    assert first == again
    text, ends, _ = first
    assert text[::2] == text[1::2]
    own = ["".join(c for c in text if c.lower() == name) for name in "abc"]
    whole = [2 * name + 2 * name.upper() for name in "abc"]
    assert all((_TURNS * whole[i]).startswith(own[i]) for i in range(_PROCESSES))
    assert [own[i] == _TURNS * whole[i] for i in range(_PROCESSES)] == [end == DONE for end in ends]
    assert set(ends) <= {DONE, -signal.SIGKILL}


def test_seeds_give_different_orders(tmp_path: Path) -> None:
    assert len({_race(tmp_path / "log", Fault("order", 1, seed))[0] for seed in range(5)}) == 5


def test_without_a_fault_the_first_goes_on(tmp_path: Path) -> None:
    assert "".join(dict.fromkeys(_race(tmp_path / "log", None)[0].lower())) == "abc"


@pytest.mark.parametrize("at", [1, 7, 20])
def test_the_process_whose_step_it_is_dies(tmp_path: Path, at: int) -> None:
    text, ends, order = _race(tmp_path / "log", Fault("order, one killed", at, 3))
    dead = order[at - 1]
    assert [end != DONE for end in ends] == [i == dead for i in range(_PROCESSES)]
    assert text.lower().count("abc"[dead]) == 2 * order[: at - 1].count(dead)


def test_the_process_whose_step_it_is_waits_until_its_pause_is_over(tmp_path: Path) -> None:
    """A pause is as long as 40 turns at least, so the two others are done before."""
    _, ends, order = _race(tmp_path / "log", Fault("order, one paused", 2, 3))
    assert ends == [DONE] * _PROCESSES
    waits, later = order[1], order[2:]
    assert set(later[-later.count(waits) :]) == {waits}


def test_a_race_s_pauses_take_no_time() -> None:
    def wait(seconds: float) -> Callable[[Seat], None]:
        def work(seat: Seat) -> None:
            seat.sleep(seconds)
            assert seat.monotonic() >= seconds

        return work

    began = time.monotonic()
    assert Turns().race([wait(50.0), wait(3600.0)]) == [DONE] * 2
    assert time.monotonic() - began < 30


@pytest.mark.long
def test_a_seed_repeats_the_history_of_a_registry(tmp_path: Path) -> None:
    """Also the reports of all processes, which state versions and the reasons of errors."""
    race, found = SCENARIOS["race_rollback"], []
    race.load()
    for i in range(2):
        folder = tmp_path / str(i)
        race.prepare(folder)
        forked(partial(race.act, folder), partial(race.injector.arm, folder, Fault("order, one paused", 150, 12)))
        with registry_session(f"sqlite:///{folder / 'mlflow.db'}"):
            history = [(e.over, e.production, e.previous, e.action, e.applied) for e in read_history(CONV)]
        found.append((history, {path.name: path.read_text() for path in folder.glob("*.report")}))
    assert found[0] == found[1]
    assert len(found[0][0]) > 3
