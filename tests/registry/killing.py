"""Train, register and promote, killed (``kill -9``) anywhere; and the checks afterwards.

A point is the n-th step of something that changes the registry, its database, its artefacts or a file: just before it,
or just after. So a campaign's points are spread over all that matters, inside transactions too, and can be repeated.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from logged import log_training
from small_model import table
from store import fresh_store
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.gate import SliceRule, Thresholds
from tilewise.model import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.registry import _history as history
from tilewise.registry import find_by_number, list_aliases, list_versions, load_version, read_history, registry_session
from tilewise.registry.promotion import Override, PromotionRules, publish
from tilewise.registry.promotion import _promote as promotion
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

THRESHOLDS = Thresholds(
    mean_drop=100, median_drop=100, p10_drop=100, problem_drop=100, slices=SliceRule(n_resamples=50),
    selection_time_factor=1e9, min_problems=1,
)  # fmt: skip
RULES = PromotionRules(THRESHOLDS, 0.18, override=Override("small tables of tests"))
PATIENCE_S = 300.0


def live(uri: str, folder: Path, seed: int, kill_at: int, told: Connection) -> None:
    """Train a tiny model, register it, promote it; killed at step `kill_at`, if there is such a step."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    history.LEASE_S = 0.5  # the owner of an unfinished entry is known to be dead
    target = Target.parse(CONV)
    settings = TrainSettings(ModelSettings(n_estimators=4, num_leaves=7), TuneSettings(n_trials=0), 2, seed, threads=1)
    result = train(table(), target, pool_of(table(), target), load_arch(target.arch), settings)
    steps = count_steps(kill_at)
    write_artefact(folder / "model", result.parts)
    with registry_session(uri):
        run_id = log_training(result, folder / "model")
        publish(folder / "model", run_id)
        done = promotion.promote(folder / "model", table(), RULES, folder / "reports")
    told.send((steps(), done.in_production))


def count_steps(kill_at: int) -> Callable[[], int]:
    """Die at step `kill_at` from here on, if there is such a step. Return a function that counts the steps."""
    import sqlalchemy.orm
    from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository
    from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as Models
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore as Runs

    n = 0

    def step() -> None:
        nonlocal n
        n += 1
        if n == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            step()
            answer = real(*args, **kwargs)
            step()
            return answer

        return call

    changing = ("create_", "set_", "log_", "update_", "delete_", "finalize_", "record_", "flush", "commit", "replace")
    for owner in (Models, Runs, LocalArtifactRepository, sqlalchemy.orm.Session, os):
        for name, real in list(vars(owner).items()):
            if name.startswith((*changing, "rename")) and callable(real):
                setattr(owner, name, watched(real))
    return lambda: n


def inspect(uri: str, folder: Path, told: Connection) -> None:
    """Send a list of everything wrong with the registry; an empty list if it is sound."""
    wrong = []
    with registry_session(uri):
        for alias, number in list_aliases(CONV).items():
            version = find_by_number(CONV, number)
            try:
                load_version(version)  # type: ignore[arg-type]  # None is wrong as well
            except Exception as e:
                wrong.append(f"{alias} names {version}: {e}")
        log = read_history(CONV)
        if log and log[-1].applied and list_aliases(CONV).get("production") != log[-1].production:
            wrong.append(f"the log says {log[-1]}, the aliases {list_aliases(CONV)}")
        hashes = [v.content_hash for v in list_versions(CONV)]
        wrong += [f"published twice: {h}" for h in set(hashes) if hashes.count(h) > 1]
        if (folder / "model").exists():
            try:
                load_artefact(folder / "model")
            except Exception as e:
                wrong.append(f"half a model on disk: {e}")
    told.send(wrong)


class Campaign:
    """Lives in one registry, each in a process forked from one that has imported everything."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.uri = fresh_store(folder / "store")
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([__name__])

    def undisturbed(self) -> int:
        """One life from the beginning to the end; how many steps it took."""
        steps, in_production = self._result(live, seed=0, kill_at=0)
        assert in_production
        return int(steps)

    def kill(self, seed: int, at: int) -> None:
        """Another model, killed at step `at`; then the registry is sound, and the same life again completes.

        Raises:
            AssertionError: otherwise.
        """
        process, _ = self._start(live, seed=seed, kill_at=at)
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL, f"not killed at step {at}: {process.exitcode}"
        assert self._result(inspect) == [], f"after a kill at step {at}"
        _, in_production = self._result(live, seed=seed, kill_at=0)
        assert in_production, f"after a kill at step {at} the next run did not complete"
        assert self._result(inspect) == [], f"completed after a kill at step {at}"

    def _result(self, what: Callable[..., None], **options: int) -> Any:
        process, told = self._start(what, **options)
        try:
            assert told.poll(PATIENCE_S), f"{what.__name__} takes too long"
            return told.recv()
        except EOFError:
            raise AssertionError(f"{what.__name__} failed: its message stands above") from None
        finally:
            process.kill()
            process.join()

    def _start(self, what: Callable[..., None], **options: int) -> tuple[BaseProcess, Connection]:
        here, there = self._context.Pipe(duplex=False)
        arguments = {"uri": self.uri, "folder": self.folder, "told": there, **options}
        process = self._context.Process(target=what, kwargs=arguments)
        process.start()
        there.close()  # so that the end of the process is the end of the pipe
        return process, here


def points(steps: int, n: int, seed: int) -> list[int]:
    """`n` steps to be killed at, one drawn from each of as many equal parts of a life."""
    rng = random.Random(seed)
    return [1 + int((i + rng.random()) * steps / n) for i in range(n)]
