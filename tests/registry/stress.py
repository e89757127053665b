"""Stress test: many concurrent promotions from several processes, and the checks afterwards.

``python -m registry.stress URI [PROCESSES [EACH]]`` does it on any server, ``tests`` and ``src`` on the path.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_model import table, write_model
from synthetic import CONV
from tilewise.gate import SliceRule, Thresholds, parse_decision
from tilewise.registry import HistoryEntry, list_aliases, list_versions, read_history, registry_session
from tilewise.registry.promotion import Override, PromotionRules
from tilewise.registry.promotion import _promote as promotion
from tilewise.registry.promotion._logged_files import logged_decision

THRESHOLDS = Thresholds(
    floor_mean=10, floor_p10=0, slices=SliceRule(n_resamples=200), selection_time_factor=100, min_problems=1
)
RULES = PromotionRules(THRESHOLDS, 0.18, override=Override("small tables of tests"))
BAD_EVERY = 5  # one model in so many is much worse than the others, which are equal
READY = "ready to promote"  # a process says so, then waits for a line


@dataclass(frozen=True)
class Outcome:
    """The outcome of one promotion, as its process got it; without a version, the error that it ended with."""

    model: str
    outcome: str
    version: int | None


def write_models(folder: Path, numbers: Iterable[int]) -> list[str]:
    """Write a different model for each number; return their folders."""
    return [
        str(write_model(folder / f"model{i}", trees=20, sign=-1.0 if i % BAD_EVERY == 2 else 1.0, note=f"{folder} {i}"))
        for i in numbers
    ]


def promote_one(model: str, reports: Path) -> Outcome:
    """Promote a model in the registry of the session, without plots, which take longest."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    name = Path(model).name
    done = promotion.promote(model, table(), RULES, reports / name)
    return Outcome(name, done.outcome, done.version.number)


def stress(uri: str, folder: Path, processes: int, each: int, hosts: Sequence[Sequence[str]] = ((),)) -> list[Outcome]:
    """Promote ``processes * each`` different models, from all processes at once; see :func:`promoting`."""
    with promoting(uri, folder, processes, each, hosts) as promoters:
        return outcomes(promoters)


@contextmanager
def promoting(
    uri: str, folder: Path, processes: int, each: int, hosts: Sequence[Sequence[str]] = ((),)
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run processes that begin to promote at the same moment. They share nothing but the server, as hosts do.

    Args:
        uri: of the server.
        folder: each process writes models, reports and cache to a folder of its own below it.
        processes: number of processes; they take turns on the hosts.
        each: models of each process. Model number i is that of process ``i % processes``.
        hosts: starts of command lines that run the rest on another host.
    """
    with ExitStack() as stack:
        promoters = [
            stack.enter_context(
                _promoter(hosts[p % len(hosts)], uri, folder / str(p), range(p, processes * each, processes))
            )
            for p in range(processes)
        ]
        for process in promoters:
            assert process.stdout is not None
            assert f"{READY}\n" in process.stdout, process.args
        for process in promoters:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        yield promoters


def outcomes(promoters: Iterable[subprocess.Popen[str]]) -> list[Outcome]:
    """Wait for the end of all processes; return their reports."""
    reported: list[Outcome] = []
    for process in promoters:
        said, _ = process.communicate()
        assert process.returncode == 0, process.args
        reported += [Outcome(**outcome) for outcome in json.loads(said.splitlines()[-1])]
    return reported


@contextmanager
def _promoter(host: Sequence[str], uri: str, folder: Path, numbers: Iterable[int]) -> Iterator[subprocess.Popen[str]]:
    """Start ``registry.promoter`` on a host; end it if it still runs at the end."""
    folder.mkdir(parents=True)
    own = {"TILEWISE_CACHE": str(folder / "cache"), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [*host, sys.executable, "-m", "registry.promoter", uri, str(folder), *map(str, numbers)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | own, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def check(reported: list[Outcome], before: int) -> dict[str, int]:
    """Check that no update is lost, production is the last one promoted, and every decision is recorded.

    Args:
        reported: from :func:`stress`.
        before: entries that the target's history had.

    Returns:
        How many were promoted and refused.

    Raises:
        AssertionError: otherwise.
    """
    failed = [o for o in reported if o.version is None]
    assert not failed, failed
    log = read_history(CONV)
    wrong = wrong_reports(reported, log, before, complete=True)
    assert not wrong, wrong
    assert list_aliases(CONV)["production"] == log[-1].production
    assert list_aliases(CONV).get("previous") == log[-1].previous
    promoted = [o.version for o in reported if o.outcome == "promoted"]
    assert len(promoted) == len(log) - before
    return {"promoted": len(promoted), "refused": len(reported) - len(promoted)}


def wrong_reports(
    reported: Sequence[Outcome], log: Sequence[HistoryEntry], before: int = 0, *, complete: bool
) -> list[str]:
    """Return the promotions that were lost, not reported, not recorded, or judged against another production.

    Args:
        reported: by the processes that promoted; attempts that ended with an error promise nothing.
        log: the history of the target.
        before: entries before these promotions.
        complete: every process has reported its last promotion.
    """
    by_number = {v.number: v for v in list_versions(CONV)}
    told = [(o, o.version) for o in reported if o.version is not None]
    entries = [entry for entry in log[before:] if entry.action == "promoted"]
    lost = Counter(number for o, number in told if o.outcome == "promoted")
    lost.subtract(entry.production or 0 for entry in entries)
    wrong = [f"the promotion of version {number} is lost" for number, n in lost.items() if n > 0]
    unknown = {entry.production for entry in entries} - {number for _, number in told}
    wrong += [f"no process reports the promotion of version {number}" for number in unknown if complete]
    predecessor = {e.production: earlier.production for earlier, e in itertools.pairwise(log) if e in entries}
    served = {by_number[e.production].content_hash for e in log if e.production}
    for outcome, number in told:
        decision: Any = parse_decision(logged_decision(by_number[number]))
        recorded = "promoted" if outcome.outcome == "already_production" else outcome.outcome
        if not decision or decision["outcome"] != recorded:
            wrong.append(f"{outcome} is not recorded")
            continue
        if not by_number[number].tags["gate_decision"].startswith(recorded):
            wrong.append(f"{outcome} is not in the version's tags")
        against = decision["production"] and decision["production"]["content_hash"]
        over = predecessor.get(number)
        if outcome.outcome == "promoted" and against != (by_number[over].content_hash if over else None):
            wrong.append(f"{outcome} was not judged against version {over}, which it replaced")
        if outcome.outcome == "refused" and against is not None and against not in served:
            wrong.append(f"{outcome} was judged against a version that never served")
    return wrong


def main(uri: str, processes: str = "4", each: str = "5") -> None:
    """Stress a server, check it, print the counts."""
    with tempfile.TemporaryDirectory() as scratch, registry_session(uri):
        before = len(read_history(CONV))
        reported = stress(uri, Path(scratch), int(processes), int(each))
        print(check(reported, before))


if __name__ == "__main__":
    main(*sys.argv[1:])
