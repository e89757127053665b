"""Fuzz the readers in C under libFuzzer with the address and undefined-behaviour sanitizers; needs clang.

CC=clang-14 python -m benchmarks.robustness.fuzz_c [--seconds 60] [--seed 1] [--reader model]... [--save]

Inputs grow from small valid files and are chosen by the code that they reach. An input that crashes, reads beyond its
memory, takes more than a second or a gigabyte is written to build/fuzz and fails the command; given as the only
argument, the program in build/fuzz repeats it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.results import RESULTS, load, save  # noqa: E402  the paths come first
from fuzzed.c_readers import HARNESSES, seed_corpus  # noqa: E402

BUILD, RESULT = ROOT / "build" / "fuzz", RESULTS / "fuzz_c.json"
FLAGS = ("-std=gnu11", "-O1", "-g", "-D_GNU_SOURCE", "-ffp-contract=off", "-fno-sanitize-recover=all")
SANITIZERS = "-fsanitize=fuzzer,address,undefined"
LIMITS = (
    "-timeout=10",
    "-rss_limit_mb=1024",
    "-max_len=60000",
    "-report_slow_units=1",
    "-print_final_stats=1",
    f"-artifact_prefix={BUILD}/",
)


def build(name: str) -> Path:
    """Compile a reader with its harness and the sanitizers; return the program."""
    BUILD.mkdir(parents=True, exist_ok=True)
    program = BUILD / name
    compiler, sources = os.environ.get("CC", "clang"), map(str, HARNESSES[name])
    subprocess.run([compiler, *FLAGS, SANITIZERS, *sources, "-o", str(program), "-lm", "-lpthread"], check=True)
    return program


def fuzz(name: str, seconds: int, seed: int) -> dict[str, Any]:
    """Fuzz one reader for a while; return its counts."""
    program, began = build(name), time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus"
        corpus.mkdir()
        seed_corpus(name, corpus)
        command = [str(program), str(corpus), f"-max_total_time={seconds}", f"-seed={seed}", *LIMITS]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        kept = len([*corpus.iterdir()])
    counts = dict(re.findall(r"stat::(\w+):\s+(\d+)", done.stderr))
    if done.returncode:
        print(done.stderr[-6000:])
    covered = re.findall(r"cov: (\d+)", done.stderr)
    return {
        "reader": name,
        "inputs": int(counts.get("number_of_executed_units", 0)),
        "failed": int(done.returncode != 0),
        "kept": kept,
        "edges": int(covered[-1]) if covered else 0,
        "slowest_s": int(counts.get("slowest_unit_time_sec", 0)),
        "peak_mb": int(counts.get("peak_rss_mb", 0)),
        "seconds": round(time.monotonic() - began),
        "seed": seed,
    }


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--reader", action="append", choices=list(HARNESSES))
    parser.add_argument("--save", action="store_true", help=f"keep the counts in {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    rows = [fuzz(name, args.seconds, args.seed) for name in args.reader or HARNESSES]
    failed = any(row["failed"] for row in rows)
    for row in rows:
        print(row)
    if args.save:
        known = {(r["reader"], r["seed"]): r for r in load(RESULT)["readers"]} if RESULT.is_file() else {}
        known |= {(r["reader"], r["seed"]): r for r in rows}
        command = "python -m benchmarks.robustness.fuzz_c --seconds SECONDS --seed SEED --save"
        rows = [known[key] for key in sorted(known)]
        save(RESULT, {"command": command, "sanitizers": "address, undefined", "readers": rows})
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
