"""The scenarios that faults hit: each writer of the project on small inputs, with its invariants."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq

from data import reader_fuzz
from dispatch.measuring.measurers import MACHINE
from faults.disk import OnDisk
from faults.schedule import DONE, Scenario, forked
from fuzzed.collect_inputs import small_plan
from registry import lives
from small_model import write_model
from store import fresh_store
from synthetic import CONV, problems
from tilewise.capi import export_model, model_bytes
from tilewise.collect import Outcome, Plan, Samples, collect_with_engine
from tilewise.collect._journal import Journal
from tilewise.collect._run import journal_path
from tilewise.collect.engines import Device, Engine
from tilewise.data.importers import ingest_file
from tilewise.dispatch import Dispatcher
from tilewise.dispatch.logs import RequestLog, read_request_log
from tilewise.dispatch.measuring._measured_cache import MeasuredCache, MeasuredContext
from tilewise.model import load_artefact
from tilewise.ops import Target

_AT = "2026-01-01T00:00:00+00:00"
_TARGET = Target.parse(CONV)
_PROBLEMS = problems(_TARGET, 4)


class Collect(OnDisk):
    """A measuring run: its journal, its table, and the removal of the journal."""

    def load(self) -> None:
        """Read the pool."""
        small_plan()

    def prepare(self, folder: Path) -> None:
        """Leave the folder empty."""

    def act(self, folder: Path) -> None:
        """Measure the missing problems, then write the table."""
        output, plan = folder / "out.parquet", small_plan()
        if output.exists() and not journal_path(output).exists():
            return
        if not output.exists():
            with Journal(journal_path(output), plan) as journal:
                for i in range(len(plan.items)):
                    if i not in journal.entries:
                        journal.add(i, _AT, Device("a", None, None, "", "cold"), _measured(i))
        collect_with_engine(plan, output, _no_engine, [0], lambda *_: None)

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that the table is whole or absent."""
        output = folder / "out.parquet"
        if not output.exists():
            return ["no table"] if complete else []
        table = pq.read_table(output)
        wrong = [] if table.num_rows == 21 and table["latency_ms"].null_count == 3 else [f"{table.num_rows} rows"]
        return wrong + (["the journal is left"] if complete and journal_path(output).exists() else [])


def _measured(i: int) -> list[Outcome]:
    ok = [Outcome("ok", None, Samples((0.1 * (i + 1), 0.2), (1980, 1965), 4))] * 5
    return [*ok, Outcome("timeout", "t")] if i < 3 else [*ok, Outcome("ok", None, Samples((0.1,), (), 1))]


def _no_engine(plan: Plan, index: int) -> Engine:
    raise AssertionError("everything is measured")


class Ingest(OnDisk):
    """An import, with a quarantine of damaged rows."""

    def load(self) -> None:
        """Write the sample."""
        reader_fuzz.sample("csv")

    def prepare(self, folder: Path) -> None:
        """Write a benchmark CSV of 72 rows, one of them damaged."""
        content = reader_fuzz.sample("csv").content
        lines = content.splitlines(keepends=True)
        (folder.parent / "in.csv").write_bytes(b"".join([*lines[:5], b"torn,line\n", *lines[5:]]))

    def act(self, folder: Path) -> None:
        """Import, unless it is done."""
        output = folder / "out.parquet"
        if not output.exists():
            ingest_file(folder.parent / "in.csv", reader_fuzz.CONV, output)

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that the table is whole or absent, and the damaged row reported."""
        output, quarantine = folder / "out.parquet", folder / "out.quarantined.jsonl"
        if not output.exists():
            return ["no table"] if complete else []
        rows = pq.read_table(output).num_rows
        losses = len(quarantine.read_text().splitlines()) if quarantine.exists() else 0
        return [] if (rows, losses) == (72, 1) else [f"{rows} rows, {losses} losses"]


class Artefact(OnDisk):
    """A model folder that replaces another one, and its exported file."""

    def load(self) -> None:
        """Fit both models."""
        _exports()

    def prepare(self, folder: Path) -> None:
        """Write the model before."""
        write_model(folder / "model", trees=2, note="old")
        export_model(load_artefact(folder / "model"), folder / "model.twm")

    def act(self, folder: Path) -> None:
        """Write the new model, and export it."""
        write_model(folder / "model", trees=2, note="new")
        export_model(load_artefact(folder / "model"), folder / "model.twm")

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that folder and file hold the old or the new model, never half of one."""
        if not (folder / "model").exists():
            return ["no model is left"]
        note = load_artefact(folder / "model").manifest["note"]
        wrong = [f"{note} model after completion"] if complete and note != "new" else []
        return wrong + ([] if (folder / "model.twm").read_bytes() in _exports() else ["half an exported file"])


@cache
def _exports() -> tuple[bytes, ...]:
    with tempfile.TemporaryDirectory() as folder:
        models = (write_model(Path(folder) / note, trees=2, note=note) for note in ("old", "new"))
        return tuple(model_bytes(load_artefact(model)) for model in models)


