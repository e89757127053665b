"""Compare the fastest of our own kernels with the vendor's library, by kind of problem.

    python -m benchmarks.vendor.kinds TARGET... [--data data]

Reads the committed tables, in which the vendor's calls compete with the four fastest kernels of a problem in the same
rounds. A ratio is the time of the vendor's fastest call / that of our fastest kernel: above 1, ours is faster. The
times that choose the fastest also judge it. Writes ``results/kinds.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.measuring.candidate_plan import row_divisor
from benchmarks.results import RESULTS, quantiles, save
from benchmarks.vendor.groups import PIPELINE, is_narrow
from benchmarks.vendor.times import fastest_times
from tilewise.arch import load_arch
from tilewise.data import read_measurements
from tilewise.evaluate import slice_labels
from tilewise.markdown import table
from tilewise.ops import Problem, Target

SLICES = ("size", "bound", "grouping", "filter", "dims")
MIN_PROBLEMS = 20  # a slice of fewer is not shown
HEADER = ("problems", "geomean", "P10", "median", "P90", "least", "faster", "within 5 %")
KINDS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "grouped_conv": {
        "groups of 4 to 32 channels": is_narrow,
        "three input channels": lambda p: p.G == 1 and p.C == 3,
        "dense, strided, 1e9 FLOPs or more": lambda p: (
            p.G == 1 and p.flops >= 1e9 and max(p.stride_d, p.stride_h, p.stride_w) > 1
        ),
        "dense, 8 divides not all channels": lambda p: p.G == 1 and bool(p.C % 8 or p.K % 8),
    },
    "gemm": {  # descriptors load rows of whole 16 bytes: 16 elements of fp8, 8 of 16 bits
        "1e10 FLOPs or more, 16 divides rows": lambda p: p.flops >= 1e10 and row_divisor(p) == 16,
        "1e10 FLOPs or more, 8 divides rows": lambda p: p.flops >= 1e10 and row_divisor(p) == 8,
    },
}


def figures(frame: pd.DataFrame, target: Target) -> Iterator[dict[str, Any]]:
    """Yield the ratios of all problems with a row of the vendor's calls, and of each slice.

    Args:
        frame: a measurement table of `target`.
        target: a target with the vendor's calls in its pool.
    """
    problems, times = fastest_times(frame, target, PIPELINE)
    ratios = times["call_ms"] / times["own_ms"]
    for name, members in slices_of(problems, target).items():
        if members.sum() >= MIN_PROBLEMS:
            yield {"target": target.name, "slice": name, **_figures(ratios[members].tolist())}


def slices_of(problems: Sequence[Problem], target: Target) -> dict[str, pd.Series]:
    """Return whether each problem belongs to a slice, by the slice's name."""
    labels = slice_labels(problems, target, load_arch(target.arch))
    slices = {"all": pd.Series(True, index=labels.index)}
    for column in [name for name in SLICES if name in labels]:
        slices |= {f"{column}: {value}": labels[column] == value for value in sorted(labels[column].unique())}
    if target.op == "grouped_conv":
        dense = labels["grouping"] == "dense"
        slices["dense, compute-bound"] = dense & (labels["bound"] == "compute")
    return slices | {name: pd.Series([holds(p) for p in problems]) for name, holds in KINDS[target.op].items()}


def _figures(ratios: Sequence[float]) -> dict[str, float]:
    shares = {"faster": sum(r > 1 for r in ratios), "within": sum(r > 1 / 1.05 for r in ratios)}
    found = {**quantiles(ratios), "least": min(ratios), **{k: n / len(ratios) for k, n in shares.items()}}
    return {name: round(value, 3) for name, value in found.items()}


def summary_text(result: dict[str, Any]) -> str:
    """Return a table with a row per target."""
    every = [(f"`{e['target']}`", e) for e in result["entries"] if e["slice"] == "all"]
    return _table("target", every)


def slices_text(result: dict[str, Any]) -> str:
    """Return a table of slices per target."""
    by_target: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for entry in result["entries"]:
        if entry["slice"] != "all":
            by_target.setdefault(entry["target"], []).append((entry["slice"], entry))
    return "\n".join(_table(f"`{target}`", rows) for target, rows in by_target.items())


def _table(title: str, rows: Sequence[tuple[str, dict[str, Any]]]) -> str:
    ratios = ("geomean", "p10", "median", "p90", "least")
    cells = [
        [name, str(e["n"]), *(f"{e[k]:.2f}" for k in ratios), f"{e['faster']:.0%}", f"{e['within']:.0%}"]
        for name, e in rows
    ]
    return table([title, *HEADER], cells)


def main() -> None:
    """Read the tables of the command line's targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    entries = [e for target in args.targets for e in figures(read_measurements(args.data, target), target)]
    result = {"benchmark": "kinds", "entries": entries}
    save(RESULTS / "kinds.json", result)
    print(slices_text(result))


if __name__ == "__main__":
    main()
