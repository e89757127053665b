"""The same kernels timed by ``triton.testing.do_bench`` and by tilewise: duration of the timing, and agreement.

``python -m benchmarks.measuring.do_bench PLAN.json [--problems 12] [--kernels 20] [--output FILE.json]``

Problems are spread evenly over the plan, and for each problem, supporting kernels evenly over the pool. tilewise's time
is all of its engine's work on a problem: operands, reference, launches, checks, clearing, capture, rounds. do_bench's
time is that of its call with the defaults (25 ms of warm-up, 100 ms of samples, median) on the same launches; operands
and checks are not charged to it. Everything is compiled and loaded before.

The two regimes differ for short kernels. do_bench overwrites 256 MB before each single eager launch, between two
events: its figure includes the cost of an event and a launch, and a short kernel starts on a cold cache. tilewise
replays a CUDA graph with several launches of a short kernel, and so times the kernel as a graph runs it. The agreement
is therefore reported separately for kernels above and below 20 us.

Needs numpy, pyarrow, torch and triton only, and ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import RESULTS, machine, quantiles, save, spread_evenly
from tilewise.collect import Item, Outcome, Plan, ProgressLine, compile_ahead, load_plan, summarize_samples
from tilewise.collect.engines import Engine
from tilewise.errors import TilewiseError, UsageError
from tilewise.markdown import table

LONG_MS = 0.02
AGREE = 0.02  # medians closer than this agree

# (item, kernel indices) -> milliseconds and seconds spent, one pair per kernel
OtherTimer = Callable[[Item, Sequence[int]], list[tuple[float, float]]]


def kernels_of(plan: Plan, item: Item, wanted: int) -> list[int]:
    """Return the indices of an even sample of the kernels that support a problem."""
    able = plan.pool.supported(item.problem).nonzero()[0].tolist()
    return [able[i] for i in spread_evenly(len(able), wanted)]


def compare(
    plan: Plan, engine: Engine, other: OtherTimer, wanted: int, progress: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Time an even sample of `wanted` kernels per problem of the plan both ways; return one entry per kernel."""
    found = []
    for number, item in enumerate(plan.items):
        which = kernels_of(plan, item, wanted)
        others = {i: Outcome("unsupported", "not in the sample") for i in range(len(plan.pool)) if i not in which}
        engine.measure(item, others, _ignore)  # loads the programs
        start = time.perf_counter()
        outcomes = engine.measure(item, others, _ignore)
        ours_s = (time.perf_counter() - start) / len(which)
        for i, (ms, seconds) in zip(which, other(item, which), strict=True):
            samples = outcomes[i].samples
            found.append(
                {
                    "problem": number,
                    "kernel_name": plan.pool.names[i],
                    "status": outcomes[i].status,
                    "tilewise_ms": summarize_samples(samples)["latency_ms"] if samples else None,
                    "do_bench_ms": ms,
                    "tilewise_s": ours_s,
                    "do_bench_s": seconds,
                }
            )
        progress(number + 1)
    return found


def whole_pool_s(plan: Plan, engine: Engine) -> float:
    """Return the seconds per valid measurement when each problem is measured with the whole pool, as in a sweep."""
    spent, valid = 0.0, 0
    for item in plan.items:
        engine.measure(item, {}, _ignore)
        start = time.perf_counter()
        outcomes = engine.measure(item, {}, _ignore)
        spent += time.perf_counter() - start
        valid += sum(o.status == "ok" for o in outcomes)
    return spent / valid


def do_bench_on_gpu(plan: Plan) -> OtherTimer:
    """Time kernels with ``triton.testing.do_bench``."""
    import torch
    from triton.testing import do_bench

    from tilewise.kernels.triton.programs import empty_result, family_of, launch_all, random_operands

    family, dtype = family_of(plan.target.op, plan.target.variant), plan.target.dtype

    def timed(item: Item, which: Sequence[int]) -> list[tuple[float, float]]:
        problem, kernels = item.problem, [plan.pool.kernels[i] for i in which]
        operands = random_operands(family, problem, dtype, "cuda", 0)
        result = empty_result(family, problem, dtype, "cuda")
        workspace = torch.empty(max(family.workspace_elements(k, problem) for k in kernels), device="cuda")
        times = []
        for kernel in kernels:
            start = time.perf_counter()
            launches = family.launches(kernel, problem, dtype, *operands, result, workspace)
            ms = do_bench(partial(launch_all, launches), return_mode="median")
            times.append((float(ms), time.perf_counter() - start))
        return times

    return timed


