"""What happens when the pool changes: kernels of a family that training never saw, in a pool to select from.

python -m benchmarks.leave_family_out TARGET [--data FILE] [--by pipeline|tile] [--trees 100] [--problems 800] [--json]

For each family (the kernels of a pipeline, or of a tile_m x tile_n), a model is trained on a table without its rows,
and selects from the whole pool; besides, from the pool without the family, and a model that saw all. Judged on problems
that no model here saw: a split of the training problems, so the holdout is not looked at. Fewer trees and problems than
a training has, so efficiencies compare with each other, not with other pages.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.results import RESULTS, save
from tilewise.arch import load_arch
from tilewise.data.rows import problem_index
from tilewise.data.schema import read_measurements
from tilewise.data.splits import group_keys, holdout_mask, is_primary
from tilewise.evaluate.holdout import evaluate
from tilewise.kernels.pool import Pool
from tilewise.model.artefact import load_artefact, write_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Target
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

HOLDOUT, JUDGED = 0.18, 0.43  # by hash: the first part is left alone, the problems between the two judge
FEWEST = 3  # kernels that make a family


def main() -> None:
    """Measure, print a table or JSON, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--by", choices=("pipeline", "tile"), default="pipeline")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument(
        "--problems", type=int, default=800, help="at most so many, of training and judged ones together"
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON that is kept")
    parser.add_argument("--out", type=Path, help="where to keep it (benchmarks/results/leave_family_out_TARGET.json)")
    args = parser.parse_args()
    target = Target.parse(args.target)
    frame = thinned(read_measurements(args.data, target), target, args.problems)
    settings = TrainSettings(
        ModelSettings(n_estimators=args.trees), TuneSettings(n_trials=0), n_splits=2, threads=args.threads,
        holdout_fraction=JUDGED,
    )  # fmt: skip
    found = leave_out(frame, target, settings, args.by)
    path = args.out or RESULTS / f"leave_family_out_{target.name}.json"
    save(path, found | {"trees": args.trees})
    print(path.read_text() if args.json else table(found), end="")


def thinned(frame: pd.DataFrame, target: Target, most: int) -> pd.DataFrame:
    """The primary runs of at most `most` problems outside the holdout, evenly spread over the table."""
    rows = frame[~holdout_mask(target.op, group_keys(target.op, frame), HOLDOUT)]
    rows = rows[is_primary(rows, target.op)].sort_values(list(OPS[target.op].column_names()), kind="stable")
    number = problem_index(rows, target.op)
    n = int(number.max()) + 1
    chosen = np.unique(np.linspace(0, n - 1, min(most, n)).round())
    return rows[np.isin(number, chosen)].reset_index(drop=True)


def families(pool: Pool, by: str) -> dict[str, tuple[str, ...]]:
    """The names of the kernels of each family, largest first; small families are left out."""
    found: dict[str, list[str]] = {}
    for kernel, name in zip(pool.kernels, pool.names, strict=True):
        values = kernel.to_dict()
        family = values["pipeline"] if by == "pipeline" else f"{values['tile_m']}x{values['tile_n']}"
        found.setdefault(str(family), []).append(name)
    kept = {family: tuple(names) for family, names in found.items() if len(names) >= FEWEST}
    return dict(sorted(kept.items(), key=lambda item: (-len(item[1]), item[0])))


def leave_out(frame: pd.DataFrame, target: Target, settings: TrainSettings, by: str) -> dict[str, Any]:
    """The scores of each family, as plain data."""
    pool = pool_of(frame, target)
    everything = judged(fitted(frame, target, pool, settings), frame)
    records = []
    for family, names in families(pool, by).items():
        print(f"{target.name}: without {family}, {len(names)} of {len(pool)} kernels", file=sys.stderr)
        rest = frame[~frame["kernel_name"].isin(names)]
        model = fitted(rest, target, pool, settings)
        records.append(
            {"family": family, "kernels": len(names)}
            | figures(judged(model, frame), judged(model, frame, names), everything, set(names))
        )
    return {
        "target": target.name,
        "by": by,
        "pool_size": len(pool),
        "n_problems": len(everything),
        "mean_efficiency": float(everything["efficiency"].mean()),
        "p10_efficiency": float(np.percentile(everything["efficiency"], 10)),
        "families": records,
    }


def fitted(frame: pd.DataFrame, target: Target, pool: Pool, settings: TrainSettings) -> TrainedModel:
    """A model that may choose from all of `pool`, whatever rows there are to learn from."""
    result = train(frame, target, pool, load_arch(target.arch), settings)
    with tempfile.TemporaryDirectory() as folder:
        write_artefact(Path(folder) / "model", result.parts)
        return load_artefact(Path(folder) / "model", verify=False)


def judged(model: TrainedModel, frame: pd.DataFrame, without: Collection[str] = ()) -> pd.DataFrame:
    """A row a judged problem: what the model selects outside `without`, and the best of all that were measured."""
    problem = list(OPS[model.target.op].column_names())
    best = evaluate(model, frame, JUDGED).per_problem[[*problem, "oracle", "oracle_tflops"]]
    chosen = evaluate(model, frame[~frame["kernel_name"].isin(without)], JUDGED).per_problem
    both = best.merge(chosen[[*problem, "selected", "selected_tflops"]], on=problem, how="left")  # none left: NaN
    return both.assign(efficiency=(both["selected_tflops"] / both["oracle_tflops"]).fillna(0.0))


def figures(whole: pd.DataFrame, known: pd.DataFrame, everything: pd.DataFrame, family: set[str]) -> dict[str, float]:
    """How a model that never saw `family` selects, from the whole pool and from what it knows."""
    own = everything["oracle"].isin(family).to_numpy()
    selected = whole["selected"].isin(family).to_numpy()
    return {
        "mean_efficiency": float(whole["efficiency"].mean()),
        "p10_efficiency": float(np.percentile(whole["efficiency"], 10)),
        "mean_efficiency_known_pool": float(known["efficiency"].mean()),
        "p10_efficiency_known_pool": float(np.percentile(known["efficiency"], 10)),
        "oracle_share": float(own.mean()),
        "selected_share": float(selected.mean()),
        "hit_share": float((own & selected).sum() / max(own.sum(), 1)),
    }


def table(found: Mapping[str, Any]) -> str:
    """The figures in Markdown."""
    from tilewise.markdown import table as markdown

    def pair(record: Mapping[str, Any], suffix: str = "") -> str:
        return " / ".join(f"{100 * record[n + suffix]:.2f}" for n in ("mean_efficiency", "p10_efficiency"))

    rows = [["(none)", "0", pair(found), pair(found), "", "", ""]]
    for r in found["families"]:
        shares = (f"{100 * r[n]:.0f} %" for n in ("oracle_share", "selected_share", "hit_share"))
        rows.append([r["family"], str(r["kernels"]), pair(r), pair(r, "_known_pool"), *shares])
    header = [
        "never seen",
        "kernels",
        "whole pool",
        "known pool",
        "is the oracle",
        "is selected",
        "of the oracles found",
    ]
    return markdown(header, rows)


if __name__ == "__main__":
    main()
