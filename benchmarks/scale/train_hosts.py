"""Time and quality of one LightGBM model that several hosts learn together.

``python -m benchmarks.scale.train_hosts [--rows 1000000] [--hosts 2,4] [--trees 30] [--output FILE]``

Each host is a network namespace with one Dask worker of one thread (see :mod:`benchmarks.scale.namespaces`). The table
is made up (see :mod:`benchmarks.scale.made_up`), and every kernel of a problem is learnt from, by the label relative,
so that trees alone decide. One fifth of the problems are tested. One process, with one thread and with two, comes
first. Of each:

- ``seconds``: from the call to the scores of the tested rows: sending the rows, cutting bins, growing the trees;
- ``cpu_s``: processor time of all workers meanwhile;
- ``peak_gib``: largest resident memory of a worker; none for one process, which holds the made-up table as well;
- ``efficiency``: mean over the tested problems, of selections by the scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from distributed import Client

from benchmarks.results import RESULTS, conditions, save
from benchmarks.scale import figures
from benchmarks.scale.made_up import TARGET, parts
from benchmarks.scale.namespaces import THIS_MACHINE, hosts
from tilewise.arch import load_arch
from tilewise.cluster import LOCAL, ClusterSettings, open_executor
from tilewise.kernels import load_pool
from tilewise.train import (
    Bins,
    Fit,
    Floats,
    ModelSettings,
    TrainingData,
    TrainSettings,
    build_table,
    make_folds,
    make_labels,
    selections_by_score,
)
from tilewise.train.hosts import Learning, grow_model


@dataclass(frozen=True)
class Point:
    """The figures of one number of hosts; see the module."""

    hosts: int
    threads: int
    seconds: float
    cpu_s: float
    peak_gib: float | None
    efficiency: float


@dataclass(frozen=True)
class Task:
    """A model to learn, and the table's bins."""

    model: Learning
    bins: Bins

    @classmethod
    def made_up(cls, rows: int, trees: int) -> Task:
        """Return the model of four fifths of the problems of a made-up table."""
        pool = load_pool(TARGET)
        frame = pd.concat(list(parts(pool, rows)), ignore_index=True)
        settings = TrainSettings(ModelSettings("relative", n_estimators=trees))
        built = build_table(frame, TARGET, pool, load_arch(TARGET.arch), 0.0)
        data = TrainingData.prepare(built, settings)
        fold = make_folds(built, 5, 0)[0]
        labels = make_labels(built, settings.model, np.zeros(len(built.problem)))
        train, test = built.rows_of(fold.train), built.rows_of(fold.test)
        return cls(Learning(built, settings.model, data.fit, labels, train, test), data.bins)

    def efficiency(self, scores: Floats) -> float:
        """Return the mean efficiency of selections by these scores of the tested rows."""
        chosen = selections_by_score(self.model.table, self.model.test, scores)
        return round(float(chosen.efficiency.mean()), 5)


def alone(task: Task, threads: int) -> Point:
    """Learn the model in this process."""
    model = dataclasses.replace(task.model, fit=Fit(task.model.fit.seed, threads))
    start, cpu = time.monotonic(), _used()[0]
    bins = Bins(model.table.feature_rows, model.table.features.names, model.settings.max_bin, threads)
    *_, last = grow_model(LOCAL, bins, model, every=model.settings.n_estimators)
    seconds, cpu = time.monotonic() - start, _used()[0] - cpu
    return Point(1, threads, round(seconds, 1), round(cpu, 1), None, task.efficiency(last.scores))


def together(task: Task, count: int) -> Point:
    """Learn the model on this number of hosts."""
    with _workers(count) as address:
        settings = ClusterSettings(kind="dask", address=address, machines=count)
        with open_executor(settings) as executor, Client(address) as client:
            client.wait_for_workers(count)
            before = client.run(_used)
            start = time.monotonic()
            *_, last = grow_model(executor, task.bins, task.model, every=task.model.settings.n_estimators)
            seconds, after = time.monotonic() - start, client.run(_used)
    cpu = sum(after[worker][0] - before[worker][0] for worker in before)
    peak = max(memory for _, memory in after.values())
    return Point(count, 1, round(seconds, 1), round(cpu, 1), round(peak, 2), task.efficiency(last.scores))


@contextmanager
def _workers(count: int) -> Iterator[str]:
    """Run a scheduler beside the bridge, and one worker of one thread per host; yield the scheduler's address."""
    address = f"tcp://{THIS_MACHINE}:8786"
    with ExitStack() as stack:
        added = stack.enter_context(hosts(count))
        stack.enter_context(_dask("scheduler", "--host", THIS_MACHINE, "--port", "8786", "--no-dashboard"))
        for host in added:
            arguments = ("--host", host.address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
            stack.enter_context(_dask("worker", address, *arguments, on=host.command))
        yield address


@contextmanager
def _dask(*arguments: str, on: tuple[str, ...] = ()) -> Iterator[None]:
    """Run a command of Dask, on a host or beside the bridge, with LightGBM's threads limited to one."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error"}
    process = subprocess.Popen([*on, sys.executable, "-m", "dask", *arguments], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _used() -> tuple[float, float]:
    """Return this process's processor time in seconds, and its largest resident memory in GiB."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    # Its ru_maxrss would count the memory of the process that started this one.
    status = Path("/proc/self/status").read_text()
    peak = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return used.ru_utime + used.ru_stime, int(peak) / 2**20


def main() -> None:
    """Measure each number of hosts, print a table, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--hosts", default="2,4")
    parser.add_argument("--trees", type=int, default=30)
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_train_hosts.json")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that namespaces go in any case
    begun = conditions(f"python -m benchmarks.scale.train_hosts --rows {args.rows} --trees {args.trees}")
    task = Task.made_up(args.rows, args.trees)
    points = [alone(task, 1), alone(task, 2)]
    for count in map(int, args.hosts.split(",")):
        points.append(together(task, count))
        print(points, flush=True)
        values = {
            **begun,
            "rows": len(task.model.table.problem),
            "trees": args.trees,
            "points": [asdict(p) for p in points],
        }
        save(args.output, values)
    print(figures.hosts(values))


if __name__ == "__main__":
    main()
