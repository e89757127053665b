"""Stress test: many concurrent promotions from several processes, and the checks afterwards.

``python -m registry.stress URI [PROCESSES [EACH]]`` does it on any server, ``tests`` and ``src`` on the path.
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
from tilewise.gate import SliceRule, Thresholds, parse_decision
from tilewise.registry import list_aliases, list_versions, read_history, registry_session
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


def promote_all(uri: str, reports: str, models: list[str]) -> list[Outcome]:
    """Promote models one after the other in one process, without plots, which take longest."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    reported = []
    with registry_session(uri):
        for model in models:
            name = Path(model).name
            done = promotion.promote(model, table(), RULES, Path(reports) / name)
            reported.append(Outcome(name, done.outcome, done.version.number))
    return reported


def _begin(environment: dict[str, str]) -> None:
    os.environ.update(environment)


def stress(uri: str, folder: Path, processes: int, each: int) -> list[Outcome]:
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
        reported = pool.map(promote_all, [uri] * processes, [str(folder / "reports")] * processes, shares)
        return [outcome for share in reported for outcome in share]


def check(reported: list[Outcome], before: int) -> dict[str, int]:
    """No update is lost, production is the last one promoted, and every decision is recorded.

    Args:
        reported: from :func:`stress`.
        before: entries that the target's history had.

    Returns:
        How many were promoted and refused.

    Raises:
        AssertionError: otherwise.
    """
    log = read_history(CONV)
    mine = log[before:]
    by_number = {v.number: v for v in list_versions(CONV)}
    promoted = [o.version for o in reported if o.outcome == "promoted"]
    assert sorted(e.production or 0 for e in mine) == sorted(promoted), "an update was lost, or not reported"
    assert list_aliases(CONV)["production"] == log[-1].production
    assert list_aliases(CONV).get("previous") == log[-1].previous
    predecessor = {e.production: earlier.production for earlier, e in itertools.pairwise(log)}
    served = {by_number[e.production].content_hash for e in log if e.production}
    for outcome in reported:
        version = by_number[outcome.version]
        decision: Any = parse_decision(logged_decision(version))
        assert decision, f"{outcome}: not recorded"
        assert decision["outcome"] == outcome.outcome
        assert version.tags["gate_decision"].startswith(outcome.outcome)
        against = decision["production"] and decision["production"]["content_hash"]
        if outcome.outcome == "promoted":
            over = predecessor.get(outcome.version)
            assert against == (by_number[over].content_hash if over else None), "judged against what was replaced"
        else:
            assert against is None or against in served
    return {"promoted": len(promoted), "refused": len(reported) - len(promoted)}


def main(uri: str, processes: str = "4", each: str = "5") -> None:
    """Stress a server, check it, print the counts."""
    with tempfile.TemporaryDirectory() as scratch, registry_session(uri):
        before = len(read_history(CONV))
        reported = stress(uri, Path(scratch), int(processes), int(each))
        print(check(reported, before))


if __name__ == "__main__":
    main(*sys.argv[1:])
