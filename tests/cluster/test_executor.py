"""Executors give equal results, wherever the tasks run and whichever workers are lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from alone import run_alone
from cluster.tasks import die, die_once, divide, meet, process
from tilewise.cluster import LOCAL, ClusterSettings, Executor, open_executor
from tilewise.errors import ConfigError, DataError, TilewiseError


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
