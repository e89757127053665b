"""Figures of committed targets: each is prepared, trained and evaluated on its holdout.

    python -m benchmarks.learning.targets TARGET... [--teachers TARGET...] [--n-splits 5] [--scratch build/targets]

Writes ``results/target_TARGET.json``, or ``results/taught_TARGET.json`` of a target that others teach. For a target
with the vendor's calls in its pool, the time of the vendor's fastest call is compared with that of the selection.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.results import RESULTS, save
from tilewise.data import TargetTable, read_measurements
from tilewise.evaluate import MIN_PROBLEMS_SHOWN
from tilewise.metrics import ratio_figures
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Target
from tilewise.publish import slice_in_words, weakest_slices

HOLDOUT = 0.18  # share of the problems, as conf/config.yaml has it
METRICS = (
    "n_problems", "mean_efficiency", "median_efficiency", "p10_efficiency", "min_efficiency", "top1_accuracy",
    "tflops_error",
)  # fmt: skip
TRAINING = ("tune.n_trials=0", "tracking.uri=sqlite:///{folder}/mlflow.db")


def measure(target: Target, teachers: Sequence[Target], n_splits: int, scratch: Path) -> dict[str, Any]:
    """Return the figures of a target, learnt from its own measurements and those of its teachers."""
    folder = (scratch / target.name).resolve()
    prepared, model, report = folder / "prepared", folder / "model", folder / "report"
    named, taught = f"target={target.name}", ",".join(teacher.name for teacher in teachers)
    settings = [setting.format(folder=folder) for setting in TRAINING]
    for each in (target, *teachers):
        _run("data", "prepare", f"target={each.name}", f"output={prepared / each.name}.parquet")
    _run("train", named, f"data={prepared}", f"out={model}", f"n_splits={n_splits}", f"teachers=[{taught}]", *settings)
    _run("evaluate", named, f"data={prepared}", f"model_dir={model}", f"out={report}")
    metrics = json.loads((report / "metrics.json").read_text())
    loaded = load_artefact(model)
    table = TargetTable.of(read_measurements(prepared, target), target)
    return {
        "target": target.name,
        **({"teachers": [teacher.name for teacher in teachers]} if teachers else {}),
        "pool_size": metrics["pool_size"],
        "split_rule": metrics["split_rule"],
        "n_splits": n_splits,
        "cv": {name: metrics["cv"][name] for name in METRICS if name in metrics["cv"]},
        "holdout": {name: metrics["holdout"][name] for name in METRICS},
        "whole_pool": metrics["holdout"].get("whole_pool"),
        "vendor": against_vendor(loaded, table.holdout(HOLDOUT)),
        "weakest": [slice_in_words(s) for s in weakest_slices(metrics["slices"], MIN_PROBLEMS_SHOWN)],
    }


def against_vendor(model: TrainedModel, table: TargetTable) -> dict[str, float] | None:
    """Return the vendor's time / the selection's time on the problems that the vendor was measured on.

    None where no problem has a row of the vendor's calls.
    """
    labels = table.labelled().ordered(model.pool)
    labels = labels.take(labels.rows["is_valid"].to_numpy() & labels.support(model.pool)[0])
    calls = labels.rows.get("backend", pd.Series("", index=labels.rows.index)).to_numpy() == "vendor"
    rows = pd.DataFrame({"problem": labels.problem, "rate": labels.tflops, "vendor": calls})
    rows["score"] = model.score_candidates(labels.problem, labels.problem_columns(), labels.kernel_columns(model.pool))
    vendor = rows[rows["vendor"]].groupby("problem")["rate"].max()
    if not len(vendor):
        return None
    by_problem = rows[rows["problem"].isin(vendor.index)].groupby("problem")
    picked = rows.loc[by_problem["score"].idxmax()].set_index("problem")["rate"]
    own = rows[~rows["vendor"]].groupby("problem")["rate"].max()
    return {
        "n_problems": len(vendor),
        **{f"selected_{k}": v for k, v in ratio_figures((picked / vendor).to_numpy()).items()},
        **{f"best_of_own_{k}": v for k, v in ratio_figures((own / vendor).dropna().to_numpy()).items()},
        **{f"best_of_both_{k}": v for k, v in ratio_figures((by_problem["rate"].max() / vendor).to_numpy()).items()},
    }


def selection_ratios(vendor: Mapping[str, float]) -> dict[str, float]:
    """Return those of the figures of :func:`against_vendor` that are about the selection, by their own names."""
    return {name: vendor[f"selected_{name}"] for name in ("geomean", "p10", "least")}


def _run(*arguments: str) -> None:
    subprocess.run(["tilewise", *arguments], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Measure the targets of the command line, one after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", type=Target.parse, nargs="+")
    parser.add_argument("--teachers", type=Target.parse, nargs="+", default=())
    parser.add_argument("--n-splits", type=int, default=5)
    parser.add_argument("--scratch", type=Path, default=Path("build/targets"))
    args = parser.parse_args()
    for target in args.targets:
        figures = measure(target, args.teachers, args.n_splits, args.scratch)
        save(RESULTS / f"{'taught' if args.teachers else 'target'}_{target.name}.json", figures)
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
