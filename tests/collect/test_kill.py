"""After any number of kills, the same command resumes, and the table equals that of an undisturbed run."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from collect.fake import SLOW
from collect.sweep import HurriedEngine
from tilewise.collect import Item, Plan, Timing, collect_with_engine
from tilewise.collect._run import journal_path
from tilewise.ops import GroupedConvProblem

PATIENCE_S = 60.0


@pytest.fixture
def long(plan: Plan) -> Plan:
    """Plan of twenty problems, long enough to be killed several times."""
    more = tuple(Item(GroupedConvProblem(n, 8, 8, 1, 8, 8, 3, 3), "test") for n in range(6, 21))
    return dataclasses.replace(plan, items=(*plan.items, *more))


def start(plan: Path, output: Path) -> subprocess.Popen[bytes]:
    """Start a run that leads its own process group."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "collect.sweep", str(plan), str(output)]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def measured(journal: Path) -> int:
    return journal.read_bytes().count(b'{"done"') if journal.exists() else 0


def alive(group: int) -> list[int]:
    """Return the processes of a group that are not zombies."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, in_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(in_group) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.long
def test_a_run_killed_again_and_again_ends_like_an_undisturbed_one(
    long: Plan, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = collect_with_engine(
        long, tmp_path / "undisturbed.parquet", HurriedEngine, [0], lambda what, done, of: None
    )
    assert undisturbed.by_status == {"ok": 116, "runtime_error": 3, "wrong_result": 1}
    monkeypatch.setenv(SLOW, "0.02")
    plan, output = tmp_path / "plan.json", tmp_path / "out.parquet"
    journal = journal_path(output)
    plan.write_text(long.dumps())
    for more in (1, 2, 1):
        before = measured(journal)
        run = start(plan, output)
        wait_until(lambda enough=before + more: measured(journal) >= enough)  # type: ignore[misc]
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()
        assert not output.exists()
    assert start(plan, output).wait(PATIENCE_S) == 0
    assert not journal.exists()
    mine = ["measured_at", "hw_uuid"]
    assert undisturbed.path is not None
    killed, whole = (pq.read_table(path).drop_columns(mine) for path in (output, undisturbed.path))
    assert killed.equals(whole)
    assert sorted(p.name for p in tmp_path.glob("*out.parquet*")) == ["out.parquet"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_workers_do_not_outlive_a_killed_coordinator(
    long: Plan, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with a hanging kernel would hold the device for ever."""
    monkeypatch.setenv(SLOW, str(2 * PATIENCE_S))
    plan = tmp_path / "plan.json"
    plan.write_text(dataclasses.replace(long, timing=Timing(kernel_timeout_s=4 * PATIENCE_S)).dumps())
    run = start(plan, tmp_path / "out.parquet")
    wait_until(lambda: log.exists() and log.read_text().count("begun") == 2)
    assert len(alive(run.pid)) >= 3
    run.kill()
    run.wait()
    wait_until(lambda: not alive(run.pid))
