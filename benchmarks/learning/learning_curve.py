"""Efficiency by number of measurements.

python -m benchmarks.learning.learning_curve run --target TARGET
python -m benchmarks.learning.learning_curve onboarding --source TARGET --target TARGET
python -m benchmarks.learning.learning_curve page

``run`` replays random, uniform and planned choice on a recorded table (see :mod:`benchmarks.learning.replay`) and
writes ``results/learning_curve_TARGET.json``. ``onboarding`` compares a new target alone and with another target's
model (:mod:`benchmarks.learning.onboarding`). ``--json`` also prints the figures. ``page`` draws the curves and fills
docs/experiments.md. The script needs no GPU and uses no problem of the holdout.
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

from benchmarks.learning.onboarding import onboard
from benchmarks.learning.replay import Replay
from benchmarks.learning.teachers import teachers_table
from benchmarks.results import RESULTS, load, save
from tilewise.arch import load_arch
from tilewise.data import read_measurements, split_rule
from tilewise.errors import TilewiseError
from tilewise.files import write_text
from tilewise.markdown import fill, table
from tilewise.ops import Target
from tilewise.train import Table, build_table, git_revision, pool_of

PAGE = Path(__file__).parents[2] / "docs" / "experiments.md"
FRACTION = 0.18  # of the problems: the holdout
RANDOM, UNIFORM = (0.1, 0.25, 0.5, 1.0), (0.1, 0.25, 0.5)  # at 1.0, uniform equals random
COUNTS = (0, 8, 16, 32, 64, 128, 256)  # measured problems of a new target
STRATEGIES = ("random", "uniform", "planned")


def recorded(target: Target, data: Path) -> Table:
    """Return the table of a target, without the holdout."""
    frame = read_measurements(data, target)
    return build_table(frame, target, pool_of(frame, target), load_arch(target.arch), FRACTION)


def run(target: Target, data: Path, seeds: int, threads: int) -> dict[str, Any]:
    """Return every curve of one target."""
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
        "rule": f"{split_rule(target, FRACTION)} stays out; "
        "25% of the other group keys judge, the rest may be measured",
        "seeds": seeds,
        "revision": git_revision(Path.cwd()),
        "points": points,
    }


def run_onboarding(target: Target, source: Target, data: Path, source_data: Path, seeds: int, threads: int) -> Any:
    """Return the onboarding curve of one target, alone and with the model of `source`."""
    points = []
    whole, base = recorded(target, data), recorded(source, source_data)
    for seed in range(seeds):
        for point in onboard(whole, base, COUNTS, seed, threads):
            print(_line(asdict(point)), file=sys.stderr, flush=True)
            points.append(asdict(point))
    about = {"target": target.name, "source": source.name, "seeds": seeds, "revision": git_revision(Path.cwd())}
    return about | {"points": points}


def _line(point: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v:.4f}" if isinstance(v, float) else f"{k}={v}" for k, v in point.items())


def curve(result: Mapping[str, Any], name: str, by: str = "strategy") -> list[dict[str, float]]:
    """Return one curve, point by point, as means over the seeds; efficiencies in (0, 1]."""
    of_seeds: dict[int, list[Mapping[str, Any]]] = {}
    for point in result["points"]:
        if point[by] == name:
            of_seeds.setdefault(point["seed"], []).append(point)
    figures = [n for n, value in result["points"][0].items() if isinstance(value, float) or n == "problems"]
    return [{n: float(np.mean([p[n] for p in same])) for n in figures} for same in zip(*of_seeds.values(), strict=True)]


def quarter(result: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Return the points to compare: all measurements, and a quarter of them by each strategy."""
    random, uniform = curve(result, "random"), curve(result, "uniform")
    return {
        "all": random[-1],
        "planned": curve(result, "planned")[-1],
        "random": random[RANDOM.index(0.25)],
        "uniform": uniform[UNIFORM.index(0.25)],
        "half": random[RANDOM.index(0.5)],
    }


def page(text: str, results: Path) -> str:
    """Return the page with its blocks filled from the result files."""
    curves = [load(p) for p in sorted(results.glob("learning_curve_*.json"))]
    onboarding = [load(p) for p in sorted(results.glob("onboarding_*.json"))]
    taught = [load(p) for p in sorted(results.glob("teachers_*.json"))]
    blocks = {"quarter": _quarter_table(curves), "onboarding": _onboarding_table(onboarding)}
    return fill(text, {**blocks, "teachers": teachers_table(taught)})


_COLUMNS = {
    "planned": "planned, a quarter",
    "random": "random, a quarter",
    "uniform": "uniform, a quarter",
    "half": "random, half",
    "all": "all",
}


def _quarter_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = [[f"`{r['target']}`", *(_figures(quarter(r)[name]) for name in _COLUMNS)] for r in results]
    return table(["target", *_COLUMNS.values()], rows)


def _onboarding_table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        for method in ("alone", "taught"):
            found = {round(p["problems"]): _figures(p) for p in curve(result, method, "method")}
            cells = [found.get(n, "") for n in COUNTS]
            rows.append([f"`{result['source']}` to `{result['target']}`", method, *cells])
    return table(["from, to", "", *(f"{n} problems" for n in COUNTS)], rows, words=2)


def _figures(point: Mapping[str, float]) -> str:
    return f"{100 * point['mean_efficiency']:.1f} / {100 * point['p10_efficiency']:.1f}"


def plot(results: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Plot P10 by share of the pairs, one panel per target."""
    from tilewise.plot_style import INK, SMALL, figure_file

    columns = min(3, len(results))
    lines = -(-len(results) // columns)
    with figure_file(path, 3.6 * columns, 2.9 * lines) as figure:
        for number, result in enumerate(results, 1):
            axes = figure.add_subplot(lines, columns, number)
            for strategy in STRATEGIES:
                points = curve(result, strategy)
                shares, p10 = ([100 * p[n] for p in points] for n in ("share", "p10_efficiency"))
                axes.plot(shares, p10, marker=".", label=strategy)
            axes.axhline(100 * quarter(result)["all"]["p10_efficiency"], color=INK, linewidth=0.8, linestyle="--")
            axes.set(xscale="log", xlabel="measured pairs, %", ylabel="P10 efficiency, %")
            axes.set_xticks([2, 5, 10, 25, 50, 100], labels=["2", "5", "10", "25", "50", "100"])
            axes.minorticks_off()
            axes.set_title(result["target"], fontsize=8)
            axes.legend(fontsize=SMALL)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.learning_curve", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name in ("run", "onboarding"):
        verb = verbs.add_parser(name)
        verb.add_argument("--target", required=True, type=Target.parse)
        verb.add_argument("--data", type=Path, default=Path("data"))
        verb.add_argument("--seeds", type=int, default=2)
        verb.add_argument("--threads", type=int, default=0)
        verb.add_argument("--json", action="store_true", help="print the figures as well")
        if name == "onboarding":
            verb.add_argument("--source", required=True, type=Target.parse, help="the source target")
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
