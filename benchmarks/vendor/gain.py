"""Compare our own kernels with and without one pipeline, beside the vendor's calls.

    python -m benchmarks.vendor.gain PIPELINE TARGET... [--data data]

Reads the committed tables: problems where a kernel of the pipeline, another own kernel and the vendor's call ran, by
the slices of :mod:`benchmarks.vendor.kinds`. Adds the pipeline to ``results/gain.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.results import RESULTS, load, quantiles, save
from benchmarks.vendor.kinds import MIN_PROBLEMS, slices_of
from benchmarks.vendor.times import fastest_times
from tilewise.data import read_measurements
from tilewise.ops import Target

FILE = RESULTS / "gain.json"


def gains(frame: pd.DataFrame, target: Target, pipeline: str) -> Iterator[dict[str, Any]]:
    """Yield the vendor's time / that of the fastest own kernel, of all problems of a pipeline and of each slice.

    Args:
        frame: a measurement table of `target`.
        target: a target with the vendor's calls in its pool.
        pipeline: the pipeline that is left out or not.
    """
    problems, times = fastest_times(frame, target, pipeline)
    ran = times["these_ms"].notna() & times["others_ms"].notna()
    for name, members in slices_of(problems, target).items():
        some = times[members.to_numpy(dtype=bool) & ran]
        if len(some) >= MIN_PROBLEMS:
            ratios = {"without": some["call_ms"] / some["others_ms"], "with": some["call_ms"] / some["own_ms"]}
            fastest = (some["these_ms"] < some["others_ms"]).mean()
            found = {kind: _figures(values) for kind, values in ratios.items()}
            yield {"target": target.name, "slice": name, "n": len(some), "fastest": round(float(fastest), 3), **found}


def _figures(ratios: pd.Series) -> dict[str, float]:
    found = {**quantiles(ratios.tolist()), "least": float(ratios.min())}
    return {name: round(found[name], 3) for name in ("geomean", "p10", "least")}


def main() -> None:
    """Read the tables of the command line's targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pipeline")
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    result = load(FILE) if FILE.exists() else {}
    tables = ((target, read_measurements(args.data, target)) for target in args.targets)
    result[args.pipeline] = [entry for target, frame in tables for entry in gains(frame, target, args.pipeline)]
    save(FILE, result)
    print(pd.json_normalize(result[args.pipeline]).to_string(index=False))


if __name__ == "__main__":
    main()
