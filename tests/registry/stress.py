"""Stress test: many concurrent promotions from several processes, and the checks afterwards.

``python -m registry.stress URI [PROCESSES [EACH]]`` does it on any server, ``tests`` and ``src`` on the path.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
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


@dataclass(frozen=True)
class Outcome:
    """The outcome of one promotion, as its process got it."""

    model: str
    outcome: str
    version: int


def write_models(folder: Path, number: int) -> list[str]:
    """Write so many different models; return their folders."""
    return [
        str(write_model(folder / f"model{i}", trees=20, sign=-1.0 if i % BAD_EVERY == 2 else 1.0, note=f"{folder} {i}"))
        for i in range(number)
    ]


def promote_one(model: str, reports: Path) -> Outcome:
    """Promote a model in the registry of the session, without plots, which take longest."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    name = Path(model).name
    done = promotion.promote(model, table(), RULES, reports / name)
    return Outcome(name, done.outcome, done.version.number)


def promote_all(uri: str, reports: str, models: list[str]) -> list[Outcome]:
    """Promote models one after the other in one process."""
    with registry_session(uri):
        return [promote_one(model, Path(reports)) for model in models]


def _begin(environment: dict[str, str], caches: Path) -> None:
    """Give a process a cache of its own: like a host, it shares nothing with the others but the server."""
    os.environ.update(environment | {"TILEWISE_CACHE": str(caches / str(os.getpid()))})


def stress(uri: str, folder: Path, processes: int, each: int) -> list[Outcome]:
    """Promote ``processes * each`` different models, from all processes at once."""
    models = write_models(folder, processes * each)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # the fork server may be an earlier test's, and know neither server nor password
    with ProcessPoolExecutor(processes, context, _begin, (dict(os.environ), folder / "caches")) as pool:
        shares = [models[i::processes] for i in range(processes)]
        reported = pool.map(promote_all, [uri] * processes, [str(folder / "reports")] * processes, shares)
        return [outcome for share in reported for outcome in share]


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
    log = read_history(CONV)
    assert wrong_reports(reported, log, before, complete=True) == []
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
        reported: by the processes that promoted.
        log: the history of the target.
        before: entries before these promotions.
        complete: every process has reported its last promotion.
    """
    by_number = {v.number: v for v in list_versions(CONV)}
    entries = [entry for entry in log[before:] if entry.action == "promoted"]
    lost = Counter(o.version for o in reported if o.outcome == "promoted")
    lost.subtract(entry.production or 0 for entry in entries)
    wrong = [f"the promotion of version {number} is lost" for number, n in lost.items() if n > 0]
    unknown = {entry.production for entry in entries} - {o.version for o in reported}
    wrong += [f"no process reports the promotion of version {number}" for number in unknown if complete]
    predecessor = {e.production: earlier.production for earlier, e in itertools.pairwise(log) if e in entries}
    served = {by_number[e.production].content_hash for e in log if e.production}
    for outcome in reported:
        decision: Any = parse_decision(logged_decision(by_number[outcome.version]))
        recorded = "promoted" if outcome.outcome == "already_production" else outcome.outcome
        if not decision or decision["outcome"] != recorded:
            wrong.append(f"{outcome} is not recorded")
            continue
        if not by_number[outcome.version].tags["gate_decision"].startswith(recorded):
            wrong.append(f"{outcome} is not in the version's tags")
        against = decision["production"] and decision["production"]["content_hash"]
        over = predecessor.get(outcome.version)
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
