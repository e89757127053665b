"""A day of selections in one process: many calls, new problems and swaps of the model; none wrong, memory flat.

python -m benchmarks.robustness.load [--calls 100000000] [--problems 1000000] [--swaps 1000] [--save]

Calls repeat a working set of problems, as a network's layers do, and each answer is compared with the current model's.
New problems come in between and are asked once; of one in fifty the answer is compared with a ranking by the model
itself. Two models that disagree on most of the working set take turns.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ["TILEWISE_MEASURE"] = "off"

from benchmarks.results import RESULTS, save  # noqa: E402  the paths come first
from dispatch.turns import take_turns  # noqa: E402
from small_model import write_model  # noqa: E402
from synthetic import CONV, problems  # noqa: E402
from tilewise.dispatch import Dispatcher, Switches  # noqa: E402
from tilewise.model import TrainedModel, load_artefact  # noqa: E402
from tilewise.ops import GroupedConvProblem, Problem, Target  # noqa: E402

WORKING_SET, CHECK_EVERY = 200, 50


def new_problems(count: int) -> Iterator[GroupedConvProblem]:
    """Yield distinct problems, in an order that mixes all sizes."""
    radices = (64, 128, 128, 106)
    total, stride = 64 * 128 * 128 * 106, 40_503_127  # a prime: every index occurs once
    for i in range(count):
        index = i * stride % total
        digits = []
        for radix in radices:
            index, digit = divmod(index, radix)
            digits.append(digit)
        n, c, k, size = digits
        yield GroupedConvProblem(N=n + 1, C=8 * (c + 1), K=8 * (k + 1), G=1, Hi=size + 7, Wi=size + 7, Y=3, X=3)


def resident_mb() -> float:
    """Return the memory that this process occupies, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def simulate(calls: int, fresh: int, swaps: int, folder: Path) -> dict[str, object]:
    """Run the load; return its counts."""
    models = [
        load_artefact(write_model(folder / name, trees=60, sign=sign)) for name, sign in (("a", 1.0), ("b", -1.0))
    ]
    working = problems(Target.parse(CONV), WORKING_SET)
    stream = new_problems(fresh)
    dispatcher = Dispatcher(models[0].target, models[0].pool, models[0], 0, switches=Switches())
    turns = take_turns(dispatcher, models)
    made = seen = checked = wrong = 0
    memory, began = [], time.monotonic()
    for turn in range(swaps):
        model = next(turns)
        expected = [(problem, _best(model, problem)) for problem in working]
        until = calls * (turn + 1) // swaps
        new_until = fresh * (turn + 1) // swaps
        while made + seen < until or seen < new_until:
            wrong += sum(dispatcher.select(problem).kernel_name != name for problem, name in expected)
            made += len(expected)
            for _ in range(min(2 * fresh * len(expected) // calls + 1, new_until - seen)):
                problem = next(stream)
                name = dispatcher.select(problem).kernel_name
                if seen % CHECK_EVERY == 0:
                    checked += 1
                    wrong += name != _best(model, problem)
                seen += 1
        memory.append(resident_mb())
    settled = memory[len(memory) // 10]
    return {
        "command": f"python -m benchmarks.robustness.load --calls {calls} --problems {fresh} --swaps {swaps} --save",
        "calls": made + seen,
        "checked": made + checked,
        "problems": seen + len(working),
        "swaps": swaps,
        "wrong": wrong,
        "memory_mb_after_a_tenth": round(settled, 1),
        "memory_mb_at_the_end": round(memory[-1], 1),
        "memory_mb_most": round(max(memory), 1),
        "seconds": round(time.monotonic() - began),
        "cpu_seconds": round(time.process_time()),
    }


def _best(model: TrainedModel, problem: Problem) -> str:
    return str(model.pool.names[model.rank(problem)[0]])


def main() -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100_000_000)
    parser.add_argument("--problems", type=int, default=1_000_000)
    parser.add_argument("--swaps", type=int, default=1_000)
    parser.add_argument("--save", action="store_true", help="write the counts to benchmarks/results/load.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        counts = simulate(args.calls, args.problems, args.swaps, Path(scratch))
    print(counts)
    if args.save:
        save(RESULTS / "load.json", counts)
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
