"""For which groups does cuDNN have kernels of its own? Its time beside the fastest of ours, by the groups' channels.

    python -m benchmarks.vendor.groups TARGET... [--data data]

Reads the committed tables: images, no dilation, filters of several taps, groups of several channels. Writes
``results/groups.json``: of all such problems, of those on which cuDNN takes at least :data:`LONG_US`, and what the
pipeline :data:`PIPELINE` gains on narrow groups.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.results import RESULTS, quantiles, save
from benchmarks.vendor.times import fastest_times
from tilewise.data import read_measurements
from tilewise.ops import GroupedConvProblem, Problem, Target

WIDTHS = (2, 3, 4, 8, 16, 24, 32, 48, 56, 64)  # channels of a group that at least a dozen problems of a target have
SQUARE = {width: f"{width} to {width} channels" for width in WIDTHS}
OTHER_SQUARE, ALIGNED, OTHERS = "as many, another number", "another number, 8 divides both", "another number"
KINDS = (*SQUARE.values(), OTHER_SQUARE, ALIGNED, OTHERS)
SHOWN = ("p10", "median", "p90")
LONG_US = 20.0
PIPELINE = "slide"
NARROW = (4, 32)  # channels of a narrow group


def slowness(frame: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return a row per problem that cuDNN and an own kernel compute.

    Args:
        frame: a measurement table of `target`.
        target: a target of grouped convolution.

    Returns:
        `kind` of the groups, None for other problems; `slowness`, cuDNN's time / the fastest own kernel's; `others`,
        the same without the pipeline :data:`PIPELINE`, NaN where it did not run; `narrow`, whether groups have
        :data:`NARROW` channels; `call_us`, cuDNN's time.
    """
    problems, times = fastest_times(frame, target, PIPELINE)
    calls = times["call_ms"]
    return pd.DataFrame(
        {
            "slowness": calls / times["own_ms"],
            "others": (calls / times["others_ms"]).where(times["these_ms"].notna()),
            "kind": [_kind(p) for p in problems],
            "narrow": [is_narrow(p) for p in problems],
            "call_us": 1e3 * calls,
        }
    )


def is_narrow(problem: Problem) -> bool:
    """Return whether a problem's groups have :data:`NARROW` channels, in and out."""
    assert isinstance(problem, GroupedConvProblem)
    inputs, outputs = problem.C // problem.G, problem.K // problem.G
    return problem.G > 1 and min(inputs, outputs) >= NARROW[0] and max(inputs, outputs) <= NARROW[1]


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


def gain(ratios: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield cuDNN's time / the fastest own kernel's where :data:`PIPELINE` ran on narrow groups, without it too."""
    ran = ratios[ratios["narrow"] & ratios["others"].notna()]
    for name, some in (("all", ran), ("long", ran[ran["call_us"] >= LONG_US])):
        for kernels, column in (("with", "slowness"), ("without", "others")):
            found = {**quantiles(some[column].tolist()), "least": some[column].min()}
            figures = {name: round(found[name], 2) for name in ("geomean", "p10", "least")}
            yield {"problems": name, "n": len(some), PIPELINE: kernels, **figures}


def main() -> None:
    """Measure the targets of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    results: dict[str, dict[str, Any]] = {"targets": {}, "long": {}, "gain": {}}
    for target in args.targets:
        ratios = slowness(read_measurements(args.data, target), target)
        results["targets"][target.name] = list(summary(ratios))
        results["long"][target.name] = list(summary(ratios[ratios["call_us"] >= LONG_US]))
        results["gain"][target.name] = list(gain(ratios))
        for found in results.values():
            print(pd.DataFrame(found[target.name]).to_string(index=False))
    save(RESULTS / "groups.json", results)


if __name__ == "__main__":
    main()
