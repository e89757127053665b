"""GPU seconds saved per second of measuring, by the order in which the shapes of a trace are measured.

python -m benchmarks.measuring.value run [--data data] [--family depthwise] [--trees 60] [--traces 10] [--threads 1]
python -m benchmarks.measuring.value page

A model is trained without a family of problems and without a seventh of the others. Synthetic traces request those
problems (see :mod:`benchmarks.measuring.closed_loop`). Recorded measurements give the time of each selection, and the
fastest of the kernels that would be measured. Orders:

- ``value``: the order of ``tilewise plan plan.requests=FILE``;
- ``time``: calls x predicted time per second of measuring, used for models without a calibration;
- ``called``: the most called first;
- ``random``: the mean of several random orders;
- ``perfect``: by the true savings per second.

The script needs no GPU and uses no problem of the holdout. ``page`` fills docs/experiments.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measuring.closed_loop import FAMILIES, HOLDOUT, TARGET, fitted, zipf
from benchmarks.results import RESULTS, load, save
from tilewise.arch import load_arch
from tilewise.campaigns.plan import PlanSettings, ValueProposal, propose_by_value
from tilewise.collect import Plan, Timing
from tilewise.collect.engines import ReplayTable
from tilewise.data import group_keys, holdout_mask, problems_of, read_measurements
from tilewise.errors import TilewiseError
from tilewise.files import write_text
from tilewise.kernels import load_pool
from tilewise.markdown import fill, table
from tilewise.metrics import Floats
from tilewise.model import TrainedModel
from tilewise.train import git_revision

MODEL = Path("build/value/model")
PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
SHARES = (0.05, 0.1, 0.25, 0.5, 1.0)  # of the seconds of measuring everything
EVERYTHING = PlanSettings(budget_s=1e9)
RANDOM_ORDERS = 20


def run(data: Path, family: str, trees: int, traces: int, threads: int) -> dict[str, Any]:
    """Return, for every order, the share of the possible savings by the share of the seconds; the mean over traces."""
    frame = read_measurements(data, TARGET)
    keys = group_keys(TARGET.op, frame)
    inside = FAMILIES[family](frame).to_numpy()
    other_seventh = holdout_mask(TARGET.op, keys, HOLDOUT + (1 - HOLDOUT) / 7)
    new = (inside | other_seventh) & ~holdout_mask(TARGET.op, keys, HOLDOUT)
    seen = frame[~inside & ~other_seventh]
    model, recorded = fitted(seen, MODEL, trees, threads), ReplayTable.load(data, TARGET)
    problems = problems_of(frame[new], TARGET)
    whole = Plan(TARGET, load_arch(TARGET.arch), load_pool(TARGET), (), Timing(), "value")
    curves: dict[str, list[Floats]] = {}
    rates, expected, seconds = [], [], 0.0
    for seed in range(traces):
        calls = zipf(problems, np.random.default_rng(seed))
        proposal = propose_by_value(calls, model, seen, whole, EVERYTHING, holdout_fraction=HOLDOUT)
        saved, took = saved_s(proposal, model, recorded), proposal.stakes.seconds
        for name, order in orders(proposal, saved, seed).items():
            curves.setdefault(name, []).append(curve(saved, took, order))
        rates.append(saved.sum() / took.sum())
        expected.append(proposal.stakes.saved_s.sum() / saved.sum())
        seconds = float(took.sum())
    return {
        "target": TARGET.name,
        "family": family,
        "problems": len(problems),
        "traces": traces,
        "trees": trees,
        "measuring_s": seconds,
        "saved_per_measuring_s": float(np.mean(rates)),
        "expected_over_saved": float(np.mean(expected)),
        "revision": git_revision(Path.cwd()),
        "curves": {name: np.mean(of, axis=0).tolist() for name, of in curves.items()},
    }


def saved_s(proposal: ValueProposal, model: TrainedModel, recorded: ReplayTable) -> Floats:
    """Return the GPU seconds that the traced calls really save, of shape (problems of the plan,)."""
    plan, saved = proposal.plan, []
    for item, calls in zip(proposal.plan.items, proposal.stakes.calls, strict=True):
        ranked = (recorded.latency_ms(item.problem, model.pool.names[k]) for k in model.rank(item.problem))
        picked = next((ms for ms in ranked if ms is not None), None)
        measured = (recorded.latency_ms(item.problem, plan.pool.names[k]) for k in item.kernels or ())
        best = min((ms for ms in measured if ms is not None), default=picked)
        saved.append(0.0 if picked is None or best is None else max(picked - best, 0.0) * calls / 1e3)
    return np.array(saved)


def orders(proposal: ValueProposal, saved: Floats, seed: int) -> dict[str, list[list[int]]]:
    """Return the problems of the plan, which is in the order of value, in each order."""
    stakes, rng = proposal.stakes, np.random.default_rng([seed, 1])
    count = len(saved)
    by = {"perfect": saved / stakes.seconds, "time": stakes.spent_s / stakes.seconds, "called": stakes.calls}
    return {
        "value": [list(range(count))],
        **{name: [np.argsort(-worth, kind="stable").tolist()] for name, worth in by.items()},
        "random": [rng.permutation(count).tolist() for _ in range(RANDOM_ORDERS)],
    }


def curve(saved: Floats, seconds: Floats, orders: Sequence[Sequence[int]]) -> Floats:
    """Return the mean share of the possible savings after each share of the seconds, of shape (SHARES,)."""
    of_orders = []
    for order in orders:
        spent = np.cumsum(seconds[list(order)]) / seconds.sum()
        gained = np.cumsum(saved[list(order)]) / saved.sum()
        reached = np.searchsorted(spent, np.array(SHARES) + 1e-9)  # problems within the share
        of_orders.append(np.append(0.0, gained)[reached])
    mean: Floats = np.mean(of_orders, axis=0)
    return mean


def page_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return one row per family and order: percent of the possible savings."""
    rows = [
        [result["family"], name, *(f"{100 * share:.0f}" for share in result["curves"][name])]
        for result in results
        for name in ("value", "time", "called", "random", "perfect")
    ]
    return table(["unseen", "order", *(f"{100 * s:.0f} % of the time" for s in SHARES)], rows, words=2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measuring.value", description=__doc__)
    parser.add_argument("verb", choices=("run", "page"))
    parser.add_argument("--family", choices=FAMILIES, default="depthwise")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--trees", type=int, default=60)
    parser.add_argument("--traces", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    try:
        if args.verb == "page":
            found = [load(p) for p in sorted(RESULTS.glob("value_*.json"))]
            write_text(PAGE, fill(PAGE.read_text(), {"value": page_table(found)}))
            return 0
        result = run(args.data, args.family, args.trees, args.traces, args.threads)
        save(RESULTS / f"value_{args.family}.json", result)
        print(page_table([result]))
        print({k: v for k, v in result.items() if k != "curves"})
    except TilewiseError as e:
        print(f"value: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
