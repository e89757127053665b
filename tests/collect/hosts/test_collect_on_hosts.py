"""A run over hosts writes the rows of a run on one host, whatever is killed or comes back late."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from collect.fake import HURT
from collect.hosts.sources import FakeSource
from collect.sweep import HurriedEngine
from tilewise.cluster import LOCAL, ClusterSettings, Executor, open_executor
from tilewise.collect import CollectLimits, Item, Plan, collect_with_engine
from tilewise.collect.hosts import HostsTask, ReplaySource, collect_on_hosts
from tilewise.errors import ConfigError, DataError, TilewiseError
from tilewise.ops import GroupedConvProblem

OF_THE_HOST = ["measured_at", "hw_uuid", "hw_device"]
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    """Connect an executor to two simulated hosts with a GPU each."""
    pytest.importorskip("distributed", reason="needs the extra cluster")
    from tilewise.cluster._dask import host_cluster

    with host_cluster(workers=0, gpus=2) as cluster:
        cluster.wait_for_workers(2)
        with open_executor(ClusterSettings(kind="dask", address=cluster.scheduler_address)) as executor:
            yield executor


@pytest.fixture
def long(plan: Plan) -> Plan:
    """Plan of twenty problems."""
    more = tuple(Item(GroupedConvProblem(n, 8, 8, 1, 8, 8, 3, 3), "test") for n in range(6, 21))
    return dataclasses.replace(plan, items=(*plan.items, *more))


@pytest.fixture
def one_host(long: Plan, log: Path, tmp_path: Path) -> pa.Table:
    """Return the table of a run on one host."""
    path = tmp_path / "one.parquet"
    collect_with_engine(long, path, HurriedEngine, [0], lambda *_: None)
    log.unlink()
    return pq.read_table(path).drop_columns(OF_THE_HOST)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run in a thread."""

    thread: threading.Thread
    errors: list[TilewiseError]

    @classmethod
    def start(cls, task: HostsTask, executor: Executor) -> Run:
        errors: list[TilewiseError] = []

        def call() -> None:
            try:
                collect_on_hosts(task, executor, lambda *_: None)
            except TilewiseError as e:
                errors.append(e)

        thread = threading.Thread(target=call)
        thread.start()
        return cls(thread, errors)


def hosts_task(plan: Plan, folder: Path, **changes: Any) -> HostsTask:
    source = FakeSource(str(folder / "measured.log"), changes.pop("slow_s", 0.0), changes.pop("kinds", ("fake",)))
    return HostsTask(plan, folder / "hosts.parquet", str(folder / "shared"), source, 3, **changes)


def rows_of(task: HostsTask) -> pa.Table:
    return pq.read_table(task.output).drop_columns(OF_THE_HOST)


def kept(task: HostsTask) -> int:
    return len(list(Path(task.store).rglob("done-*")))


def wait_until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def busy_process(executor: Executor) -> int:
    """Return the process of a worker that measures."""
    from tilewise.cluster._dask import DaskExecutor

    assert isinstance(executor, DaskExecutor)
    client = executor.client
    worker = next(worker for worker, tasks in client.processing().items() if tasks)
    return int(client.run(os.getpid, workers=[worker])[worker])


