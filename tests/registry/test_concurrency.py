"""Concurrent promotions by real processes on a real server: one wins, the others judge again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import mlflow
import pytest

from registry.server import mlflow_server
from registry.stress import check, stress
from synthetic import CONV, kernels
from tilewise.kernels import Pool
from tilewise.ops import Target
from tilewise.registry import Version, connect, list_aliases, read_history, registry_session
from tilewise.registry._registered_models import move_aliases
from tilewise.registry._versions import create_version, set_tag
from tilewise.registry.training_runs import UsedData, log_dataset, open_experiment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SQLite behind it; TILEWISE_TEST_MLFLOW_URI names another server to test, with an empty registry or not."""
    with mlflow_server(tmp_path_factory.mktemp("server")) as uri:
        yield uri


@pytest.mark.long
def test_no_update_is_lost(server: str, tmp_path: Path) -> None:
    with registry_session(server):
        before = len(read_history(CONV))
        told = stress(server, tmp_path, processes=4, each=2)
        counts = check(told, before)
    assert counts["promoted"] + counts["refused"] == 8
    assert counts["promoted"] >= 6


@pytest.mark.long
def test_two_who_begin_a_store_do_not_disturb_each_other(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(connect, [uri] * 3)) == [uri] * 3


def _at_once(write: Callable[[int], object]) -> None:
    start = Barrier(4)

    def later(number: int) -> None:
        start.wait()
        write(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(later, (1, 2, 3, 4)))


class TestThatManyDoFirst:
    """MLflow's stores check, then write, so each of these fails now and then without a retry."""

    @pytest.fixture
    def name(self, server: str, tmp_path: Path) -> Iterator[str]:
        with registry_session(server):
            yield tmp_path.name

    @pytest.mark.long
    def test_aliases_and_tags(self, name: str) -> None:
        made: list[Version] = []
        _at_once(lambda _: made.append(create_version(name, f"tilewise:/{name}", None, None, {}, "")))
        assert sorted(v.number for v in made) == [1, 2, 3, 4]
        _at_once(lambda number: move_aliases(name, {"first": number}))
        assert list_aliases(name)["first"] in (1, 2, 3, 4)
        _at_once(lambda number: move_aliases(name, {"first": number if number % 2 else None}))
        _at_once(lambda number: set_tag(name, 1, "first", str(number)))

    @pytest.mark.long
    def test_experiments_and_datasets(self, name: str) -> None:
        client = mlflow.MlflowClient()
        _at_once(lambda _: open_experiment(name))
        mlflow.delete_experiment(open_experiment(name))
        _at_once(lambda _: open_experiment(name))
        runs = [client.create_run(open_experiment(name)).info.run_id for _ in range(4)]
        target = Target.parse(CONV)
        pool = Pool(target.op, target.variant, target.dtype, kernels(target, 2))
        trained = UsedData(name, "a" * 64, "training", pool, 2, 1)
        held_out = UsedData(name, "b" * 64, "holdout", pool, 2, 1)
        _at_once(lambda number: log_dataset(runs[number - 1], trained))
        _at_once(lambda _: log_dataset(runs[0], held_out))
        used = [client.get_run(run).inputs for run in runs]
        digests = [{i.dataset.digest[0] for i in of_run.dataset_inputs} for of_run in used if of_run]
        assert digests == [{"a", "b"}, {"a"}, {"a"}, {"a"}]