class Caches(OnDisk):
    """A dispatcher's measured cache and request log."""

    def load(self) -> None:
        """Need nothing."""

    def prepare(self, folder: Path) -> None:
        """Keep one measurement and two requests from before."""
        _cache(folder).put(_PROBLEMS[0], _outcomes(), _AT)
        _count(folder, 0, 2)

    def act(self, folder: Path) -> None:
        """Measure and count the other problems."""
        cache = _cache(folder)
        for problem in _PROBLEMS:
            if cache.get(problem) is None:
                cache.put(problem, _outcomes(), _AT)
        _count(folder, 1, 3)

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that kept measurements are whole, earlier counts stay, and no start fails."""
        cache = _cache(folder)
        kept = [cache.get(problem) for problem in _PROBLEMS]
        wrong = [] if kept[0] is not None else ["an earlier measurement is lost"]
        if complete and None in kept:
            wrong.append("a measurement is missing")
        counts = Counter({request.problem: n for request, n in read_request_log(folder / "requests.jsonl").items()})
        if counts[_PROBLEMS[0]] != 2 or counts[_PROBLEMS[1]] % 3:
            wrong.append(f"counts {[counts[p] for p in _PROBLEMS]}")
        return wrong + (["no count of the completed run"] if complete and not counts[_PROBLEMS[1]] else [])


def _cache(folder: Path) -> MeasuredCache:
    return MeasuredCache(folder / "measured", MeasuredContext(CONV, "p" * 64, MACHINE), 2)


def _outcomes() -> dict[int, Outcome]:
    return {0: Outcome("ok", None, Samples((0.5,), (), 1)), 1: Outcome("timeout", "too long")}


def _count(folder: Path, i: int, times: int) -> None:
    log = RequestLog(folder / "requests.jsonl", _TARGET)
    for _ in range(times):
        log.note(_PROBLEMS[i], "model")
    log.close()


class Registry(OnDisk):
    """Train, register and promote in a registry on SQLite."""

    def load(self) -> None:
        """Train both models and migrate an empty store."""
        lives.trained(0)
        lives.trained(1)
        fresh_store(Path(tempfile.mkdtemp()))

    def prepare(self, folder: Path) -> None:
        """Promote a first model."""
        fresh_store(folder)
        self._live(folder, 0)

    def act(self, folder: Path) -> None:
        """Train another model and promote it."""
        self._live(folder, 1)

    def _live(self, folder: Path, seed: int) -> None:
        if not lives.live(f"sqlite:///{folder / 'mlflow.db'}", folder, seed):
            raise AssertionError("the model is not in production")

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that production passed, aliases and history agree, and nothing is published twice."""
        return lives.inspect(f"sqlite:///{folder / 'mlflow.db'}", folder)


class RollBack(OnDisk):
    """Put the first version back into production, which was rolled back itself, in a registry on SQLite."""

    def load(self) -> None:
        """Promote two models, in a folder that every schedule copies."""
        Registry().load()
        _promoted_twice()

    def prepare(self, folder: Path) -> None:
        """Copy the registry with both."""
        shutil.copytree(_promoted_twice(), folder, dirs_exist_ok=True)

    def act(self, folder: Path) -> None:
        """Roll back, unless that is done."""
        lives.go_back(f"sqlite:///{folder / 'mlflow.db'}", over=2, to=1)

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check production, its history, and the tags of both versions."""
        uri = f"sqlite:///{folder / 'mlflow.db'}"
        return lives.inspect(uri, folder) + lives.inspect_back(uri, over=2, to=1)


@cache
def _promoted_twice() -> Path:
    folder = Path(tempfile.mkdtemp())
    assert forked(lambda: Registry().prepare(folder)) == DONE
    assert forked(lambda: Registry().act(folder)) == DONE
    assert forked(lambda: lives.mark_rolled_back(f"sqlite:///{folder / 'mlflow.db'}", 1)) == DONE
    return folder


class Refresh(OnDisk):
    """A dispatcher that starts from a registry and keeps a local copy: no fault of its disk may cost a selection."""

    def load(self) -> None:
        """Promote a model, outside the folder that faults hit."""
        Registry().load()
        _promoted()

    def prepare(self, folder: Path) -> None:
        """Start without a local copy."""

    def act(self, folder: Path) -> None:
        """Start and select."""
        os.environ["TILEWISE_CACHE"] = str(folder / "cache")
        with Dispatcher.from_registry(CONV, uri=_promoted()) as dispatcher:
            chosen = [dispatcher.select(problem) for problem in _PROBLEMS]
        if {selection.why for selection in chosen} != {"model"}:
            raise AssertionError(f"selected by {[selection.why for selection in chosen]}")

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that every local copy under its final name is whole."""
        return lives.half_copies(folder)


@cache
def _promoted() -> str:
    folder = Path(tempfile.mkdtemp())
    assert forked(lambda: Registry().prepare(folder)) == DONE
    return f"sqlite:///{folder / 'mlflow.db'}"


def quiet() -> None:
    """Silence warnings, which every fault gives."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


SCENARIOS: dict[str, Scenario] = {
    "collect": Collect(),
    "ingest": Ingest(),
    "artefact": Artefact(),
    "caches": Caches(),
    "registry": Registry(),
    "rollback": RollBack(),
    "refresh": Refresh(),
}
