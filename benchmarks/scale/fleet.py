"""Time until an alias' move reaches a fleet of dispatchers by push, with a large registry on PostgreSQL.

``python -m benchmarks.scale.fleet [--dispatchers 200] [--targets 1000] [--versions 50] [--moves 5] [--output FILE]``

The servers are those of ``make servers``, started here: MLflow over PostgreSQL and an S3 store, and the relay. The
registry is filled by SQL. One target has two real models, promoted by turns through the history, as the gate does.
Processes with ten real dispatchers each follow it; they share the machine, and its model cache, with the servers. Of
each move:

- ``heard``: time from the beginning of the change of production to the last dispatcher's event;
- ``known``: to the last one that has asked the registry, verified the standing with the gate and loaded the new model;
- ``polled``: the same with polling every `--poll` seconds and no relay, for comparison (0 leaves it out).
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg

from benchmarks.results import RESULTS, save
from small_model import write_model
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.background import Listener
from tilewise.markdown import table
from tilewise.registry import PRODUCTION, commit_change, registry_session, settle_history
from tilewise.registry.promotion import publish
from tilewise.servers import run_stack

EACH = 10  # dispatchers of a process
WAIT_S, START_S = 120.0, 600.0


def fill(database: str, targets: int, versions: int) -> None:
    """Add registered models with versions, tags and aliases to MLflow's tables."""
    now = int(time.time() * 1e3)
    statements = [
        "INSERT INTO registered_models (name, creation_time, last_updated_time, workspace) "
        f"SELECT 'filler_' || t, {now}, {now}, 'default' FROM generate_series(1, %(t)s) t",
        "INSERT INTO model_versions (name, version, creation_time, last_updated_time, current_stage, source, status, "
        f"workspace) SELECT 'filler_' || t, v, {now}, {now}, 'None', 's3://none', 'READY', 'default' "
        "FROM generate_series(1, %(t)s) t, generate_series(1, %(v)s) v",
        "INSERT INTO model_version_tags (name, version, key, value, workspace) SELECT 'filler_' || t, v, "
        "'content_hash', md5(t || '.' || v), 'default' FROM generate_series(1, %(t)s) t, generate_series(1, %(v)s) v",
        "INSERT INTO registered_model_aliases (name, alias, version, workspace) "
        "SELECT 'filler_' || t, 'production', %(v)s, 'default' FROM generate_series(1, %(t)s) t",
    ]
    with psycopg.connect(database) as connection:
        for statement in statements:
            connection.execute(statement, {"t": targets, "v": versions})


class Notes(logging.Handler):
    """Prints when a dispatcher heard of a move, and when its new model serves."""

    def emit(self, record: logging.LogRecord) -> None:
        """Note the refresher's message."""
        if "serves from now on" in record.getMessage():
            self.note("known")

    def heard(self) -> None:
        """Note an event."""
        self.note("heard")

    @staticmethod
    def note(what: str) -> None:
        """Print a line with the time, whose clock all processes share, and in one piece, as they share the file."""
        os.write(1, (json.dumps([what, time.monotonic()]) + "\n").encode())


def follow(uri: str, target: str, relay: str, poll_s: float) -> None:
    """Run dispatchers until standard input ends; a process of its own."""
    notes = Notes()
    logger = logging.getLogger("tilewise.dispatch._refresher")
    logger.setLevel(logging.INFO)
    logger.addHandler(notes)
    switches = Switches(push=relay, refresh_s=poll_s)
    dispatchers = [Dispatcher.from_registry(target, uri=uri, switches=switches) for _ in range(EACH)]
    listeners = [Listener(relay, target, [PRODUCTION], notes.heard) for _ in dispatchers] if relay else []
    for listener in listeners:
        listener.start()
    notes.note("ready")
    sys.stdin.read()
    for dispatcher in dispatchers:
        dispatcher.close()
    os._exit(0)  # without waiting for streams that are silent


