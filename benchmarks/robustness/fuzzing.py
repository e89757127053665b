"""The shared part of the fuzzing commands: readers must keep their guarantees on damaged files.

Each file is a valid one with one to four small damages (see tests/mutate.py). More than ten seconds of CPU time for one
file count as a hang, however busy the machine is. Equal reader, seed and number give equal damages, so every failure
can be reproduced.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import mutate  # of tests/, which the commands put on the path

HANG_S = 10
SHOWN = 5

Check = Callable[[str, Sequence[mutate.Damage], Path, int], str]


def main(doc: str | None, readers: Sequence[str], check: Check) -> int:
    """Run a fuzzing command and return its exit status.

    Args:
        doc: the command's documentation.
        readers: names of the readers.
        check: (reader, damages, folder, number) -> outcome of the file; it raises if a guarantee is broken.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="files per reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=readers)
    parser.add_argument("--folder", type=Path, help="folder of the damaged files; default: a temporary one")
    args = parser.parse_args()
    signal.signal(signal.SIGPROF, _hang)
    failed = sum(_fuzz(reader, check, args.count, args.seed, args.folder) for reader in args.reader or readers)
    return 1 if failed else 0


def _fuzz(reader: str, check: Check, count: int, seed: int, folder: Path | None) -> int:
    outcomes: Counter[str] = Counter()
    slowest, began = 0.0, time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        for number in range(count):
            damages = _damages(random.Random(f"{reader}-{seed}-{number}"))
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            try:
                outcomes[check(reader, damages, Path(scratch), number)] += 1
            except Exception:
                outcomes["FAILED"] += 1
                if outcomes["FAILED"] <= SHOWN:
                    print(f"{reader} {seed} {number}: {damages}\n{traceback.format_exc(limit=-4)}", flush=True)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - start)
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
    print(f"{reader}: {count} files: {counts}; slowest {slowest:.2f} s, {time.monotonic() - began:.0f} s", flush=True)
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
    raise TimeoutError(f"no result within {HANG_S} s of CPU time")
