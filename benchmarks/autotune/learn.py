"""Train a model of each example on the keys to learn from, and judge its choices on the unseen ones.

PYTHONPATH=src:. python -m benchmarks.autotune.learn MEASURED_FOLDER PROJECT_FOLDER [RESULT_FILE]

MEASURED_FOLDER has the files of ``measure.py``. PROJECT_FOLDER becomes a project with definitions, tables and models,
the latter trained by ``tilewise train`` with its default settings. Unseen keys were measured twice: choices are judged
by the second measurement, and the first one's fastest configuration gives the noise ceiling. One example takes about a
minute on two cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.autotune.examples import KERNELS, kernel_of
from benchmarks.results import save
from tilewise.autotuning.op import KernelOp, record_table
from tilewise.autotuning.records import TunedEntry
from tilewise.collect import write_measurement_table
from tilewise.dispatch import Dispatcher
from tilewise.files import write_text
from tilewise.ops import Target


def read_records(file: Path, which: str) -> list[list[TunedEntry]]:
    """Return the records of each key of a set, in the order of measuring."""
    found: dict[str, list[TunedEntry]] = {}
    for line in file.read_text().splitlines():
        values = json.loads(line)
        if values["set"] == which:
            record = TunedEntry.from_dict(values["record"])
            found.setdefault(record.key.file, []).append(record)
    return list(found.values())


def learn(example: str, measured: Path, project: Path) -> Path:
    """Train a model, and return its folder."""
    op: KernelOp = kernel_of(example).op
    train = read_records(measured / f"{example}.jsonl", "train")
    first = train[0][0]
    target = op.target(first.key.dtypes, first.context.machine.arch)
    table, model = project / "data" / target.name / "benchmark.parquet", project / "models" / target.name
    if not table.exists():
        write_text(project / "conf" / "op" / f"{target.op}.yaml", json.dumps(op.definition.to_dict()))
        write_measurement_table(record_table(op, [r[0] for r in train], target, "benchmark"), table)
    if not model.exists():
        names = [f"op={target.op}", f"dtype={target.dtype}", f"arch={target.arch}", "holdout.fraction=0"]
        command = [
            "tilewise",
            "train",
            *names,
            f"data={table.relative_to(project)}",
            f"out={model.relative_to(project)}",
        ]
        subprocess.run(command, cwd=project, check=True)
    return model


def judge(example: str, measured: Path, model: Path) -> dict[str, Any]:
    """Return the efficiencies of choices for unseen keys: of the model, of one fixed configuration, and the ceiling."""
    kernel, dispatcher = kernel_of(example), Dispatcher.from_folder(model)
    train = read_records(measured / f"{example}.jsonl", "train")
    names = [c.name for c in kernel.configurations]
    target = Target.parse(model.name)
    configurations = kernel.op.configurations_of(target)
    shares = np.array([[_efficiency(r[0], name) for name in names] for r in train])
    fixed = names[int(shares.mean(0).argmax())]
    picks: dict[str, list[float]] = {"model": [], "ceiling": [], "fixed": [], "first": []}
    for one, two in read_records(measured / f"{example}.jsonl", "test"):
        chosen = configurations[dispatcher.select(kernel.op.problem(one.key)).kernel_name]
        by_way = {"model": chosen, "ceiling": one.fastest(names), "fixed": fixed, "first": names[0]}
        for way, name in by_way.items():
            picks[way].append(_efficiency(two, str(name)))
    figures = {way: {"mean": float(np.mean(v)), "p10": float(np.percentile(v, 10))} for way, v in picks.items()}
    return {
        "example": example,
        "target": target.name,
        "configurations": len(names),
        "train_keys": len(train),
        "unseen_keys": len(picks["model"]),
        **{f"{way}_{name}": round(100 * value, 2) for way, by in figures.items() for name, value in by.items()},
    }


def _efficiency(record: TunedEntry, name: str) -> float:
    """Return the fastest time over that of a configuration; 0 for one that failed."""
    fastest = record.fastest(record.measured)
    assert fastest is not None
    return record.latency_ms(fastest) / record.latency_ms(name) if name in record.measured else 0.0


def main(measured: str, project: str, result: str = "") -> None:
    """Train and judge all examples whose files are there."""
    cases = []
    for example in KERNELS:
        if Path(measured, f"{example}.jsonl").is_file():
            cases.append(judge(example, Path(measured), learn(example, Path(measured), Path(project))))
            print(cases[-1], flush=True)
    if result:
        save(Path(result), {"benchmark": "autotune_learn", "device": _device(Path(measured)), "cases": cases})


def _device(measured: Path) -> str:
    """Return the machine that measured, in words."""
    machine = read_records(next(measured.glob("*.jsonl")), "test")[0][0].context.machine
    return f"{machine.device}, driver {machine.driver}, torch {machine.torch}, triton {machine.triton}"


if __name__ == "__main__":
    main(*sys.argv[1:])
