"""Train, register and promote, killed (``kill -9``) anywhere; and what must hold afterwards.

A point is the n-th call of a function that touches the registry, its store or a file, so that a campaign spreads its
points over everything that changes something, and can be repeated.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from small_model import table
from store import fresh_store
from synthetic import CONV
from tilewise.arch import load_arch
from tilewise.model.artefact import load_artefact, write_artefact
from tilewise.ops import Target
from tilewise.registry import history, judge, tracking, versions
from tilewise.registry import promote as promotion
from tilewise.registry.publish import publish
from tilewise.registry.thresholds import SliceRule, Thresholds
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, pool_of, train

WATCHED = ("tilewise.registry.", "tilewise.files", "tilewise.model.artefact", "mlflow.store.", "mlflow.tracking.")
THRESHOLDS = Thresholds(
    mean_drop=100, median_drop=100, p10_drop=100, problem_drop=100, slices=SliceRule(n_resamples=50),
    selection_time_factor=1e9,
)  # fmt: skip
PATIENCE_S = 300.0


def live(uri: str, folder: Path, seed: int, kill_at: int, told: Connection) -> None:
    """Train a tiny model, register it, promote it; killed at call `kill_at`, counting calls for `kill_at` -1."""
    setattr(promotion, "log_plots", lambda *_: None)  # noqa: B010  (no name that the module exports)
    history.LEASE_S = 0.5  # the owner of an unfinished entry is known to be dead
    target = Target.parse(CONV)
    settings = TrainSettings(ModelSettings(n_estimators=4, num_leaves=7), TuneSettings(n_trials=0), 2, seed, threads=1)
    result = train(table(), target, pool_of(table(), target), load_arch(target.arch), settings)
    calls = 0

    def watch(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and str(frame.f_globals.get("__name__")).startswith(WATCHED):
            calls += 1
            if calls == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    if kill_at:
        sys.setprofile(watch)
    write_artefact(folder / "model", result.parts)
    with tracking.session(uri):
        run_id = tracking.log_training(result, folder / "model")
        publish(folder / "model", run_id)
        done = promotion.promote(folder / "model", table(), THRESHOLDS, folder / "reports", holdout_fraction=0.18)
    sys.setprofile(None)
    told.send((calls, done.in_production))


def inspect(uri: str, folder: Path, told: Connection) -> None:
    """What is wrong with the registry, in words: nothing, it is to be hoped."""
    wrong = []
    with tracking.session(uri):
        for alias, number in versions.aliases(CONV).items():
            version = versions.by_number(CONV, number)
            try:
                judge.load(version)  # type: ignore[arg-type]  # None is wrong as well
            except Exception as e:
                wrong.append(f"{alias} names {version}: {e}")
        log = history.entries(CONV)
        if log and log[-1].applied and versions.aliases(CONV).get("production") != log[-1].production:
            wrong.append(f"the log says {log[-1]}, the aliases {versions.aliases(CONV)}")
        hashes = [v.content_hash for v in versions.versions(CONV)]
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
        """One life from the beginning to the end; how many calls it took."""
        calls, in_production = self._result(live, seed=0, kill_at=-1)
        assert in_production
        return int(calls)

    def kill(self, seed: int, at: int) -> None:
        """Another model, killed at call `at`; then the registry is sound, and the same life again completes.

        Raises:
            AssertionError: otherwise.
        """
        process, _ = self._start(live, seed=seed, kill_at=at)
        process.join(PATIENCE_S)
        assert process.exitcode == -signal.SIGKILL, f"not killed at call {at}: {process.exitcode}"
        assert self._result(inspect) == [], f"after a kill at call {at}"
        _, in_production = self._result(live, seed=seed, kill_at=0)
        assert in_production, f"after a kill at call {at} the next run did not complete"
        assert self._result(inspect) == [], f"completed after a kill at call {at}"

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


def points(calls: int, n: int, seed: int) -> list[int]:
    """`n` calls to be killed at, one drawn from each of as many equal parts of a life."""
    rng = random.Random(seed)
    return [1 + int((i + rng.random()) * calls / n) for i in range(n)]
