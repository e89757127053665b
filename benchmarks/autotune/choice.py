"""Time the choice for unseen keys on this machine's processor: the median of all drawn keys, without a launch.

PYTHONPATH=src:. python -m benchmarks.autotune.choice MODELS_FOLDER

Needs no GPU. The machine that times calls on a GPU may lack the compiled ranking core; then NumPy ranks there.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

from benchmarks.autotune.examples import KERNELS, drawn_keys, kernel_of
from tilewise.dispatch import Dispatcher
from tilewise.markdown import table


def choice_us(example: str, models: Path) -> list[float]:
    """Return the microseconds of each key's first selection."""
    op, (train, test) = kernel_of(example).op, drawn_keys(example)
    (folder,) = models.glob(f"{op.definition.name}_*")
    problems = [op.problem_of(key) for key in (*train, *test)]
    times = []
    with Dispatcher.from_folder(folder) as dispatcher:
        dispatcher.select(problems[0])
        for problem in problems[1:]:
            start = time.perf_counter()
            dispatcher.select(problem)
            times.append((time.perf_counter() - start) * 1e6)
    return times


def main(models: str) -> None:
    """Print the median and the P90 of each example."""
    rows = []
    for example in KERNELS:
        times = sorted(choice_us(example, Path(models)))
        rows.append([f"`{example}`", f"{statistics.median(times):.0f}", f"{times[int(0.9 * len(times))]:.0f}"])
    print(table(("kernel", "choice, us: median", "P90"), rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
