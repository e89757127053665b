"""The importers on damaged files, as many as wanted.

python -m benchmarks.fuzz_ingest [--count 100000] [--seed 0] [--reader csv]... [--folder DIR]

Each file is a whole one with one to four small damages (see tests/mutate.py), imported completely and held to what
tests/data/reader_fuzz.py says every importer promises. A file that takes longer than ten seconds counts as a hang. Ends
with exit status 1 and the damages of the first failures, else prints how many files were refused and imported.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

import mutate  # noqa: E402  the paths come first
from data import reader_fuzz  # noqa: E402

HANG_S = 10
SHOWN = 5
SCHEMA_EVERY = 20  # files whose rows all go through the schema; it takes ten times as long as the import


def main() -> int:
    """Fuzz each reader."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="files a reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=reader_fuzz.READERS)
    parser.add_argument("--folder", type=Path, help="where files are made; default: a temporary folder")
    args = parser.parse_args()
    signal.signal(signal.SIGALRM, _hang)
    failed = 0
    for reader in args.reader or reader_fuzz.READERS:
        failed += _fuzz(reader, args.count, args.seed, args.folder)
    return 1 if failed else 0


def _fuzz(reader: str, count: int, seed: int, folder: Path | None) -> int:
    outcomes: Counter[str] = Counter()
    slowest, began = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for number in range(count):
            damages = _damages(random.Random(f"{reader}-{seed}-{number}"))
            start = time.monotonic()
            signal.alarm(HANG_S)
            try:
                outcomes[reader_fuzz.check(reader, damages, Path(scratch), schema=number % SCHEMA_EVERY == 0)] += 1
            except Exception:
                outcomes["FAILED"] += 1
                if outcomes["FAILED"] <= SHOWN:
                    print(f"{reader} {seed} {number}: {damages}\n{traceback.format_exc(limit=-4)}", flush=True)
            finally:
                signal.alarm(0)
            slowest = max(slowest, time.monotonic() - start)
    told = ", ".join(f"{n} {what}" for what, n in sorted(outcomes.items()))
    print(f"{reader}: {count} files: {told}; slowest {slowest:.2f} s, {time.monotonic() - began:.0f} s", flush=True)
    return outcomes["FAILED"]


def _damages(rng: random.Random) -> list[mutate.Damage]:
    return [
        mutate.Damage(
            rng.choices(mutate.KINDS, (4, 3, 3, 2, 1))[0],
            rng.random(),
            rng.choice([1, 1, 2, 5, 30, 200]),
            rng.choice(mutate.TOKENS) if rng.random() < 0.7 else rng.randbytes(rng.choice([1, 1, 2, 8])),
        )
        for _ in range(rng.choice([1, 1, 1, 2, 4]))
    ]


def _hang(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError(f"no answer within {HANG_S} s")


if __name__ == "__main__":
    raise SystemExit(main())
