"""What a model's figures owe to the run that judges it: each run of the holdout alone, and all together.

python -m benchmarks.runs MODEL_DIR ... [--data DIR]

A row judges every problem by its first run, its second one, and so on, as far as all have one; `h200-3, h200-5`
measured a part of them each. The last row of a model is what `tilewise evaluate` reports.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from tilewise.data.rows import problem_index
from tilewise.data.schema import read_measurements
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.evaluate.holdout import evaluate
from tilewise.markdown import table
from tilewise.model import load_artefact

WHOLE = 0.9  # of the most kernels that a run measured of a problem: a run with fewer has not looked at all of it
FIGURES = (
    ("mean", "mean_efficiency"),
    ("P10", "p10_efficiency"),
    ("worst", "min_efficiency"),
    ("top 3: mean", "top3_mean_efficiency"),
    ("P10", "top3_p10_efficiency"),
)


def turns(held: pd.DataFrame, op: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each problem's first run, of its second one, and so on, beside the names of these runs."""
    rows = held.assign(problem=problem_index(held, op))
    size = rows.groupby(["problem", "run_id"])["run_id"].transform("size")
    rows = rows[size >= WHOLE * size.groupby(rows["problem"]).transform("max")]
    runs = rows.groupby(["problem", "run_id"], as_index=False)["measured_at"].min()
    runs["turn"] = runs.sort_values(["problem", "measured_at"]).groupby("problem").cumcount()
    for _, of_turn in runs.groupby("turn"):
        if len(of_turn) == rows["problem"].nunique():
            of_runs = rows.merge(of_turn[["problem", "run_id"]], on=["problem", "run_id"])
            yield ", ".join(sorted(of_turn["run_id"].unique())), of_runs[held.columns]


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args()
    lines = []
    for model in map(load_artefact, args.models):
        op, fraction = model.target.op, float(model.manifest["holdout_fraction"])
        frame = read_measurements(args.data, model.target)
        held = frame[holdout_mask(op, group_keys(op, frame), fraction)].reset_index(drop=True)
        for name, rows in (*turns(held, op), ("all runs", held)):
            figures = evaluate(model, rows, fraction).metrics
            shown = (f"{100 * figures[key]:.2f}" for _, key in FIGURES)
            lines.append((f"`{model.target.name}`", name, *shown))
    print(table(("target", "judged by", *(name for name, _ in FIGURES)), lines), end="")


if __name__ == "__main__":
    _main()
