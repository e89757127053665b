"""Fuzz every reader of the project: damaged files must be refused in words or read, quickly, in bounded memory.

python -m benchmarks.robustness.fuzz [--seconds 60] [--seed 0] [--reader NAME]... [--guided] [--only N] [--save]

Each input is a valid file of tests/fuzzed/ with random damages of its bytes or of its structure; checksums inside are
made right again. More than one second of CPU time counts as a hang, more than 1 GiB above the start as unbounded. Equal
reader, seed and number give an equal input; a failure prints the command that repeats it. With ``--guided``, inputs are
chosen by the code they reach (atheris, ``pip install atheris``). On failures the exit status is 1.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from benchmarks.results import RESULTS, load, save  # noqa: E402  the paths come first
from fuzzed.contract import Reader  # noqa: E402
from fuzzed.readers import READERS  # noqa: E402

HANG_S, MEMORY_BYTES, SHOWN = 1.0, 1 << 30, 5
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None
RESULT = RESULTS / "fuzz.json"


@dataclass(frozen=True)
class Tally:
    """The inputs of one reader.

    Attributes:
        reader: its name.
        method: ``random`` or ``guided``.
        inputs: how many files it read.
        refused: how many of them it refused; of guided inputs this is unknown.
        failed: how many broke a guarantee.
        slowest_s: CPU seconds of the slowest input.
        seed: of the random damages.
        seconds: wall time.
    """

    reader: str
    method: str
    inputs: int
    refused: int | None
    failed: int
    slowest_s: float
    seed: int
    seconds: float


class Hang(BaseException):
    """An input that takes too long; not an Exception, which a reader could take for damage."""


def fuzz(name: str, seconds: float, seed: int, folder: Path) -> Tally:
    """Read damaged files for a while."""
    outcomes: Counter[str] = Counter()
    slowest, began, number = 0.0, time.monotonic(), 0
    while time.monotonic() < began + seconds:
        start = time.process_time()
        outcomes[_outcome(READERS[name], name, seed, number, folder, shown=outcomes["FAILED"] < SHOWN)] += 1
        slowest = max(slowest, time.process_time() - start)
        number += 1
    failed, took = outcomes["FAILED"], time.monotonic() - began
    return Tally(name, "random", number, outcomes["refused"], failed, round(slowest, 3), seed, round(took, 1))


def _outcome(reader: Reader, name: str, seed: int, number: int, folder: Path, *, shown: bool) -> str:
    content = reader.variant(random.Random(f"{name}-{seed}-{number}"))
    try:
        with _limited_time():
            return reader.read(content, folder)
    except (Exception, Hang):
        if shown:
            print(f"python -m benchmarks.robustness.fuzz --reader {name} --seed {seed} --only {number}")
            traceback.print_exc(limit=-4, file=sys.stdout)
        return "FAILED"


@contextmanager
def _limited_time() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def fuzz_guided(name: str, seconds: float, seed: int, folder: Path) -> Tally:
    """Let atheris choose inputs in a process of its own."""
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "intact").write_bytes(READERS[name].sample())
    command = [
        sys.executable,
        "-m",
        "benchmarks.robustness.guided",
        name,
        str(corpus),
        f"-max_total_time={seconds:.0f}",
    ]
    command += [
        f"-seed={seed + 1}",
        "-rss_limit_mb=2048",
        "-timeout=10",
        "-max_len=200000",
        f"-artifact_prefix={folder}/",
    ]
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    runs = re.findall(r"^Done (\d+) runs|^#(\d+)\t", done.stderr, re.MULTILINE)
    inputs = max((int(a or b) for a, b in runs), default=0)
    failed = int(done.returncode != 0)
    if failed:
        print(done.stderr[-4000:])
        for crash in (*folder.glob("crash-*"), *folder.glob("timeout-*"), *folder.glob("oom-*")):
            print(f"{crash.name}: {crash.read_bytes()!r:.2000}")
    return Tally(name, "guided", inputs, None, failed, 0.0, seed, round(time.monotonic() - began, 1))


def limit_memory() -> None:
    """Let an input that takes more than a gigabyte fail with a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def quiet() -> None:
    """Silence warnings: a million damaged files have as many."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


def _hang(signum: int, frame: FrameType | None) -> None:
    raise Hang(f"no result within {HANG_S:g} s of CPU time")


def _keep(tallies: list[Tally]) -> None:
    """Replace the results of the same readers, methods and seeds in the result file."""
    known = {(r["reader"], r["method"], r["seed"]): r for r in load(RESULT)["readers"]} if RESULT.is_file() else {}
    known |= {(t.reader, t.method, t.seed): asdict(t) for t in tallies}
    rows = [known[key] for key in sorted(known)]
    limits = {"hang_s": HANG_S, "memory_bytes": MEMORY_BYTES}
    totals = {"inputs": sum(r["inputs"] for r in rows), "failed": sum(r["failed"] for r in rows)}
    save(RESULT, {"command": "python -m benchmarks.robustness.fuzz --save", **limits, **totals, "readers": rows})


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", action="append", choices=list(READERS))
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--only", type=int, help="the number of one input")
    parser.add_argument("--save", action="store_true", help=f"keep the counts in {RESULT.relative_to(ROOT)}")
    args = parser.parse_args()
    signal.signal(signal.SIGPROF, _hang)
    quiet()
    tallies = []
    for name in args.reader or READERS:
        with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
            folder = Path(scratch) / "files"
            folder.mkdir()
            READERS[name].read(READERS[name].sample(), folder)  # what is loaded once does not count
            if args.only is not None:
                print(_outcome(READERS[name], name, args.seed, args.only, folder, shown=True))
                continue
            limit_memory()
            tallies.append((fuzz_guided if args.guided else fuzz)(name, args.seconds, args.seed, folder))
            print(tallies[-1], flush=True)
    if args.save:
        _keep(tallies)
    return 1 if any(tally.failed for tally in tallies) else 0


if __name__ == "__main__":
    raise SystemExit(main())
