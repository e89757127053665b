"""Fuzz the readers of kernel instances with damaged files.

python -m benchmarks.robustness.fuzz_instances [--count 100000] [--seed 0] [--reader conf]... [--folder DIR]

Each file is read as by `tilewise instances` and checked against the guarantees in tests/kernels/instance_fuzz.py.
Prints the number of refused and read files; on failures, the exit status is 1 and the damages of the first ones are
printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.robustness import fuzzing  # noqa: E402  the paths come first
from kernels import instance_fuzz  # noqa: E402
from mutate import Damage  # noqa: E402


def _check(reader: str, damages: Sequence[Damage], folder: Path, number: int) -> str:
    return instance_fuzz.check(reader, damages, folder)


if __name__ == "__main__":
    raise SystemExit(fuzzing.main(__doc__, instance_fuzz.READERS, _check))
