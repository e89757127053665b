"""Time and peak memory of preparing tables of millions of rows, which do not fit into memory as a whole.

``python -m benchmarks.scale.prepare_rows [--rows 1000000,10000000,100000000] [--chunk-rows 4000000] [--output FILE]``

Writes made-up tables (see :mod:`benchmarks.scale.made_up`), and prepares each with the command line, in a process of
its own: reading, checking every row and every label, writing the training table.

- ``wall_s``, ``cpu_s``: time of that process, and its processor time, which other processes disturb little;
- ``rows_per_cpu_s``: rows per second of processor time;
- ``peak_gib``: its largest resident memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.results import RESULTS, save
from benchmarks.scale.made_up import TARGET, write_table
from tilewise.data import CHUNK_ROWS
from tilewise.markdown import table


@dataclass(frozen=True)
class Point:
    """The figures of one table; see the module."""

    rows: int
    wall_s: float
    cpu_s: float
    rows_per_cpu_s: int
    peak_gib: float


def measure(rows: int, chunk_rows: int) -> Point:
    """Write a table of about `rows` rows, and prepare it."""
    with TemporaryDirectory() as folder:
        count = write_table(Path(folder) / "data", rows)
        command = [sys.executable, "-m", "tilewise", "data", "prepare", f"target={TARGET.name}"]
        command += [f"input={folder}/data", f"output={folder}/prepared.parquet", f"chunk_rows={chunk_rows}"]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        if status:
            raise SystemExit(f"{' '.join(command)} ended with status {status}")
    cpu = used.ru_utime + used.ru_stime
    return Point(count, round(wall, 1), round(cpu, 1), round(count / cpu), round(used.ru_maxrss / 2**20, 2))


def main() -> None:
    """Measure each size, print a table, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="1000000,10000000,100000000")
    parser.add_argument("--chunk-rows", type=int, default=CHUNK_ROWS)
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_prepare.json")
    args = parser.parse_args()
    points = []
    for rows in map(int, args.rows.split(",")):
        points.append(measure(rows, args.chunk_rows))
        print(points[-1], flush=True)
        values = {
            "command": f"python -m benchmarks.scale.prepare_rows --rows {args.rows} --chunk-rows {args.chunk_rows}",
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[1], 1),
            "points": [asdict(p) for p in points],
        }
        save(args.output, values)
    cells = [[str(p.rows), f"{p.wall_s}", f"{p.cpu_s}", str(p.rows_per_cpu_s), f"{p.peak_gib}"] for p in points]
    print(table(["rows", "wall s", "CPU s", "rows per CPU second", "peak GiB"], cells))


if __name__ == "__main__":
    main()