@pytest.mark.long
def test_the_rows_are_those_of_one_host(executor: Executor, long: Plan, one_host: pa.Table, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    task = hosts_task(long, tmp_path)
    report = collect_on_hosts(task, executor, lambda _, done, total: seen.append((done, total)))
    assert report.by_status == {"ok": 116, "runtime_error": 3, "wrong_result": 1}
    assert rows_of(task).equals(one_host)
    assert seen[0] == (0, 20)
    assert seen[-1] == (20, 20)
    assert list(Path(task.store).iterdir()) == []
    with pytest.raises(DataError, match="exists already"):
        collect_on_hosts(task, executor, lambda *_: None)


@pytest.mark.long
def test_a_killed_worker_costs_the_problem_in_hand(
    executor: Executor, long: Plan, one_host: pa.Table, tmp_path: Path
) -> None:
    task = hosts_task(long, tmp_path, slow_s=0.05)
    run = Run.start(task, executor)
    wait_until(lambda: kept(task) >= 4)
    os.kill(busy_process(executor), signal.SIGKILL)
    run.thread.join(PATIENCE_S)
    assert run.errors == []
    assert rows_of(task).equals(one_host)
    pairs = Path(tmp_path / "measured.log").read_text().splitlines()
    measured = [
        line for line in pairs if line != "begun" and not line.startswith(f"{HURT} ")
    ]  # which is repeated anyway
    assert len(measured) - len(set(measured)) <= len(long.pool)  # at most the problem in hand was begun twice


@pytest.mark.long
def test_a_worker_that_comes_back_late_writes_nothing(
    executor: Executor, long: Plan, one_host: pa.Table, tmp_path: Path
) -> None:
    task = hosts_task(long, tmp_path, slow_s=0.15, lease_s=1.5)
    first = Run.start(task, executor)
    wait_until(lambda: kept(task) >= 2)
    stopped = busy_process(executor)
    os.kill(stopped, signal.SIGSTOP)
    try:
        collect_on_hosts(task, LOCAL, lambda *_: None)  # another command, which takes the silent worker's shard over
        assert rows_of(task).equals(one_host)
    finally:
        os.kill(stopped, signal.SIGCONT)
    first.thread.join(PATIENCE_S)
    assert re.search("exists already", str(first.errors))
    assert kept(task) == 0
    assert rows_of(task).equals(one_host)


@pytest.mark.long
def test_a_spent_budget_leaves_the_rest_for_the_same_command(
    executor: Executor, long: Plan, one_host: pa.Table, tmp_path: Path
) -> None:
    task = hosts_task(long, tmp_path, slow_s=0.1, limits=CollectLimits(3.0, partial=True))
    report = collect_on_hosts(task, executor, lambda *_: None)
    assert 0 < report.done < 20
    assert report.path == tmp_path / f"hosts.parquet.{report.done}-of-20"
    rest = hosts_task(long, tmp_path)
    assert collect_on_hosts(rest, executor, lambda *_: None).done == 20
    assert rows_of(rest).equals(one_host)


@pytest.mark.long
def test_devices_of_different_kinds_become_runs_of_their_own(executor: Executor, long: Plan, tmp_path: Path) -> None:
    from tilewise.cluster._dask import DaskExecutor

    assert isinstance(executor, DaskExecutor)
    executor.client.wait_for_workers(2, timeout=PATIENCE_S)  # an earlier test may have killed one
    task = hosts_task(long, tmp_path, slow_s=0.03, kinds=("NVIDIA H100", "NVIDIA H200"))
    collect_on_hosts(task, executor, lambda *_: None)
    tables = [pq.read_table(path) for path in sorted(tmp_path.glob("hosts-nvidia-h*.parquet"))]
    assert len(tables) == 2
    assert not task.output.exists()
    assert sum(len(set(t["N"].to_pylist())) for t in tables) == 20
    for table in tables:
        [run_id], [kind] = set(table["run_id"].to_pylist()), set(table["hw_device"].to_pylist())
        assert run_id == f"run-1-{kind.lower().replace(' ', '-')}"


@pytest.mark.long
def test_recorded_tables_stand_in_for_gpus(executor: Executor, one_host: pa.Table, long: Plan, tmp_path: Path) -> None:
    task = HostsTask(
        long, tmp_path / "replayed.parquet", str(tmp_path / "s"), ReplaySource(str(tmp_path / "one.parquet"))
    )
    collect_on_hosts(task, executor, lambda *_: None)
    replayed = pq.read_table(task.output)
    assert replayed["latency_ms"].equals(one_host["latency_ms"])
    assert replayed["status"].equals(one_host["status"])


@pytest.mark.long
def test_this_process_measures_too(long: Plan, one_host: pa.Table, tmp_path: Path) -> None:
    """The executor only decides where shards run."""
    task = hosts_task(long, tmp_path)
    collect_on_hosts(task, LOCAL, lambda *_: None)
    assert rows_of(task).equals(one_host)


@pytest.mark.long
def test_workers_without_gpus_are_refused(plan: Plan, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    from tilewise.cluster._dask import host_cluster

    with host_cluster(workers=1) as cluster:
        settings = ClusterSettings(kind="dask", address=cluster.scheduler_address)
        with open_executor(settings) as executor, pytest.raises(ConfigError, match="no worker owns a GPU; start"):
            collect_on_hosts(hosts_task(plan, tmp_path), executor, lambda *_: None)
