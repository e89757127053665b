"""Time and peak memory from measurements to LightGBM's bins, for tables that do not fit into memory as a whole.

``python -m benchmarks.scale.prepare_rows [--rows 1000000,10000000] [--chunk-rows 1000000] [--output FILE]``

Writes made-up tables (see :mod:`benchmarks.scale.made_up`), and measures two processes:

- ``prepare``: ``tilewise data prepare``: reading, checking every row and every label, writing the training table;
- ``bins``: the steps of ``tilewise train`` before the first tree: reading and checking that table for its kernels,
  reading its labels, computing features, and cutting them into bins.

Of each: ``wall_s``; ``cpu_s``, processor time, which other processes disturb less; and ``peak_gib``, the largest
resident memory. Each works on two cores. ``rows_per_s`` divides the rows by the seconds of both, one after the other.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from benchmarks.results import RESULTS, conditions, save
from benchmarks.scale import figures
from benchmarks.scale.made_up import TARGET, write_table
from tilewise.arch import load_arch
from tilewise.data import open_measurements
from tilewise.train import TrainingData, TrainSettings, build_table, pool_of


def measure(rows: int, chunk_rows: int) -> dict[str, Any]:
    """Write a table of about `rows` rows, prepare it, and cut its features into bins."""
    with TemporaryDirectory() as folder:
        prepared, script = f"{folder}/prepared.parquet", "benchmarks.scale.prepare_rows"
        # By another process: the peak of a process counts the memory of the one that started it.
        _run("-m", script, "--rows", str(rows), "--write", f"{folder}/data")
        count = sum(pq.read_metadata(file).num_rows for file in Path(folder, "data").iterdir())
        prepare = ["-m", "tilewise", "data", "prepare", f"target={TARGET.name}", f"chunk_rows={chunk_rows}"]
        point: dict[str, Any] = {"rows": count, "prepare": _run(*prepare, f"input={folder}/data", f"output={prepared}")}
        point["bins"] = _run("-m", script, "--chunk-rows", str(chunk_rows), "--bins-of", prepared)
    return point | {"rows_per_s": round(count / sum(point[stage]["wall_s"] for stage in figures.STAGES))}


def _run(*arguments: str) -> dict[str, float]:
    """Run Python in a process of its own, and return its figures."""
    start = time.monotonic()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    if status:
        raise SystemExit(f"{' '.join(arguments)} ended with status {status}")
    cpu = used.ru_utime + used.ru_stime
    return {"wall_s": round(wall, 1), "cpu_s": round(cpu, 1), "peak_gib": round(used.ru_maxrss / 2**20, 2)}


def cut(file: Path, chunk_rows: int) -> TrainingData:
    """Return the data of a training on a prepared table, with its bins."""
    rows, settings = open_measurements(file, TARGET, chunk_rows), TrainSettings()
    pool, arch = pool_of(rows, TARGET), load_arch(TARGET.arch)
    return TrainingData.prepare(build_table(rows, TARGET, pool, arch, settings.holdout_fraction), settings)


def main() -> None:
    """Measure each size, print a table, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,10000000")
    parser.add_argument("--chunk-rows", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_prepare.json")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--bins-of", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        write_table(args.write, int(args.rows))
        return
    if args.bins_of:
        cut(args.bins_of, args.chunk_rows)
        return
    values: dict[str, Any] = {
        **conditions(f"python -m benchmarks.scale.prepare_rows --rows {args.rows} --chunk-rows {args.chunk_rows}"),
        "chunk_rows": args.chunk_rows,
        "points": [],
    }
    for rows in map(int, args.rows.split(",")):
        values["points"].append(measure(rows, args.chunk_rows))
        print(values["points"][-1], flush=True)
        save(args.output, values)
    print(figures.prepared(values))


if __name__ == "__main__":
    main()