def summarise(entries: Sequence[Mapping[str, Any]], sweep_s: float) -> dict[str, Any]:
    """Return the speed-up and the distance of the medians: over all kernels, and above and below 20 us."""
    both = [e for e in entries if e["tilewise_ms"]]
    ours, theirs = (float(np.mean([e[k] for e in entries])) for k in ("tilewise_s", "do_bench_s"))
    groups = {
        "all": both,
        "above 20 us": [e for e in both if e["tilewise_ms"] >= LONG_MS],
        "below 20 us": [e for e in both if e["tilewise_ms"] < LONG_MS],
    }
    return {
        "tilewise_s": ours,
        "tilewise_sweep_s": sweep_s,
        "do_bench_s": theirs,
        "faster": theirs / ours,
        "faster_median": _median_of_problems(entries),
        "faster_in_a_sweep": theirs / sweep_s,
        "agreement": [{"group": name, **_agreement(group)} for name, group in groups.items() if group],
    }


def _median_of_problems(entries: Sequence[Mapping[str, Any]]) -> float:
    """Return the median over problems; in sums, one problem with kernels of 100 ms outweighs all others."""
    seconds: dict[int, list[float]] = {}
    for e in entries:
        spent = seconds.setdefault(e["problem"], [0.0, 0.0])
        spent[0] += e["tilewise_s"]
        spent[1] += e["do_bench_s"]
    return float(np.median([theirs / ours for ours, theirs in seconds.values()]))


def _agreement(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    ratio = np.array([e["tilewise_ms"] / e["do_bench_ms"] for e in entries])
    apart = np.abs(ratio - 1)
    return {**quantiles(ratio.tolist()), "apart": float(np.median(apart)), "agree": float((apart <= AGREE).mean())}


def text(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown tables."""
    s = result["summary"]
    time_rows = [
        ["do_bench, defaults", f"{1e3 * s['do_bench_s']:.1f}", "1x"],
        ["tilewise, the same kernels alone", f"{1e3 * s['tilewise_s']:.2f}", f"{s['faster']:.0f}x"],
        ["the same, median of the problems", "", f"{s['faster_median']:.0f}x"],
        ["tilewise, the whole pool", f"{1e3 * s['tilewise_sweep_s']:.2f}", f"{s['faster_in_a_sweep']:.0f}x"],
    ]
    agreement = [
        [
            a["group"],
            str(a["n"]),
            f"{a['apart']:.2%}",
            f"{a['agree']:.0%}",
            *(f"{a[q]:.3f}" for q in ("p10", "median", "p90")),
        ]
        for a in s["agreement"]
    ]
    header = ["kernels", "n", "apart (median)", "within 2 %", "tilewise / do_bench, P10", "median", "P90"]
    times = table(["timer", "ms a measurement", "faster"], time_rows)
    return f"{times}\n{table(header, agreement)}"


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measuring.do_bench", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--problems", type=int, default=12)
    parser.add_argument("--kernels", type=int, default=20)
    parser.add_argument("--jobs", type=int, help="compiling processes; default: one per core")
    parser.add_argument("--output", type=Path, default=RESULTS / "do_bench.json")
    args = parser.parse_args()
    try:
        plan, progress = load_plan(args.plan), ProgressLine()
        items = tuple(plan.items[i] for i in spread_evenly(len(plan.items), args.problems))
        plan = dataclasses.replace(plan, items=items, run_id="do_bench")
        compile_ahead(plan, args.jobs, lambda done, of: progress("compiling", done, of))
        from tilewise.collect.engines import GpuEngine

        engine, about = GpuEngine(plan, 0), machine()
        entries = compare(
            plan, engine, do_bench_on_gpu(plan), args.kernels, lambda n: progress("problems", n, len(items))
        )
        sweep_s = whole_pool_s(plan, engine)
    except TilewiseError as e:
        print(f"do_bench: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    result = {
        "benchmark": "do_bench",
        "target": plan.target.name,
        "machine": about,
        "problems": [item.problem.to_dict() for item in items],
        "summary": summarise(entries, sweep_s),
        "entries": entries,
    }
    save(args.output, result)
    print(text(result))
    return 0


def _ignore(kernel: int | None) -> None:
    """Ignore a message; no coordinator listens."""


if __name__ == "__main__":
    sys.exit(main())
