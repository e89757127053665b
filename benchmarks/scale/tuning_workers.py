"""Tuning by several workers over PostgreSQL: its time and its best trial, and the trials of workers that are killed.

``PYTHONPATH=src:tests python -m benchmarks.scale.tuning_workers [TARGET] [--problems 120] [--trials 50]``

The servers are those of ``make servers``, with a database of its own for the studies; the workers are those of
``make cluster``. All learn from some drawn problems of a committed table, and no trial is pruned. Of each number of
workers, and of one worker with another seed, which shows the noise:

- ``seconds``: of the whole search;
- ``best``: the best trial's objective, the mean of mean and P10 efficiency on the tested folds;
- ``initial``: that of the first trial, which has the settings of conf/model.

One search kills busy workers as it goes; those in a trial leave it failed, and ``repeated`` are the failed trials whose
parameters were tried again.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from distributed import Client

from benchmarks.results import RESULTS, conditions, load, save
from benchmarks.scale import figures
from tilewise.arch import load_arch
from tilewise.cluster import ClusterSettings, open_executor
from tilewise.data import TargetTable, read_measurements
from tilewise.ops import Target
from tilewise.servers import run_stack
from tilewise.train import TrainingData, TrainSettings, TuneSettings, build_table, make_folds, pool_of
from tilewise.train.tuning import tune

TARGET = "gemm_universal_fp8_sm90"
PORT = 18786
SEARCHES = ((1, 1, 0), (8, 1, 0), (8, 1, 3), (1, 2, 0), (2, 1, 0))  # workers, seed, workers to kill
KILL_EVERY = 8  # trials


@dataclass(frozen=True)
class Search:
    """The figures of one search; see the module."""

    workers: int
    seed: int
    killed: int
    seconds: float
    complete: int
    failed: int
    repeated: int
    initial: float
    best: float


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """Run the servers, and yield the address of a new database."""
    with run_stack(folder / "servers", open_to_all=True, workers=1):
        settings = load(folder / "servers" / "settings.json")
        start = f"postgresql://mlflow:{settings['secrets']['postgres']}@127.0.0.1:{settings['ports']['postgres']}"
        with psycopg.connect(f"{start}/mlflow", autocommit=True) as connection:
            connection.execute("CREATE DATABASE studies")
        yield f"{start.replace('postgresql:', 'postgresql+psycopg:')}/studies"


@contextmanager
def workers(count: int) -> Iterator[str]:
    """Run a scheduler and workers on this machine, and yield the scheduler's address."""
    command = [sys.executable, "-m", "tilewise.cluster", "--workers", str(count), "--port", str(PORT)]
    cluster = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"tcp://127.0.0.1:{PORT}"
    finally:
        cluster.terminate()
        cluster.wait()


def measure(data: TrainingData, storage: str, count: int, seed: int, kill: int) -> Search:
    """Run one search in a study of its own."""
    budget = replace(data.settings.tune, storage=storage, seed=seed, study=f"{count}-{seed}-{kill}")
    data = replace(data, settings=replace(data.settings, tune=budget))
    folds = make_folds(data.table, data.settings.n_splits, data.settings.seed)
    finished, victims, over = Counter(), list[int](), threading.Event()
    with (
        workers(count) as address,
        open_executor(ClusterSettings(kind="dask", address=address)) as executor,
        Client(address) as client,
    ):
        client.wait_for_workers(count)
        killer = threading.Thread(target=kill_some, args=(client, finished, kill, victims, over))
        killer.start()
        start = time.monotonic()
        tuned, _ = tune(data, folds, finished.add, executor)
        seconds = time.monotonic() - start
        over.set()
        killer.join()
    states = [t.state for t in tuned.trials]
    failed = [t.params for t in tuned.trials if t.state == "failed"]
    tried = [t.params for t in tuned.trials if t.state != "failed"]
    assert tuned.chosen is not None
    return Search(
        workers=count,
        seed=seed,
        killed=len(victims),
        seconds=round(seconds, 1),
        complete=states.count("complete"),
        failed=len(failed),
        repeated=sum(params in tried for params in failed),
        initial=round(tuned.trials[0].value, 5),
        best=round(tuned.chosen.value, 5),
    )


class Counter:
    """The number of finished trials."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, _: object) -> None:
        """Count one."""
        self.count += 1


def kill_some(client: Client, finished: Counter, kill: int, victims: list[int], over: threading.Event) -> None:
    """Kill one busy worker process after each :data:`KILL_EVERY` trials, until there are `kill` of them."""
    while len(victims) < kill and not over.wait(0.2):
        busy = [worker for worker, tasks in client.processing().items() if tasks]
        if busy and finished.count >= KILL_EVERY * (len(victims) + 1):
            [pid] = client.run(os.getpid, workers=busy[:1]).values()
            os.kill(pid, signal.SIGKILL)
            victims.append(pid)


def main() -> None:
    """Run all searches, print a table, and write the result after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?", default=TARGET)
    parser.add_argument("--problems", type=int, default=120)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_tuning.json")
    args = parser.parse_args()
    target = Target.parse(args.target)
    begun = conditions(
        f"PYTHONPATH=src:tests python -m benchmarks.scale.tuning_workers {target.name} "
        f"--problems {args.problems} --trials {args.trials}"
    )
    settings = TrainSettings(tune=TuneSettings(n_trials=args.trials, prune_gap=1.0))
    frame = TargetTable.of(read_measurements(Path("data"), target), target).draw(args.problems, 0).rows
    built = build_table(frame, target, pool_of(frame, target), load_arch(target.arch), settings.holdout_fraction)
    data, searches = TrainingData.prepare(built, settings), list[Search]()
    with TemporaryDirectory() as folder, database(Path(folder)) as storage:
        for count, seed, kill in SEARCHES:
            searches.append(measure(data, storage, count, seed, kill))
            print(searches[-1], flush=True)
            values = {
                **begun,
                "target": target.name,
                "problems": len(built.problems),
                "trials": args.trials,
                "searches": [asdict(s) for s in searches],
            }
            save(args.output, values)
    print(figures.tuned(values))


if __name__ == "__main__":
    main()
