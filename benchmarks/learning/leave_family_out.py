"""Selection from a pool with kernels of a family that training never saw.

python -m benchmarks.learning.leave_family_out TARGET [--data FILE] [--by pipeline|tile] [--trees 100] [--problems N]

For each family (the kernels of a pipeline, or of a tile_m x tile_n), a model is trained on a table without the family's
rows and selects from the whole pool. It is compared with a selection from the pool without the family, and with a model
trained on all rows. Judging problems are split from the training problems, so the holdout is not used. Fewer trees and
problems than in a real training: compare the efficiencies with each other only.
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
from tilewise.data import group_keys, holdout_mask, is_primary, problem_index, read_measurements
from tilewise.evaluate import evaluate
from tilewise.kernels import Pool
from tilewise.model import TrainedModel, load_artefact, write_artefact
from tilewise.ops import OPS, Target
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

HOLDOUT, JUDGED = 0.18, 0.43  # by hash: the holdout ends at the first bound, the judging problems at the second
FEWEST = 3  # least kernels of a family


def main() -> None:
    """Measure, print a table or JSON, keep the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--by", choices=("pipeline", "tile"), default="pipeline")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--problems", type=int, default=800, help="maximum of training and judging problems together")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the JSON result")
    parser.add_argument(
        "--out", type=Path, help="result file (default: benchmarks/results/leave_family_out_TARGET.json)"
    )
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
    """Return the primary runs of at most `most` problems outside the holdout, evenly spread over the table."""
    rows = frame[~holdout_mask(target.op, group_keys(target.op, frame), HOLDOUT)]
    rows = rows[is_primary(rows, target.op)].sort_values(list(OPS[target.op].column_names()), kind="stable")
    number = problem_index(rows, target.op)
    n = int(number.max()) + 1
    chosen = np.unique(np.linspace(0, n - 1, min(most, n)).round())
    return rows[np.isin(number, chosen)].reset_index(drop=True)


def families(pool: Pool, by: str) -> dict[str, tuple[str, ...]]:
    """Return the kernel names of each family, largest first, without small families."""
    found: dict[str, list[str]] = {}
    for kernel, name in zip(pool.kernels, pool.names, strict=True):
        values = kernel.to_dict()
        family = values["pipeline"] if by == "pipeline" else f"{values['tile_m']}x{values['tile_n']}"
        found.setdefault(str(family), []).append(name)
    large = {family: tuple(names) for family, names in found.items() if len(names) >= FEWEST}
    return dict(sorted(large.items(), key=lambda item: (-len(item[1]), item[0])))


def leave_out(frame: pd.DataFrame, target: Target, settings: TrainSettings, by: str) -> dict[str, Any]:
    """Return the scores of each family, as plain data."""
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
    """Train a model that may select from all of `pool`, on whatever rows the table has."""
    result = train(frame, target, pool, load_arch(target.arch), settings)
    with tempfile.TemporaryDirectory() as folder:
        write_artefact(Path(folder) / "model", result.parts)
        return load_artefact(Path(folder) / "model", verify=False)


def judged(model: TrainedModel, frame: pd.DataFrame, without: Collection[str] = ()) -> pd.DataFrame:
    """Return one row per judged problem: the model's selection outside `without`, and the best measured kernel."""
    problem = list(OPS[model.target.op].column_names())
    best = evaluate(model, frame, JUDGED).per_problem[[*problem, "oracle", "oracle_tflops"]]
    chosen = evaluate(model, frame[~frame["kernel_name"].isin(without)], JUDGED).per_problem
    both = best.merge(chosen[[*problem, "selected", "selected_tflops"]], on=problem, how="left")  # NaN if none is left
    return both.assign(efficiency=(both["selected_tflops"] / both["oracle_tflops"]).fillna(0.0))


def figures(whole: pd.DataFrame, known: pd.DataFrame, everything: pd.DataFrame, family: set[str]) -> dict[str, float]:
    """Return figures of a model that never saw `family`: from the whole pool, and from the known kernels."""
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
    """Return the figures in Markdown."""
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
