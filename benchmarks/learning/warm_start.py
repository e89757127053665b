"""Time saved by a warm start, and the quality of the continued model.

python -m benchmarks.learning.warm_start TARGET [--data data] [--problems N] [--trees 400] [--threads 0] [--json]

Problems outside the holdout are split by group: 20 % judge; of the others, 80 % train the base and 20 % are new. Two
trainings are timed, both without tuning and each with its cross-validation: one on all of the others, and a warm start
of the base on the new problems. Then the base, the continued and the fully trained model select for the judging
problems.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import group_keys, holdout_mask, read_measurements
from tilewise.evaluate import evaluate
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.train import BaseModel, ModelSettings, TrainSettings, TuneSettings, continue_training, pool_of, train


def measure(frame: pd.DataFrame, target: Target, settings: TrainSettings, problems: int | None) -> dict[str, Any]:
    """Return times in seconds, and efficiencies in percent."""
    keys = group_keys(target.op, frame)
    frame, keys = (x[~holdout_mask(target.op, keys, settings.holdout_fraction)] for x in (frame, keys))
    number = np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1)
    dealt = np.random.default_rng(0).permutation(int(number.max()) + 1)[number]
    if problems:
        frame, dealt = frame[dealt < problems], dealt[dealt < problems]
    judging, new = dealt % 5 == 0, (dealt % 5 > 0) & (dealt // 5 % 5 == 0)
    pool, arch = pool_of(frame, target), load_arch(target.arch)
    results, seconds = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name, rows in (("base", ~judging & ~new), ("whole", ~judging), ("continued", new)):
            start = time.perf_counter()
            if name == "continued":
                result = continue_training(frame[rows], target, BaseModel.load(folder / "base"), settings)
            else:
                result = train(frame[rows], target, pool, arch, settings)
            seconds[name] = time.perf_counter() - start
            write_artefact(folder / name, result.parts)
            found = evaluate(load_artefact(folder / name), frame[judging]).metrics
            results[name] = {k: 100 * found[f"{k}_efficiency"] for k in ("mean", "median", "p10", "min")}
    return {
        "target": target.name,
        "groups": len(np.unique(dealt)),
        "seconds": seconds,
        "share": seconds["continued"] / seconds["whole"],
        "efficiency": results,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int, help="groups of problems to use; default: all")
    parser.add_argument("--trees", type=int, default=ModelSettings.n_estimators)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    settings = TrainSettings(ModelSettings(n_estimators=args.trees), TuneSettings(n_trials=0), threads=args.threads)
    found = measure(read_measurements(args.data, args.target), args.target, settings, args.problems)
    if args.json:
        print(json.dumps(found))
        return
    print("| model | s | mean | median | P10 | worst |\n| --- | --- | --- | --- | --- | --- |")
    for name, e in found["efficiency"].items():
        shown = " | ".join(f"{e[k]:.2f}" for k in ("mean", "median", "p10", "min"))
        print(f"| {name} | {found['seconds'][name]:.1f} | {shown} |")
    print(f"{found['target']}, {found['groups']} groups: {100 * found['share']:.0f} % of a whole training's time")


if __name__ == "__main__":
    main()