class Fleet:
    """Processes of dispatchers, and the times that they note."""

    def __init__(self, uri: str, target: str, relay: str, poll_s: float, count: int, log: Path) -> None:
        command = [sys.executable, "-m", "benchmarks.scale.fleet", "--follow", json.dumps([uri, target, relay, poll_s])]
        self._log, self.count = log, count
        with log.open("wb") as output:
            self._processes = [
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output) for _ in range(count // EACH)
            ]
        ready = self.wait("ready", 0.0, count // EACH, START_S)
        assert len(ready) == count // EACH, f"{len(ready)} processes are ready after {START_S:g} s"

    def wait(self, what: str, since: float, count: int, seconds: float = WAIT_S) -> list[float]:
        """Return the times of `count` notes after `since`, as soon as they are there; fewer after a long wait."""
        end = time.monotonic() + seconds
        while True:
            notes = [json.loads(line) for line in self._log.read_text().splitlines() if line.endswith("]")]
            times = sorted(when for kind, when in notes if kind == what and when > since)
            if len(times) >= count or time.monotonic() > end:
                return times[:count]
            time.sleep(0.05)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.communicate()


def move(uri: str, target: str, number: int, previous: int) -> float:
    """Promote a version through the history; return when its author began to."""
    with registry_session(uri):
        history = settle_history(target)
        start = time.monotonic()
        assert commit_change(history, number, "promoted", "benchmark", previous=previous)
    return start


def measure(fleet: Fleet, uri: str, target: str, moves: int, heard: bool) -> list[dict[str, Any]]:
    """Move the alias to and fro; return the seconds to half of the dispatchers and to the last, of each move."""
    rows: list[dict[str, Any]] = []
    for i in range(moves):
        start = move(uri, target, 2 - i % 2, 1 + i % 2)
        row: dict[str, Any] = {"move": i + 1}
        for what in ["heard", "known"] if heard else ["known"]:
            times = fleet.wait(what, start, fleet.count)
            row |= {f"{what}_count": len(times), f"{what}_half_s": round(times[len(times) // 2] - start, 3)}
            row |= {f"{what}_last_s": round(times[-1] - start, 3)}
        rows.append(row)
        print(row, flush=True)
        time.sleep(2.0)
    return rows


def run(args: argparse.Namespace, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """Start the servers, fill the registry, and measure by push and by polling."""
    os.environ["TILEWISE_CACHE"] = str(folder / "cache")
    servers = stack.enter_context(run_stack(folder / "servers", open_to_all=True, workers=args.workers))
    settings = json.loads((folder / "servers" / "settings.json").read_text())
    password, port = settings["secrets"]["postgres"], settings["ports"]["postgres"]
    fill(f"postgresql://mlflow:{password}@127.0.0.1:{port}/mlflow", args.targets, args.versions)
    target = publish_two(servers.uri, folder)
    move(servers.uri, target, 1, 2)
    values: dict[str, Any] = {"dispatchers": args.dispatchers, "targets": args.targets, "versions": args.versions}
    fleet = Fleet(servers.uri, target, servers.relay, 0.0, args.dispatchers, folder / "push.log")
    values["push"] = measure(fleet, servers.uri, target, args.moves, heard=True)
    fleet.close()
    if args.poll:
        fleet = Fleet(servers.uri, target, "", args.poll, args.dispatchers, folder / "poll.log")
        values["poll_s"] = args.poll
        values["polled"] = measure(fleet, servers.uri, target, args.moves, heard=False)
        fleet.close()
    return values


def publish_two(uri: str, folder: Path) -> str:
    """Publish two small models of equal skill, and return their target."""
    with registry_session(uri):
        first, _ = (publish(write_model(folder / note, trees=100, note=note)) for note in ("one", "two"))
    return first.target


def main() -> None:
    """Measure, print tables, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dispatchers", type=int, default=200, help=f"a multiple of {EACH}")
    parser.add_argument("--targets", type=int, default=1000)
    parser.add_argument("--versions", type=int, default=50)
    parser.add_argument("--moves", type=int, default=5)
    parser.add_argument("--poll", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2, help="processes of the MLflow server")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_fleet.json")
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.follow:
        follow(*json.loads(args.follow))
    with TemporaryDirectory() as folder, ExitStack() as stack:
        values = run(args, Path(folder), stack)
    save(args.output, {"command": "python -m benchmarks.scale.fleet", "cores": os.cpu_count(), **values})
    for kind in ("push", "polled"):
        if rows := values.get(kind):
            print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
