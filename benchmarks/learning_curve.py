"""How many measurements a model needs: ``python -m benchmarks.learning_curve run TARGET``, then ``page``.

``run`` plays random, uniform and planned choice on a recorded table (see :mod:`tilewise.planning.replay`) and writes
``results/learning_curve_TARGET.json``; ``onboarding`` does so for a new target and one that taught
(:mod:`tilewise.planning.onboard`); ``--json`` prints the figures as well. ``page`` draws, and fills
docs/measuring-less.md. No GPU, and no problem of the holdout, is touched.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import RESULTS, load, save
from tilewise.arch import load_arch
from tilewise.data.schema import read_measurements
from tilewise.data.splits import split_rule
from tilewise.errors import TilewiseError
from tilewise.files import write_text
from tilewise.markdown import fill, table
from tilewise.ops import Target
from tilewise.planning.onboard import onboard
from tilewise.planning.replay import Replay
from tilewise.train.dataset import Table, build_table
from tilewise.train.pool import pool_of

PAGE = Path(__file__).parents[1] / "docs" / "measuring-less.md"
FRACTION = 0.18  # the holdout, which stays out
RANDOM, UNIFORM = (0.1, 0.25, 0.5, 1.0), (0.1, 0.25, 0.5)  # uniform ends where random does
COUNTS = (0, 8, 16, 32, 64, 128, 256)  # problems measured of a new target
STRATEGIES = ("random", "uniform", "planned")


def recorded(target: Target, data: Path) -> Table:
    """The table of a target, without the holdout."""
    frame = read_measurements(data, target)
    return build_table(frame, target, pool_of(frame, target), load_arch(target.arch), FRACTION)


def run(target: Target, data: Path, seeds: int, threads: int) -> dict[str, Any]:
    """Every curve of one target."""
    whole = recorded(target, data)
    points = []
    for seed in range(seeds):
        replay = Replay.split(whole, seed, threads=threads)
        for curve in (replay.planned(), replay.random(RANDOM), replay.uniform(UNIFORM)):
            for point in curve:
                print(_line(asdict(point)), file=sys.stderr, flush=True)
                points.append(asdict(point))
    return {
        "target": target.name,
        "problems": len(whole.problems),
        "pool": len(whole.pool),
        "rows": len(whole.problem),
        "rule": f"{split_rule(FRACTION)} stays out; 25% of the other group keys judge, the rest may be measured",
        "seeds": seeds,
        "points": points,
    }


def run_onboarding(target: Target, source: Target, data: Path, source_data: Path, seeds: int, threads: int) -> Any:
    """The onboarding curve of one target, with and without what `source` taught."""
    points = []
    whole, base = recorded(target, data), recorded(source, source_data)
    for seed in range(seeds):
        for point in onboard(whole, base, COUNTS, seed, threads):
            print(_line(asdict(point)), file=sys.stderr, flush=True)
            points.append(asdict(point))
    return {"target": target.name, "source": source.name, "seeds": seeds, "points": points}


def _line(point: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())


def averaged(points: Sequence[Mapping[str, Any]], by: str, at: str) -> dict[tuple[Any, Any], dict[str, float]]:
    """Means over the seeds, by (`by`, `at`) of the points; `at` is rounded, for shares differ a little by seed."""
    groups: dict[tuple[Any, Any], list[Mapping[str, Any]]] = {}
    for p in points:
        groups.setdefault((p[by], round(p[at], 2)), []).append(p)
    names = [n for n, v in points[0].items() if isinstance(v, float)]
    return {key: {n: float(np.mean([p[n] for p in some])) for n in names} for key, some in groups.items()}


def quarter(result: Mapping[str, Any]) -> dict[str, float]:
    """What a quarter of the measurements reaches, and what all do: mean over the seeds, efficiency in (0, 1]."""
    means = averaged(result["points"], "strategy", "share")
    last = max(share for name, share in means if name == "planned")
    planned, final = means["planned", last], means["random", 1.0]
    found = {"share": planned["share"]}
    for name in ("mean_efficiency", "p10_efficiency", "top3_p10_efficiency"):
        found |= {f"planned_{name}": planned[name], f"final_{name}": final[name]}
        found |= {f"{s}_{name}": means[s, 0.25][name] for s in ("random", "uniform")}
    return found


def page(text: str, results: Path) -> str:
    """The page with its blocks filled from the result files."""
    curves = [load(p) for p in sorted(results.glob("learning_curve_*.json"))]
    onboarding = [load(p) for p in sorted(results.glob("onboarding_*.json"))]
    return fill(text, {"quarter": _quarter_table(curves), "onboarding": _onboarding_table(onboarding)})


def _quarter_table(results: Sequence[Mapping[str, Any]]) -> str:
    header = ["target", "random, all", "planned, a quarter", "random, a quarter", "uniform, a quarter"]
    rows = []
    for result in results:
        q = quarter(result)
        cells = [f"{100 * q[f'{s}_mean_efficiency']:.2f} / {100 * q[f'{s}_p10_efficiency']:.2f}" for s in _COLUMNS]
        rows.append([f"`{result['target']}`", *cells])
    return table(header, rows)


_COLUMNS = ("final", "planned", "random", "uniform")


def _onboarding_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        means = averaged(result["points"], "method", "problems")
        for method in ("alone", "taught"):
            cells = [
                f"{100 * means[method, n]['mean_efficiency']:.2f} / {100 * means[method, n]['p10_efficiency']:.2f}"
                if (method, n) in means
                else ""
                for n in COUNTS
            ]
            rows.append([f"`{result['source']}` to `{result['target']}`", method, *cells])
    return table(["from, to", "", *(f"{n} problems" for n in COUNTS)], rows, words=2)


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """P10 by share of the pairs, one panel a target."""
    from matplotlib.figure import Figure

    columns = min(3, len(results))
    lines = -(-len(results) // columns)
    figure = Figure(figsize=(3.6 * columns, 2.9 * lines), layout="constrained")
    for number, result in enumerate(results, 1):
        axes = figure.add_subplot(lines, columns, number)
        means = averaged(result["points"], "strategy", "share")
        for strategy in STRATEGIES:
            points = sorted((v["share"], v["p10_efficiency"]) for (s, _), v in means.items() if s == strategy)
            axes.plot([100 * s for s, _ in points], [100 * e for _, e in points], marker=".", label=strategy)
        axes.axhline(100 * means["random", 1.0]["p10_efficiency"], color="grey", linewidth=0.8, linestyle="--")
        axes.set(xscale="log", xlabel="measured pairs, %", ylabel="P10 efficiency, %")
        axes.set_xticks([2, 5, 10, 25, 50, 100], labels=["2", "5", "10", "25", "50", "100"])
        axes.minorticks_off()
        axes.set_title(result["target"], fontsize=8)
        axes.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning_curve", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("run", "onboarding"):
        verb = verbs.add_parser(name)
        verb.add_argument("--target", required=True, type=Target.parse)
        verb.add_argument("--data", type=Path, default=Path("data"))
        verb.add_argument("--seeds", type=int, default=2)
        verb.add_argument("--threads", type=int, default=0)
        verb.add_argument("--json", action="store_true", help="print the figures as well")
        if name == "onboarding":
            verb.add_argument("--source", required=True, type=Target.parse, help="the target that taught")
            verb.add_argument("--source-data", type=Path, help="its measurements; default: --data")
    verbs.add_parser("page")
    args = parser.parse_args(argv)
    try:
        if args.verb == "page":
            curves = [load(p) for p in sorted(RESULTS.glob("learning_curve_*.json"))]
            plot(curves, PAGE.parent / "images" / "learning-curves.png")
            write_text(PAGE, page(PAGE.read_text(), RESULTS))
            return 0
        if args.verb == "run":
            result = run(args.target, args.data, args.seeds, args.threads)
            path = RESULTS / f"learning_curve_{args.target.name}.json"
        else:
            source_data = args.source_data or args.data
            result = run_onboarding(args.target, args.source, args.data, source_data, args.seeds, args.threads)
            path = RESULTS / f"onboarding_{args.source.name}_{args.target.name}.json"
        save(path, result)
        if args.json:
            print(json.dumps(result))
    except TilewiseError as e:
        print(f"learning_curve: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
