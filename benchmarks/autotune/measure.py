"""Measure every configuration of each example on the keys to learn from and on the unseen ones, on a GPU.

PYTHONPATH=src:. python -m benchmarks.autotune.measure OUT_FOLDER [SECONDS_PER_EXAMPLE] [EXAMPLE ...]

Writes ``EXAMPLE.jsonl``: a line per key with its set and its record. Unseen keys are measured twice, which gives the
noise ceiling. All examples take about five minutes on one H200 with 16 cores.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from benchmarks.autotune.examples import KERNELS, compile_ahead, drawn_keys, interleaved, kernel_of


def measure(example: str, out: Path, seconds: float) -> None:
    """Measure one example for at most `seconds`, and print the counts."""
    kernel, (train, test) = kernel_of(example), drawn_keys(example)
    start = time.perf_counter()
    compile_ahead(example, [*train, *test], min(16, os.cpu_count() or 1))
    compiled, done = time.perf_counter() - start, 0
    with (out / f"{example}.jsonl").open("w") as file:
        for name, key in interleaved(train, test):
            if time.perf_counter() - start > seconds:
                break
            for _ in range(1 + (name == "test")):
                record = json.loads(kernel.measure(**key).dumps())
                file.write(json.dumps({"set": name, "record": record}) + "\n")
            done += 1
    failed = {text for _, text in record["failed"].values()}
    elapsed = time.perf_counter() - start
    print(
        f"{example}: {done} keys in {elapsed:.1f} s, {compiled:.1f} s of them compiling; failed: {failed}", flush=True
    )


def main(out: str, seconds: str = "70", *examples: str) -> None:
    """Measure the named examples, or all."""
    Path(out).mkdir(parents=True, exist_ok=True)
    for example in examples or KERNELS:
        measure(example, Path(out), float(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
