"""The dependence of a model's figures on the judging run: each measuring run of the holdout alone, and all together.

python -m benchmarks.learning.runs MODEL_DIR ... [--data DIR]

The first row of a model judges every problem by its first run, the next by its second run, and so on while all problems
have one; `h200-3, h200-5` measured a part of them each. The last row equals the report of `tilewise evaluate`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from tilewise.data import group_keys, holdout_mask, problem_index, read_measurements
from tilewise.evaluate import evaluate
from tilewise.markdown import table
from tilewise.model import load_artefact

WHOLE = 0.9  # share of the kernels of the largest run of a problem; smaller runs are partial and not used
FIGURES = (
    ("mean", "mean_efficiency"),
    ("P10", "p10_efficiency"),
    ("worst", "min_efficiency"),
    ("top 3: mean", "top3_mean_efficiency"),
    ("P10", "top3_p10_efficiency"),
)


def successive_runs(held: pd.DataFrame, op: str) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each problem's first run, second run, and so on, with the names of these runs."""
    rows = held.assign(problem=problem_index(held, op))
    size = rows.groupby(["problem", "run_id"])["run_id"].transform("size")
    rows = rows[size >= WHOLE * size.groupby(rows["problem"]).transform("max")]
    runs = rows.groupby(["problem", "run_id"], as_index=False)["measured_at"].min()
    runs["position"] = runs.sort_values(["problem", "measured_at"]).groupby("problem").cumcount()
    for _, of_position in runs.groupby("position"):
        if len(of_position) == rows["problem"].nunique():
            of_runs = rows.merge(of_position[["problem", "run_id"]], on=["problem", "run_id"])
            yield ", ".join(sorted(of_position["run_id"].unique())), of_runs[held.columns]


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
        for name, rows in (*successive_runs(held, op), ("all runs", held)):
            figures = evaluate(model, rows, fraction).metrics
            shown = (f"{100 * figures[key]:.2f}" for _, key in FIGURES)
            lines.append((f"`{model.target.name}`", name, *shown))
    print(table(("target", "judged by", *(name for name, _ in FIGURES)), lines), end="")


if __name__ == "__main__":
    _main()
