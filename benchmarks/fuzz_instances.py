"""The readers of kernel instances on damaged files, as many as wanted.

python -m benchmarks.fuzz_instances [--count 100000] [--seed 0] [--reader conf]... [--folder DIR]

Each file is read as `tilewise instances` reads it and held to what tests/kernels/instance_fuzz.py says every reader
promises. Ends with exit status 1 and the damages of the first failures, else prints how many files were refused and
read.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks import fuzzing  # noqa: E402  the paths come first
from kernels import instance_fuzz  # noqa: E402
from mutate import Damage  # noqa: E402


def _check(reader: str, damages: Sequence[Damage], folder: Path, number: int) -> str:
    return instance_fuzz.check(reader, damages, folder)


if __name__ == "__main__":
    raise SystemExit(fuzzing.main(__doc__, instance_fuzz.READERS, _check))
