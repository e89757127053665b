"""The importers on damaged files, as many as wanted.

python -m benchmarks.fuzz_ingest [--count 100000] [--seed 0] [--reader csv]... [--folder DIR]

Each file is imported completely and held to what tests/data/reader_fuzz.py says every importer promises. Ends with exit
status 1 and the damages of the first failures, else prints how many files were refused and imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks import fuzzing  # noqa: E402  the paths come first
from data import reader_fuzz  # noqa: E402
from mutate import Damage  # noqa: E402

SCHEMA_EVERY = 20  # files whose rows all go through the schema; it takes ten times as long as the import


def _check(reader: str, damages: Sequence[Damage], folder: Path, number: int) -> str:
    return reader_fuzz.check(reader, damages, folder, schema=number % SCHEMA_EVERY == 0)


if __name__ == "__main__":
    raise SystemExit(fuzzing.main(__doc__, reader_fuzz.READERS, _check))
