"""The growth of measuring over hosts with simulated GPUs, and the cost of its coordinator.

``python -m benchmarks.scale.collect_hosts [--workers 1,4,16,64] [--seconds 4] [--each 48] [--output FILE]``

A simulated GPU sleeps while it measures a problem, so that many fit on few cores; all else is real: a Dask scheduler,
worker processes with up to eight GPUs each, an engine process per GPU, leases, one object per problem on a shared
folder, the merged table. A problem has the whole committed pool. Sleeping is longer than a GPU takes for a problem,
because the CPU time of all hosts is this machine's here: `worker_ms` is that time per problem.

- ``efficiency``: share of linear, problems x seconds / (workers x time from the first begin to the last end);
- ``coordinator``: CPU time of the process with scheduler and client, relative to that time;
- ``wall_s``: the whole run; engines, which start on these cores one after another, wait for each other.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import dask
import psutil
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from benchmarks.results import RESULTS, save
from benchmarks.scale.sleeping import SleepingSource
from tilewise.arch import load_arch
from tilewise.cluster import ClusterSettings, open_executor
from tilewise.collect import Item, Plan, Timing
from tilewise.collect.hosts import HostsTask, collect_on_hosts
from tilewise.kernels import load_pool
from tilewise.markdown import table
from tilewise.ops import GroupedConvProblem, Target

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
GPUS_PER_HOST = 8


@dataclass(frozen=True)
class Point:
    """The figures of one number of workers; see the module."""

    workers: int
    problems: int
    rows: int
    efficiency: float
    coordinator: float
    worker_ms: float
    wall_s: float


def measure(workers: int, each: int, seconds: float) -> Point:
    """Measure `each` problems on each of `workers` simulated GPUs."""
    items = tuple(Item(GroupedConvProblem(i + 1, 8, 8, 1, 8, 8, 3, 3), "made up") for i in range(workers * each))
    timing = Timing(kernel_timeout_s=600)  # nothing hangs here, but the cores are shared
    plan = Plan(TARGET, load_arch(TARGET.arch), load_pool(TARGET), items, timing, "scale")
    with TemporaryDirectory() as folder:
        source = SleepingSource(folder, workers, seconds)
        task = HostsTask(plan, Path(folder) / "table.parquet", f"{folder}/shared", source)
        start = time.monotonic()
        coordinator, others = _run(task, workers)
        wall = time.monotonic() - start
        spans = [tuple(map(float, line.split())) for line in (Path(folder) / "log").read_text().splitlines()]
        rows = pq.read_metadata(task.output).num_rows
    assert len(spans) == len(items), "a problem was measured twice, or not at all"
    span = max(end for _, end in spans) - min(begin for begin, _ in spans)
    efficiency = len(items) * seconds / (workers * span)
    return Point(
        workers,
        len(items),
        rows,
        round(efficiency, 4),
        round(coordinator / span, 4),
        round(1e3 * others / len(items), 2),
        round(wall, 1),
    )


def _run(task: HostsTask, workers: int) -> tuple[float, float]:
    """Run the task; return the CPU seconds of this process, and those of all others while they measured."""
    gpus = min(workers, GPUS_PER_HOST)
    config = {"distributed.worker.daemon": False, "distributed.admin.large-graph-warning-threshold": "1GB"}
    with (
        dask.config.set(config),
        LocalCluster(
            n_workers=workers // gpus,
            threads_per_worker=gpus,
            resources={"GPU": gpus},
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=40,
        ) as cluster,
        Client(cluster),
        open_executor(ClusterSettings(kind="dask", address=cluster.scheduler_address)) as executor,
    ):
        log = Path(task.output).parent / "log"
        marks: list[tuple[float, float]] = []

        def note(_: str, done: int, total: int) -> None:
            """Note the CPU time when the first shard is done, all engines having started, and at the end."""
            if log.exists():
                marks.append((_cpu(psutil.Process()), sum(map(_cpu, psutil.Process().children(recursive=True)))))

        collect_on_hosts(task, executor, note)
    (here, there), (here_end, there_end) = marks[0], marks[-1]
    share = 1 - task.shard_size * workers / len(task.plan.items)  # all but the first shard of each worker
    return (here_end - here) / share, (there_end - there) / share


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # an engine without work ended since it was listed
        return 0.0
    return float(times.user + times.system)


def main() -> None:
    """Measure each number of workers, print a table, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", default="1,4,16,64")
    parser.add_argument("--seconds", type=float, default=4.0, help="that a problem takes")
    parser.add_argument("--each", type=int, default=48, help="problems for each worker")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_collect.json")
    args = parser.parse_args()
    points = []
    for workers in map(int, args.workers.split(",")):
        points.append(measure(workers, args.each, args.seconds))
        print(points[-1], flush=True)
        values = {
            "command": f"python -m benchmarks.scale.collect_hosts --seconds {args.seconds:g} --each {args.each}",
            "cores": os.cpu_count(),
            "points": [dataclasses.asdict(p) for p in points],
        }
        save(args.output, values)  # after each, since a later one may not fit on this machine
    rows = [[str(p.workers), f"{p.efficiency:.3f}", f"{p.coordinator:.2%}"] for p in points]
    print(table(["workers", "efficiency", "coordinator"], rows))


if __name__ == "__main__":
    main()
