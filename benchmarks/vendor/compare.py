"""Compare the pool's best kernel with the vendor's library, side by side in one run, on the validation problems.

``python -m benchmarks.vendor.compare pick TARGET [--data data] [--fraction 0.18] [--top 4] [--model models/TARGET]
[--output PICKS.json]``
``python -m benchmarks.vendor.compare run PICKS.json [--devices 0] [--budget-s 500] [--output FILE.json]``

`pick` (where tilewise is installed) takes the fastest few kernels of each validation problem from the recorded table.
`run` (needs numpy, pyarrow, torch and triton) times them and the vendor's calls with one stopwatch: CUDA graphs, L2
cleared before each sample, all candidates of a problem interleaved in rounds. Even rounds choose the fastest kernel and
the vendor's fastest call, odd rounds judge them, so that neither side profits from a lucky sample. The vendor is cuBLAS
(both its interfaces; fp8 through ``torch._scaled_mm``, unit scales, fast accumulation, bf16 result) and cuDNN (channels
last, benchmark mode), through PyTorch. Each kernel's result is compared with the vendor's.

With ``--model`` the kernel selected by this model is timed as well, and the oracle is the fastest of all these kernels.
``pick / oracle`` is the efficiency of the selection in this run; ``vendor / pick`` is the dispatcher's speed-up.

The ratio is the vendor's time / the pool's time: above 1 the pool is faster. No problem is left out: an unmeasured one
is listed with its reason. A run that was stopped or spent its budget continues when the same command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, Protocol

from benchmarks.results import RESULTS, load, machine, save
from benchmarks.vendor.figures import SLICES, text
from benchmarks.vendor.rival import Rival
from tilewise.collect import Plan, ProgressLine, compile_ahead
from tilewise.errors import DataError, MeasurementError, TilewiseError, UsageError
from tilewise.ops import Target

_SAVE_EVERY_S = 20.0


class Worker(Protocol):
    """The object in a worker process that times problems: :class:`Rival`, or a test's."""

    lost: bool

    def problem(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        """Time one problem; see :meth:`Rival.problem`."""


# Each worker process has one worker; the executor passes problems to it.
_worker: Worker | None = None
_picks: list[list[int]] = []
_selected: list[int | None] = []


def _start(path: Path, devices: Any, worker: Callable[[Plan, int], Worker]) -> None:
    global _worker, _picks, _selected
    plan, _picks, values = read_picks(path)
    _selected = values.get("selected", [None] * len(_picks))
    _worker = worker(plan, devices.get())


def _one(index: int) -> dict[str, Any] | None:
    """Return the entry of a problem; None if the device is lost."""
    assert _worker is not None
    return None if _worker.lost else _worker.problem(index, _picks[index], _selected[index])


def read_picks(path: Path) -> tuple[Plan, list[list[int]], dict[str, Any]]:
    """Read a file of `pick`: the plan, the kernel indices per problem, and the other values.

    Raises:
        DataError: the file is missing or has another form.
    """
    values = load(path)
    try:
        plan = Plan.from_dict(values["plan"])
        picks = [[int(i) for i in row] for row in values["picks"]]
        labels = values["labels"]
    except (KeyError, TypeError, ValueError) as e:
        raise DataError(f"{path}: not a file of picks: {e!r}") from e
    if not len(picks) == len(labels) == len(plan.items) == len(values.get("selected", picks)):
        raise DataError(f"{path}: {len(plan.items)} problems, but {len(picks)} picks and {len(labels)} labels")
    return plan, picks, values


def run(
    path: Path,
    output: Path,
    devices: Sequence[int],
    jobs: int | None,
    budget_s: float,
    worker: Callable[[Plan, int], Worker] = Rival,
) -> dict[str, Any]:
    """Time all problems that `output` does not hold yet, and write it.

    Args:
        path: the picks.
        output: the result file; existing entries stay.
        devices: GPU indices, one process each.
        jobs: compiling processes; None: one per core.
        budget_s: seconds after which no further problem begins.
        worker: creates the worker in each process from plan and device.

    Raises:
        DataError: `output` belongs to other picks, or a file is damaged.
        MeasurementError: a process died.
    """
    deadline = time.monotonic() + budget_s
    plan, _, values = read_picks(path)
    identity = hashlib.sha256(path.read_bytes()).hexdigest()
    entries = _earlier(output, identity)
    progress = ProgressLine()
    compile_ahead(plan, jobs, lambda done, of: progress("compiling", done, of))
    about = machine()

    def write() -> dict[str, Any]:
        result = {
            "benchmark": "vendor",
            "target": plan.target.name,
            "machine": about,
            "rule": values["rule"],
            "recorded_kernels": values["recorded_kernels"],
            **({"model": values["model"]} if "model" in values else {}),
            "picks_sha256": identity,
            "problems": len(plan.items),
            "entries": [_labelled(entries[i], plan, values["labels"]) for i in sorted(entries)],
        }
        save(output, result)
        return result

    saved = time.monotonic()
    remaining = [i for i in range(len(plan.items)) if i not in entries]
    try:
        for timed in _timed(remaining, deadline, devices, (path, worker)):
            entries.update((entry["index"], entry) for entry in timed)
            progress("problems", len(entries), len(plan.items))
            if time.monotonic() - saved > _SAVE_EVERY_S:
                write()
                saved = time.monotonic()
    except BrokenProcessPool as e:
        write()
        raise MeasurementError(f"a worker died ({e}); {output} holds {len(entries)} problems, try again") from e
    return write()


def _timed(
    indices: Sequence[int],
    deadline: float,
    devices: Sequence[int],
    start: tuple[Path, Callable[[Plan, int], Worker]],
) -> Iterator[list[dict[str, Any]]]:
    """Time problems in one process per device until the deadline; yield the entries of finished problems.

    Args:
        indices: problems of the plan.
        deadline: by ``time.monotonic()``.
        devices: GPU indices.
        start: file of picks, and the function that creates a process's worker.
    """
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    for device in devices:
        queue.put(device)
    path, worker = start
    with ProcessPoolExecutor(len(devices), spawn, _start, (path, queue, worker)) as pool:
        waiting = {pool.submit(_one, i) for i in indices}
        while waiting and time.monotonic() < deadline:
            done, waiting = wait(waiting, timeout=5.0, return_when=FIRST_COMPLETED)
            yield _entries(done)
        pool.shutdown(wait=True, cancel_futures=True)
        yield _entries({future for future in waiting if not future.cancelled()})


def _entries(done: set[Future[dict[str, Any] | None]]) -> list[dict[str, Any]]:
    return [entry for entry in (future.result() for future in done) if entry is not None]


def _earlier(output: Path, identity: str) -> dict[int, dict[str, Any]]:
    if not output.exists():
        return {}
    values = load(output)
    if values.get("picks_sha256") != identity:
        raise DataError(f"{output} belongs to other picks; results are never overwritten, choose another output")
    return {e["index"]: e for e in values["entries"]}


def _labelled(entry: Mapping[str, Any], plan: Plan, labels: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    i = entry["index"]
    return {**entry, "problem": plan.items[i].problem.to_dict(), **{n: labels[i][n] for n in SLICES}}


def _pick(args: argparse.Namespace) -> int:
    from benchmarks.vendor.picks import pick_from

    target = Target.parse(args.target)
    output = args.output or Path("build/benchmarks") / f"picks_{target.name}.json"
    values = pick_from(args.data, target, args.fraction, args.top, args.model)
    save(output, values)
    kernels = len(values["plan"]["pool"]["kernels"])
    print(f"{output}: {len(values['picks'])} problems, {kernels} kernels among their fastest {args.top}")
    return 0


def _run(args: argparse.Namespace) -> int:
    output = args.output or RESULTS / f"vendor_{read_picks(args.picks)[0].target.name}.json"
    devices = [int(d) for d in args.devices.split(",")]
    result = run(args.picks, output, devices, args.jobs, args.budget_s)
    print(text(result))
    if left := result["problems"] - len(result["entries"]):
        print(f"{left} problems left; the same command continues")
    return 0


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vendor.compare", description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(required=True)
    pick = verbs.add_parser("pick")
    pick.add_argument("target")
    pick.add_argument("--data", type=Path, default=Path("data"))
    pick.add_argument("--fraction", type=float, default=0.18, help="share of held-out problems, as in conf/config.yaml")
    pick.add_argument("--top", type=int, default=4)
    pick.add_argument("--model", type=Path, help="folder of a trained model; its selections are timed as well")
    pick.add_argument("--output", type=Path)
    pick.set_defaults(verb=_pick)
    go = verbs.add_parser("run")
    go.add_argument("picks", type=Path)
    go.add_argument("--devices", default="0", help="GPU indices, separated by commas")
    go.add_argument("--jobs", type=int, help="compiling processes; default: one per core")
    go.add_argument("--budget-s", type=float, default=540.0)
    go.add_argument("--output", type=Path)
    go.set_defaults(verb=_run)
    args = parser.parse_args()
    try:
        return int(args.verb(args))
    except TilewiseError as e:
        print(f"vendor: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1


if __name__ == "__main__":
    sys.exit(main())
