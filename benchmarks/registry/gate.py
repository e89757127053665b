"""Time and memory of a gate decision: two models, 300 holdout problems x 110 kernels.

python -m benchmarks.registry.gate [--problems 300] [--trees 400] [--folder DIR] [--json FILE]

Two models of the default target are trained on the committed measurements and published in a separate registry. Then a
separate process judges one against the other: both are fetched, evaluated, timed, and compared in total and by slice.
Training and publishing are not counted. CPU seconds equal wall time on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import group_keys, holdout_mask, read_measurements
from tilewise.files import write_text
from tilewise.gate import Thresholds
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import OPS, Target
from tilewise.registry import list_versions, registry_session
from tilewise.registry.promotion import PromotionRules, judge, publish

TARGET = Target("grouped_conv", "forward", "bf16", "sm90")
FRACTION = 0.18


def build(folder: Path, data: Path, problems: int, trees: int) -> None:
    """Write the table to judge on, and publish two models with `trees` trees, of different seeds."""
    # Imported here, so that the measured process does not load it.
    from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

    frame = read_measurements(data, TARGET)
    held = holdout_mask(TARGET.op, group_keys(TARGET.op, frame), FRACTION)
    columns = list(OPS[TARGET.op].column_names())
    keep = frame.loc[held, columns].drop_duplicates().head(problems)
    frame[held].merge(keep, on=columns).to_parquet(folder / "holdout.parquet")
    few = frame[~held].merge(frame.loc[~held, columns].drop_duplicates().sample(300, random_state=0), on=columns)
    with registry_session(f"sqlite:///{folder / 'mlflow.db'}"):
        for seed in (0, 1):
            settings = TrainSettings(ModelSettings(n_estimators=trees), TuneSettings(n_trials=0), n_splits=2, seed=seed)
            result = train(few, TARGET, pool_of(frame, TARGET), load_arch(TARGET.arch), settings)
            write_artefact(folder / f"model{seed}", result.parts)
            publish(folder / f"model{seed}")


def measure(folder: Path) -> dict[str, Any]:
    """Measure one decision in this process: seconds and peak memory."""
    frame = pd.read_parquet(folder / "holdout.parquet")
    with registry_session(f"sqlite:///{folder / 'mlflow.db'}"):
        production, candidate = list_versions(TARGET.name)
        model = load_artefact(folder / "model1")
        libraries = _peak_mib()
        wall, cpu = time.perf_counter(), time.process_time()
        judged = judge(candidate, model, production, frame, PromotionRules(Thresholds.shipped(TARGET), FRACTION))
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "n_problems": judged.gate.n_problems,
        "n_rows": len(judged.ours.measured),
        "n_slices": len(judged.gate.slices),
        "trees": int(np.size(model.scores.roots)),
        "outcome": judged.outcome,
        "seconds": round(wall, 2),
        "cpu_seconds": round(cpu, 2),
        "before_mib": libraries,
        "peak_mib": _peak_mib(),
    }


def _peak_mib() -> int:
    """Return the peak memory of this process in MiB; getrusage would include its parent's."""
    line = next(s for s in Path("/proc/self/status").read_text().splitlines() if s.startswith("VmHWM"))
    return int(line.split()[1]) // 1024


def main() -> None:
    """Build, measure in a fresh process, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--trees", type=int, default=400)
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--folder", type=Path, help="keep what is built here, and use it again")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.folder or Path(scratch)
        if not (folder / "model1").exists():
            build(folder, args.data, args.problems, args.trees)
        command = [sys.executable, "-m", "benchmarks.registry.gate", "--measure", str(folder)]
        figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    if args.json:
        write_text(args.json, json.dumps(figures, indent=1) + "\n")
    print(", ".join(f"{name} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
