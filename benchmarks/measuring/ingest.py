"""Speed and memory of importing files of CK Tile and MIOpen.

python -m benchmarks.measuring.ingest [--log-mb 2048] [--csv-rows 2000000] [--json-mb 64] [--find-db-rows 650000]
                                      [--folder DIR]

Generates its input: a CSV of grouped convolutions (24 kernels per problem), a benchmark JSON and a streaming log of
matrix products, and a packed find database (a few real lines, repeated). A fresh process on one core imports each file.
All steps count: recognising, hashing, parsing, checking, writing; loading the libraries does not. Prints rows and MB
per second of CPU time (`wall s` is longer on a busy machine), the peak memory of the process, and its memory after
loading the libraries.
"""

from __future__ import annotations

import argparse
import bz2
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

COLUMNS = (
    *(("input", 22), ("MB", 8), ("rows", 12), ("wall s", 8), ("core s", 8)),
    *(("rows/s", 10), ("MB/s", 8), ("MB memory", 12), ("libraries", 11)),
)
_CHILD = """
import json, resource, sys, time
from pathlib import Path
from tilewise.data.importers import ingest_file
from tilewise.ops import Target
libraries = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
wall, cpu = time.perf_counter(), time.process_time()
report = ingest_file(Path(sys.argv[1]), Target.parse(sys.argv[2]), Path(sys.argv[3]))
print(json.dumps({
    "wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "rows": report.rows, "lost": report.lost,
    "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "libraries": libraries / 1024,
}))
"""


def main() -> None:
    """Generate files, import them, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log-mb", type=int, default=2048)
    parser.add_argument("--csv-rows", type=int, default=2_000_000)
    parser.add_argument("--json-mb", type=int, default=64)
    parser.add_argument("--find-db-rows", type=int, default=650_000)
    parser.add_argument("--folder", type=Path, help="folder of the generated input; default: a temporary one")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        print("".join(f"{title:>{width}}" for title, width in COLUMNS))
        for name, target, make, size in (
            ("input.csv", "grouped_conv_forward_bf16_gfx950", _make_csv, args.csv_rows),
            ("input.json", "gemm_universal_fp8_gfx950", _make_json, args.json_mb),
            ("input.log", "gemm_universal_fp8_gfx950", _make_log, args.log_mb),
            ("gfx90a68.fdb.txt.bz2", "grouped_conv_forward_bf16_gfx950", _make_find_db, args.find_db_rows),
        ):
            path = Path(folder) / name
            make(path, size)
            _measure(name, path, target)
            path.unlink()


def _measure(name: str, path: Path, target: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    output = path.with_suffix(".parquet")
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path), target, str(output)],
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    output.unlink()
    found = json.loads(done.stdout)
    megabytes, seconds = path.stat().st_size / 1e6, found["cpu"]
    if found["lost"]:
        raise SystemExit(f"{name}: {found['lost']} rows lost")
    figures = (
        *(name, f"{megabytes:.0f}", found["rows"], f"{found['wall']:.1f}", f"{seconds:.1f}"),
        *(
            f"{found['rows'] / seconds:.0f}",
            f"{megabytes / seconds:.1f}",
            f"{found['rss']:.0f}",
            f"{found['libraries']:.0f}",
        ),
    )
    print("".join(f"{figure:>{width}}" for figure, (_, width) in zip(figures, COLUMNS, strict=True)))


def _write(path: Path, pieces: Iterable[str], size: int) -> None:
    """Write pieces until the file has `size` bytes."""
    written = 0
    with path.open("w") as file:
        for piece in pieces:
            written += file.write(piece)
            if written >= size:
                return


def _make_csv(path: Path, rows: int) -> None:
    import ck_files

    problems = ck_files.conv_problems(-(-rows // len(ck_files.CONV_KERNELS)))
    with path.open("w") as file:
        file.writelines(f"{line}\n" for line in itertools.islice(ck_files.csv_lines(problems), rows + 1))


def _make_json(path: Path, megabytes: int) -> None:
    import ck_files

    path.write_text(json.dumps(ck_files.benchmark_json(ck_files.gemm_problems(megabytes * 1000)), indent=2))


def _make_find_db(path: Path, rows: int) -> None:
    lines = (ROOT / "tests" / "data" / "miopen" / "gfx90a68.HIP.fdb.txt").read_text().splitlines(keepends=True)
    sound = [line for number, line in enumerate(lines, 1) if number not in (1, 5)]
    timings = sum(line.count(";") + 1 for line in sound)
    path.write_bytes(bz2.compress("".join(sound).encode() * -(-rows // timings)))


def _make_log(path: Path, megabytes: int) -> None:
    import ck_files

    # 200 problems, repeated: generating is slower than importing
    pieces = list(ck_files.log_pieces(ck_files.gemm_problems(200)))
    _write(path, itertools.cycle(pieces), megabytes * 1_000_000)


if __name__ == "__main__":
    main()
