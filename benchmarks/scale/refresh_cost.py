"""The cost of a model's refresh for requests that a dispatcher answers meanwhile.

``python -m benchmarks.scale.refresh_cost MODEL_FOLDER [--seconds 10] [--output FILE]``

A thread selects remembered problems without a pause, while another swaps in the model again and again, 0.1 s apart: it
reads, verifies and parses the files, and warms the model up. What the registry adds is waiting for a socket, which
holds nothing up. The same is done without refreshes. A request that takes long is put down to one of two causes:

- ``waits``: its thread gave the processor up (a voluntary context switch), so it waited for the interpreter, which the
  refresh held. On a busy machine this contains the time in which the refresh itself was not running;
- ``preempted``: the system ran something else meanwhile. That happens without refreshes as well.

``compiled``: the model's compiled form was in the cache, as after the first load on a host; ``new``: it was not.
"""

from __future__ import annotations

import argparse
import resource
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.results import RESULTS, conditions, save
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.sources import FetchedModel, Origin
from tilewise.markdown import table
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem, Problem

LIMIT_S = 1e-4
PAUSE_S = 0.1
PROBLEMS: tuple[Problem, ...] = tuple(
    GroupedConvProblem(N=n, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1) for n in range(1, 33)
)


@dataclass(frozen=True)
class FolderOrigin(Origin):
    """A registry in which each look finds a new version with the same files."""

    keep: Path | None = None

    def newer_model(self, content_hash: str | None, version: int | None) -> FetchedModel:
        """See :meth:`Origin.newer_model`."""
        model: TrainedModel = load_artefact(Path(self.alias), keep=self.keep)
        return FetchedModel(model, Path(self.alias), (version or 0) + 1, from_registry=True)


@dataclass
class Requests:
    """Requests of one window, and the microseconds of the slow ones by cause."""

    count: int = 0
    waits: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)


def select_for(dispatcher: Dispatcher, seconds: float) -> Requests:
    """Select without a pause, and note requests above the limit."""
    clock, usage, me = time.perf_counter, resource.getrusage, resource.RUSAGE_THREAD
    select, found, end = dispatcher.select, Requests(), time.perf_counter() + seconds
    while clock() < end:
        for problem in PROBLEMS:
            switches = usage(me).ru_nvcsw
            start = clock()
            select(problem)
            took = clock() - start
            if took > LIMIT_S:
                cause = found.waits if usage(me).ru_nvcsw > switches else found.preempted
                cause.append(took * 1e6)
        found.count += len(PROBLEMS)
    return found


def measure(model: Path, seconds: float, kind: str) -> dict[str, object]:
    """Return the row of one kind: ``quiet``, ``compiled`` or ``new``."""
    with TemporaryDirectory() as folder:
        keep = Path(folder) if kind == "compiled" else None
        loaded = load_artefact(model, keep=keep)
        origin = FolderOrigin(loaded.target.name, str(model), None, keep=keep)
        dispatcher = Dispatcher(loaded.target, loaded.pool, loaded, switches=Switches())
        dispatcher._refresher._origin = origin
        dispatcher._selector.warm_up_with(PROBLEMS)
        done = threading.Event()

        def refresh() -> None:
            while not done.wait(PAUSE_S):
                dispatcher.refresh()

        thread = threading.Thread(target=refresh)
        if kind != "quiet":
            thread.start()
        requests = select_for(dispatcher, seconds)
        done.set()
        if kind != "quiet":
            thread.join()
        refreshes = dispatcher.version or 0
        dispatcher.close()
    return {"kind": kind, "requests": requests.count, "refreshes": refreshes, **_summary(requests)}


def _summary(requests: Requests) -> dict[str, object]:
    waits = np.array(requests.waits or [0.0])
    return {
        "waits_above_100_us": len(requests.waits),
        "wait_p50_us": round(float(np.median(waits)), 1),
        "wait_max_us": round(float(waits.max()), 1),
        "preempted_above_100_us": len(requests.preempted),
        "preempted_max_us": round(max(requests.preempted, default=0.0), 1),
    }


def main() -> None:
    """Measure each kind, print a table, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="folder of a model of a grouped convolution")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each kind")
    parser.add_argument("--output", type=Path, default=RESULTS / "scale_refresh.json")
    args = parser.parse_args()
    rows = [measure(args.model, args.seconds, kind) for kind in ("quiet", "compiled", "new")]
    command = f"python -m benchmarks.scale.refresh_cost {args.model} --seconds {args.seconds:g}"
    save(args.output, {**conditions(command), "rows": rows})
    print(table(list(rows[0]), [[str(value) for value in row.values()] for row in rows]))


if __name__ == "__main__":
    main()
