"""Fuzz the importers with damaged files.

python -m benchmarks.robustness.fuzz_ingest [--count 100000] [--seed 0] [--reader csv]... [--folder DIR]

Each file is imported completely and checked against the guarantees in tests/data/reader_fuzz.py. Prints the number of
refused and imported files; on failures, the exit status is 1 and the damages of the first ones are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.robustness import fuzzing  # noqa: E402  the paths come first
from data import reader_fuzz  # noqa: E402
from mutate import Damage  # noqa: E402

SCHEMA_EVERY = 20  # one file in 20 is checked by the schema, which takes ten times as long as the import


def _check(reader: str, damages: Sequence[Damage], folder: Path, number: int) -> str:
    return reader_fuzz.check(reader, damages, folder, schema=number % SCHEMA_EVERY == 0)


if __name__ == "__main__":
    raise SystemExit(fuzzing.main(__doc__, reader_fuzz.READERS, _check))
