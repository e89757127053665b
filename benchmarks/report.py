"""Fill tables of docs/benchmarks.md, growth.md and leaderboard.md from results/: ``python -m benchmarks.report``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.autotune import figures as autotune_figures
from benchmarks.leaderboard import figures as leaderboard_figures
from benchmarks.learning import tuning
from benchmarks.measuring import collect_rate, do_bench
from benchmarks.networks import figures as network_figures
from benchmarks.networks import first_pass, layers, norms
from benchmarks.results import RESULTS, load
from benchmarks.runtime import run_overhead, shadow_overhead
from benchmarks.scale import figures as scale_figures
from benchmarks.vendor import kinds
from tilewise.errors import TilewiseError
from tilewise.files import write_text
from tilewise.markdown import fill, table

_DOCS = Path(__file__).parents[1] / "docs"
PAGE, GROWTH, LEADERBOARD = (_DOCS / f"{name}.md" for name in ("benchmarks", "growth", "leaderboard"))
_NOT_YET = "Not measured yet."
_RATIOS = ("geomean", "p10", "least")


def blocks(results: Path) -> dict[str, str]:
    """Return the content of the page's blocks, from the result files of a folder."""
    return {
        "collect-rate": _of(results / "collect_rate.json", _collect_rate),
        "do-bench": _of(results / "do_bench.json", _do_bench),
        "run-overhead": _of(results / "run_overhead.json", _run_overhead),
        "shadow-overhead": _of(results / "shadow_overhead.json", _shadow_overhead),
        "autotune-learn": _of(results / "autotune_learn.json", autotune_figures.learnt),
        "autotune-serve": _of(results / "autotune_serve.json", _autotune_served),
        "networks": _of(results / "networks_h200.json", network_figures.text),
        "networks-measured": _of(results / "networks_h100.json", network_figures.measured_text),
        "layers": _of(results / "layers.json", layers.text),
        "norms": _of(results / "norms.json", norms.text),
        "epilogue-cost": _of(results / "epilogue_cost.json", _epilogue_cost),
        "first-pass": _of(results / "first_pass.json", first_pass.text),
        "tuning": _of(results / "tuning.json", tuning.text),
        **_targets([load(p) for p in sorted(results.glob("target_*.json"))]),
        "kinds": _of(results / "kinds.json", kinds.summary_text),
        "kinds-slices": _of(results / "kinds.json", kinds.slices_text),
    }


def _epilogue_cost(result: Mapping[str, Any]) -> str:
    """Return the clocks that each kind of epilogue adds per result, by kind of kernel."""
    sides = [result["clocks"][side] for side in ("others", "persistent")]
    rows = [[kind.replace("+", ", "), *(f"{max(side[kind], 0):.2f}" for side in sides)] for kind in sides[0]]
    return table(["epilogue, beside a bias alone", "several programs a unit", "persistent"], rows)


def _targets(found: list[dict[str, Any]]) -> dict[str, str]:
    """Return the tables of targets' holdouts, and of selections against the vendor's calls in the same pool."""
    quality = ["pool", "problems", "mean", "median", "P10", "worst", "whole pool: mean", "P10", "listed"]
    own, against = [], []
    for result in found:
        held, whole, vendor = result["holdout"], result["whole_pool"], result["vendor"]
        rest = ("mean_efficiency", "p10_efficiency", "listed_rate")
        own.append(
            [
                f"`{result['target']}`",
                str(result["pool_size"]),
                str(held["n_problems"]),
                *(f"{held[f'{n}_efficiency']:.2%}" for n in ("mean", "median", "p10", "min")),
                *(f"{whole[n]:.2%}" if whole else "" for n in rest),
            ]
        )
        if vendor:
            kinds = [f"{who}_{n}" for who in ("selected", "best_of_own", "best_of_both") for n in _RATIOS]
            cells = [f"`{result['target']}`", str(vendor["n_problems"]), *(f"{vendor[k]:.2f}" for k in kinds)]
            against.append(cells)
    ratios = [f"{who}: {n}" for who in ("selected", "own kernels' best", "best of both") for n in _RATIOS]
    return {
        "targets": table(["target", *quality], own) if own else _NOT_YET,
        "vendor-candidate": table(["target", "problems", *ratios], against) if against else _NOT_YET,
    }


def page(text: str, results: Path) -> str:
    """Return the page with its blocks filled."""
    return fill(text, blocks(results))


def _of(path: Path, shown: Any) -> str:
    return str(shown(load(path))) if path.exists() else _NOT_YET


def _machine(result: Mapping[str, Any]) -> str:
    m = result["machine"]
    devices = f"{len(m['devices'])} x {m['devices'][0]}" if len(m["devices"]) > 1 else m["devices"][0]
    return f"{devices}, driver {m['driver']}, torch {m['torch']}, triton {m['triton']}, {m['measured_at'][:10]}"


def _collect_rate(result: Mapping[str, Any]) -> str:
    about = (
        f"`{result['target']}`, {result['problems']} problems x {result['kernels']} kernels; {_machine(result)}, "
        f"{result['machine']['cores']} cores. Compiling took {result['compile_s']:.0f} s, before."
    )
    return f"{collect_rate.text(result)}\n{about}"


def _do_bench(result: Mapping[str, Any]) -> str:
    about = f"`{result['target']}`, {len(result['problems'])} problems; {_machine(result)}."
    return f"{do_bench.text(result)}\n{about}"


def _autotune_served(result: Mapping[str, Any]) -> str:
    return f"{autotune_figures.served(result)}\n{_machine(result)}."


def _run_overhead(result: Mapping[str, Any]) -> str:
    return f"{run_overhead.text(result['cases'])}\n{_machine(result)}."


def _shadow_overhead(result: Mapping[str, Any]) -> str:
    m = result["machine"]
    where = _machine(result) if "gpu" in result else f"Python {m['python']}, {m['measured_at'][:10]}, no GPU"
    return f"{shadow_overhead.text(result)}\n{where}."


def main() -> int:
    """Run the command and return its exit status: 0 done, 2 a result file or the page is damaged."""
    try:
        write_text(PAGE, page(PAGE.read_text(), RESULTS))
        write_text(GROWTH, fill(GROWTH.read_text(), scale_figures.blocks(RESULTS)))
        write_text(LEADERBOARD, fill(LEADERBOARD.read_text(), leaderboard_figures.blocks(RESULTS)))
    except TilewiseError as e:
        print(f"report: error: {e}", file=sys.stderr)
        return 2
    print(PAGE, GROWTH, LEADERBOARD, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
