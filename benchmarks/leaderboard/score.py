"""Score the baselines, the vendor and all submissions on targets' holdouts.

    python -m benchmarks.leaderboard.score TARGET... [--data data] [--scratch build/leaderboard]

Writes ``results/leaderboard_TARGET.json``. tilewise's own row comes from ``results/target_TARGET.json``. The scratch
folder keeps the baselines' predictions, in the format that ``tilewise score`` reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.leaderboard.baselines import METHODS, Split, selections
from benchmarks.leaderboard.submissions import submissions
from benchmarks.learning.targets import HOLDOUT
from benchmarks.results import RESULTS, save
from tilewise.data import parquet_bytes, split_rule
from tilewise.data.quality import prepare_files
from tilewise.errors import TilewiseError
from tilewise.evaluate import read_predictions
from tilewise.files import write_bytes
from tilewise.metrics import efficiency_figures
from tilewise.ops import OPS, Target
from tilewise.publish import Score, score_predictions, vendor_rates

FIGURES = ("n_problems", "mean_efficiency", "median_efficiency", "p10_efficiency", "min_efficiency", "top1_accuracy")


def measure(target: Target, data: Path, scratch: Path) -> dict[str, Any]:
    """Return the figures of all methods for a target."""
    split = Split.of(prepare_files(data, target).frame, target, HOLDOUT)
    return {
        "target": target.name,
        "split_rule": split_rule(target, HOLDOUT),
        "pool_size": len(split.pool),
        "entries": [*_baselines(split, scratch / target.name), *_vendor(split), *_submitted(split)],
    }


def _baselines(split: Split, folder: Path) -> Iterator[dict[str, Any]]:
    for method, scores in METHODS.items():
        path = folder / f"{method.replace(' ', '_')}.parquet"
        write_bytes(path, parquet_bytes(selections(split, scores(split))))
        yield entry(method, _score(split, path))


def _submitted(split: Split) -> Iterator[dict[str, Any]]:
    for submission, path in submissions(split.held.target):
        yield entry(submission.name, _score(split, path)) | {"authors": submission.authors, "link": submission.link}


def _score(split: Split, path: Path) -> Score:
    return score_predictions(read_predictions(path, split.held.target), split.frame, HOLDOUT)


def _vendor(split: Split) -> Iterator[dict[str, Any]]:
    """Yield the figures of the vendor's fastest call, on the problems that it was measured on."""
    key = list(OPS[split.held.target.op].column_names())
    rates = vendor_rates(split.held)
    if len(rates):
        best = split.held.rows.groupby(key, as_index=False)["tflops"].max()
        both = rates.merge(best, on=key)
        efficiency = (both["vendor_tflops"] / both["tflops"]).to_numpy(dtype=np.float64)
        yield {"method": "vendor", **_chosen(efficiency_figures(efficiency)), "vendor": None}


def entry(method: str, score: Score) -> dict[str, Any]:
    """Return the line of a method in the result file."""
    return {"method": method, **_chosen(score.figures), "vendor": score.vendor}


def _chosen(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(figures[name], 6) for name in FIGURES}


def main(argv: list[str] | None = None) -> int:
    """Score the targets of the command line; return 0, or 2 where a submission or the data are damaged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--scratch", type=Path, default=Path("build/leaderboard"))
    args = parser.parse_args(argv)
    for target in args.targets:
        try:
            figures = measure(target, args.data, args.scratch)
        except TilewiseError as e:
            print(f"score: error: {e}", file=sys.stderr)
            return 2
        save(RESULTS / f"leaderboard_{target.name}.json", figures)
        print(target.name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
