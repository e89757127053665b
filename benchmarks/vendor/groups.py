"""For which groups does cuDNN have kernels of its own? Its time beside the fastest of ours, by the groups' channels.

    python -m benchmarks.vendor.groups TARGET... [--data data]

Reads the committed tables: images, no dilation, filters of several taps, groups of several channels. Writes
``results/groups.json``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.results import RESULTS, quantiles, save
from tilewise.data import TargetTable, read_measurements
from tilewise.ops import GroupedConvProblem, Problem, Target

WIDTHS = (2, 3, 4, 8, 16, 24, 32, 48, 56, 64)  # channels of a group that at least a dozen problems of a target have
SQUARE = {width: f"{width} to {width} channels" for width in WIDTHS}
OTHER_SQUARE, ALIGNED, OTHERS = "as many, another number", "another number, 8 divides both", "another number"
KINDS = (*SQUARE.values(), OTHER_SQUARE, ALIGNED, OTHERS)
SHOWN = ("p10", "median", "p90")


def slowness(frame: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return cuDNN's time / the fastest own kernel's of each problem that has both, and the kind of its groups.

    Args:
        frame: a measurement table of `target`.
        target: a target of grouped convolution.
    """
    labels = TargetTable.of(frame, target).labelled()
    times = {"ms": labels.rows["latency_ms"].to_numpy(), "is_call": labels.rows["backend"].to_numpy() == "vendor"}
    valid = pd.DataFrame({"problem": labels.problem, **times})[labels.rows["is_valid"].to_numpy(dtype=bool)]
    fastest = valid.groupby(["problem", "is_call"])["ms"].min().unstack()
    ratio = (fastest[True] / fastest[False]).dropna()
    kinds = [_kind(labels.problems[number]) for number in ratio.index]
    return pd.DataFrame({"kind": kinds, "slowness": ratio.to_numpy()}).dropna()


def _kind(problem: Problem) -> str | None:
    """Return the kind of a problem's groups in words; None for other problems than the benchmark asks about."""
    assert isinstance(problem, GroupedConvProblem)
    p, inputs, outputs = problem, problem.C // problem.G, problem.K // problem.G
    usual = p.Di * p.Z == 1 and p.dilation_h * p.dilation_w == 1 and p.Y * p.X > 1
    if p.G == 1 or inputs == 1 or not usual:
        return None
    if inputs == outputs:
        return SQUARE.get(inputs, OTHER_SQUARE)
    return ALIGNED if inputs % 8 == outputs % 8 == 0 else OTHERS


def summary(ratios: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the number of problems and the quantiles of each kind."""
    for kind, values in ratios.groupby(pd.Categorical(ratios["kind"], KINDS), observed=True)["slowness"]:
        figures = quantiles(values.tolist())
        yield {"kind": kind, "problems": len(values), **{name: round(figures[name], 2) for name in SHOWN}}


def main() -> None:
    """Measure the targets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    results = {}
    for target in args.targets:
        ratios = slowness(read_measurements(args.data, target), target)
        results[target.name] = list(summary(ratios))
        print(pd.DataFrame(results[target.name]).to_string(index=False))
    save(RESULTS / "groups.json", {"targets": results})


if __name__ == "__main__":
    main()
