"""Executors give equal results, wherever the tasks run and whichever workers are lost."""

from __future__ import annotations

import os
import signal
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import tilewise
from alone import run_alone
from cluster.tasks import die, die_once, divide, meet, process
from tilewise.cluster import LOCAL, ClusterSettings, Executor, open_executor
from tilewise.errors import ConfigError, DataError, TilewiseError

if TYPE_CHECKING:
    from tilewise.cluster._dask import DaskExecutor


def test_local_results_come_in_order_and_are_reported() -> None:
    seen: list[float] = []
    assert LOCAL.map(divide, 12, [1, 2, 4], seen.append) == seen == [12, 6, 3]
    assert LOCAL.map(process, None, [1]) == [os.getpid()]
    with pytest.raises(DataError, match="task 0 cannot divide"):
        LOCAL.map(divide, 12, [1, 0])


def test_the_local_executor_needs_no_dask() -> None:
    run_alone("""
import sys
from tilewise.cluster import ClusterSettings, open_executor
with open_executor(ClusterSettings()) as executor:
    assert executor.map(lambda a, b: a + b, 1, [2]) == [3]
assert not {"dask", "distributed", "lightgbm", "pandas"} & set(sys.modules)
""")


def test_a_worker_may_run_from_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the containers of compose.yaml do, in which tilewise is not installed."""
    pytest.importorskip("distributed", reason="needs the extra cluster")
    from tilewise.cluster import _dask

    def without_tilewise(name: str) -> str:
        if name == "tilewise":
            raise PackageNotFoundError(name)
        return version(name)

    installed = _dask.versions()
    monkeypatch.setattr(_dask, "version", without_tilewise)
    assert _dask.versions() == installed
    assert installed["tilewise"] == tilewise.__version__


@pytest.mark.long
def test_a_cluster_gives_the_local_results(executor: Executor) -> None:
    seen: list[float] = []
    assert executor.map(divide, 12, [1, 2, 4], seen.append) == LOCAL.map(divide, 12, [1, 2, 4])
    assert sorted(seen) == [3, 6, 12]
    assert executor.slots == 2
    assert os.getpid() not in executor.map(process, None, [1, 2, 3, 4])


@pytest.mark.long
def test_an_error_of_a_task_keeps_its_class_and_message(executor: Executor) -> None:
    with pytest.raises(DataError, match="task 0 cannot divide; leave it out"):
        executor.map(divide, 12, [1, 0, 2])
    assert executor.map(divide, 12, [3]) == [4]  # and the cluster goes on


@pytest.mark.long
def test_tasks_of_killed_workers_are_repeated(executor: Executor, tmp_path: Path) -> None:
    assert executor.map(die_once, tmp_path, list(range(6))) == list(range(6))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.long
def test_a_task_that_kills_every_worker_ends_with_the_remedy(dask: Any) -> None:
    settings = ClusterSettings(kind="dask", address=dask.scheduler_address, retries=0)
    with open_executor(settings) as executor, pytest.raises(TilewiseError, match="1 of 1 tasks lost their workers 1"):
        executor.map(die, None, [1])


@pytest.mark.long
def test_tasks_run_together_and_again_if_a_worker_is_lost(dask: Any, tmp_path: Path) -> None:
    dask.wait_for_workers(2)  # those of the test before are starting again
    settings = ClusterSettings(kind="dask", address=dask.scheduler_address, machines=2)
    with open_executor(settings) as executor:
        results = executor.together(meet, tmp_path, [7, 8])
    assert [task for task, _, _ in results] == [7, 8]
    assert len({process for _, process, _ in results}) == len({peer for _, _, peer in results}) == 2
    assert (tmp_path / "died").exists()


@pytest.mark.long
def test_a_worker_that_is_lost_twice_comes_back_twice(dask: Any, executor: DaskExecutor) -> None:
    """By default, Dask gives up a worker that is away 15 s after a loss, although it had come back between."""
    dask.wait_for_workers(2)
    first = time.monotonic()
    kill_and_await(executor, "cpu-0")
    time.sleep(max(0.0, first + 14 - time.monotonic()))
    kill_and_await(executor, "cpu-0")


def kill_and_await(executor: DaskExecutor, name: str) -> None:
    """Kill a worker process, and wait until its successor has registered."""
    address = addresses(executor)[name]
    os.kill(executor.client.run(os.getpid, workers=[address])[address], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while addresses(executor).get(name, address) == address:
        assert time.monotonic() < deadline, f"{name} did not come back"
        time.sleep(0.2)


def addresses(executor: DaskExecutor) -> dict[str, str]:
    """Return the workers' addresses by name."""
    workers = executor.client.scheduler_info(n_workers=-1)["workers"]
    return {worker["name"]: address for address, worker in workers.items()}


@pytest.mark.long
def test_more_machines_than_workers_are_refused(dask: Any, executor: Executor, tmp_path: Path) -> None:
    dask.wait_for_workers(2)  # those of the test before are starting again
    with pytest.raises(ConfigError, match=r"cluster\.machines=9 needs as many worker processes, there are 2"):
        executor.together(meet, tmp_path, [0] * 9)


@pytest.mark.long
def test_a_scheduler_that_does_not_answer_is_named() -> None:
    pytest.importorskip("distributed", reason="needs the extra cluster")
    settings = ClusterSettings(kind="dask", address="tcp://127.0.0.1:9", wait_s=1)
    with pytest.raises(ConfigError, match=r"tcp://127.0.0.1:9: no scheduler answers .*make cluster"):  # noqa: SIM117
        with open_executor(settings):
            pass


@pytest.mark.long
def test_a_worker_with_other_libraries_is_refused(dask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewise.cluster import _dask

    monkeypatch.setattr(_dask, "_ALIKE", ("numpy",))
    monkeypatch.setattr(_dask, "version", lambda name: "0.1")
    with pytest.raises(ConfigError, match=r"worker tcp://.* has numpy .*, here is 0.1; install the same there"):  # noqa: SIM117
        with open_executor(ClusterSettings(kind="dask", address=dask.scheduler_address)):
            pass
