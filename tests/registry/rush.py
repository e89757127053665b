"""Many promotions at once, from processes of their own, and what must hold afterwards.

``python -m registry.rush URI [PROCESSES [EACH]]`` does it on any server, ``tests`` and ``src`` on the path.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from small_model import table, write_model
from synthetic import CONV
from tilewise.registry import history, tracking, versions
from tilewise.registry import promote as promotion
from tilewise.registry.log_decision import logged_record
from tilewise.registry.record import parse
from tilewise.registry.thresholds import SliceRule, Thresholds

THRESHOLDS = Thresholds(floor_mean=10, floor_p10=0, slices=SliceRule(n_resamples=200), selection_time_factor=100)
BAD_EVERY = 5  # one model in so many is much worse than the others, which are equal


@dataclass(frozen=True)
class Outcome:
    """What a process was told of one promotion."""

    model: str
    outcome: str
    version: int


def promote_all(uri: str, reports: str, models: list[str]) -> list[Outcome]:
    """Promote models one after the other; what each process does. Plots are left out: they take longest."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    told = []
    with tracking.session(uri):
        for model in models:
            name = Path(model).name
            done = promotion.promote(model, table(), THRESHOLDS, Path(reports) / name, holdout_fraction=0.18)
            told.append(Outcome(name, done.outcome, done.version.number))
    return told


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def rush(uri: str, folder: Path, processes: int, each: int) -> list[Outcome]:
    """Promote ``processes * each`` different models, from all processes at once."""
    models = [
        str(write_model(folder / f"model{i}", trees=20, sign=-1.0 if i % BAD_EVERY == 2 else 1.0, note=f"{folder} {i}"))
        for i in range(processes * each)
    ]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # the fork server may be an earlier test's, and know neither server nor password
    with ProcessPoolExecutor(processes, context, _begin, (dict(os.environ),)) as pool:
        shares = [models[i::processes] for i in range(processes)]
        told = pool.map(promote_all, [uri] * processes, [str(folder / "reports")] * processes, shares)
        return [outcome for share in told for outcome in share]


def check(told: list[Outcome], before: int) -> dict[str, int]:
    """No update is lost, production is the last one promoted, and every decision is recorded.

    Args:
        told: from :func:`rush`.
        before: entries that the target's history had.

    Returns:
        How many were promoted and refused.

    Raises:
        AssertionError: otherwise.
    """
    log = history.entries(CONV)
    mine = log[before:]
    by_number = {v.number: v for v in versions.versions(CONV)}
    promoted = [o.version for o in told if o.outcome == "promoted"]
    assert sorted(e.production or 0 for e in mine) == sorted(promoted), "an update was lost, or nobody was told of it"
    assert versions.aliases(CONV)["production"] == log[-1].production
    assert versions.aliases(CONV).get("previous") == log[-1].previous
    predecessor = {e.production: earlier.production for earlier, e in itertools.pairwise(log)}
    served = {by_number[e.production].content_hash for e in log if e.production}
    for outcome in told:
        version = by_number[outcome.version]
        record: Any = parse(logged_record(version))
        assert record, f"{outcome}: not recorded"
        assert record["outcome"] == outcome.outcome
        assert version.tags["gate_decision"].startswith(outcome.outcome)
        against = record["production"] and record["production"]["content_hash"]
        if outcome.outcome == "promoted":
            over = predecessor.get(outcome.version)
            assert against == (by_number[over].content_hash if over else None), "judged against what was replaced"
        else:
            assert against is None or against in served
    return {"promoted": len(promoted), "refused": len(told) - len(promoted)}


def main(uri: str, processes: str = "4", each: str = "5") -> None:
    """Rush a server, check it, say what happened."""
    with tempfile.TemporaryDirectory() as scratch, tracking.session(uri):
        before = len(history.entries(CONV))
        told = rush(uri, Path(scratch), int(processes), int(each))
        print(check(told, before))


if __name__ == "__main__":
    main(*sys.argv[1:])
