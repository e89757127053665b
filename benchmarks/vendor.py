"""The pool's best kernel against the vendor's library, side by side in one run, on the validation problems.

``python -m benchmarks.vendor pick TARGET [--data data] [--fraction 0.18] [--top 4] [--model models/TARGET]
[--output PICKS.json]``
``python -m benchmarks.vendor run PICKS.json [--devices 0] [--budget-s 500] [--output FILE.json]``

`pick` (where tilewise is installed) takes the fastest few kernels of each validation problem from the recorded table;
`run` (numpy, pyarrow, torch and triton are enough) times them and the vendor's calls with one stopwatch: CUDA graphs,
L2 cleared before each sample, all candidates of a problem interleaved in rounds. Even rounds choose the fastest kernel
and the vendor's fastest call, odd rounds judge them, so that neither side wins by the luck of a sample. The vendor is
cuBLAS (both its interfaces; fp8 through ``torch._scaled_mm``, unit scales, fast accumulation, bf16 result) and cuDNN
(channels last, benchmark mode), through PyTorch. Each kernel's result is compared with the vendor's.

With ``--model`` the kernel that this model selects is timed with them: the oracle is then the fastest of the few and of
that one. ``pick / oracle`` is the selected kernel's efficiency in this very run, ``vendor / pick`` says how much faster
than the vendor a dispatcher is.

The ratio is the vendor's time / the pool's: above 1 the pool is faster. No problem is left out: what was not measured
is there with its reason. A run that was stopped or ended by its budget continues when the same command is given again.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from benchmarks.results import RESULTS, load, machine, save
from benchmarks.vendor_figures import FAILED, MEASURED, NO_KERNEL, SLICES, UNSUPPORTED, text
from tilewise.collect.ahead import compile_ahead
from tilewise.collect.plan import Plan
from tilewise.collect.progress import ProgressLine
from tilewise.collect.rounds import Share, measure, shares
from tilewise.errors import DataError, MeasurementError, TilewiseError, UsageError, one_line
from tilewise.ops import Target

if TYPE_CHECKING:
    import torch

_SAVE_EVERY_S = 20.0


class Rival:
    """Times one problem after another on one device."""

    def __init__(self, plan: Plan, index: int) -> None:
        import torch

        from tilewise.collect.gpu import GpuEngine
        from tilewise.collect.stopwatch import Cache
        from tilewise.kernels.triton.family import family_of

        self._engine = GpuEngine(plan, index)  # device, stream, clocks up
        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(False)
        self._torch = torch
        self._plan = plan
        self._family = family_of(plan.target.op, plan.target.variant)
        self._cache = Cache()
        self._uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        self._wrong = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.lost = False  # the device's context is broken: a later run has to do the rest

    def problem(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        """Time the picked kernels, the one that a model selected, and the vendor's calls on the plan's problem `index`.

        Failures are values.
        """
        if not picks:
            return {"index": index, "status": NO_KERNEL}
        try:
            return {"index": index, **self._measured(index, picks, selected)}
        except Exception as e:
            try:
                self._torch.cuda.synchronize()
            except Exception:
                self.lost = True
            return {"index": index, "status": FAILED, "error": one_line(e)}

    def _measured(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        from benchmarks.vendor_calls import VendorUnsupportedError, vendor_of
        from tilewise.kernels.triton.program import launch_all
        from tilewise.kernels.triton.tensors import empty_result, random_operands

        torch, problem, dtype = self._torch, self._plan.items[index].problem, self._plan.target.dtype
        if selected is not None:
            picks = list(dict.fromkeys([*picks, selected]))
        operands = random_operands(self._family, problem, dtype, "cuda", index)
        result = empty_result(self._family, problem, dtype, "cuda")
        kernels = [self._plan.pool.kernels[i] for i in picks]
        space = max(self._family.workspace_elements(k, problem) for k in kernels)
        workspace = torch.empty(space, device="cuda")
        try:
            vendor = vendor_of(self._plan.target, problem, operands)
            theirs, failures = _able(vendor.calls)
        except VendorUnsupportedError as e:
            return {"status": UNSUPPORTED, "error": str(e)}
        if not theirs:
            return {"status": UNSUPPORTED, "error": "; ".join(failures.values())}
        right = vendor.to_ours(next(iter(theirs.values()))()).float().contiguous()

        def work_of(i: int) -> Callable[[], object]:
            kernel = self._plan.pool.kernels[i]
            launches = self._family.launches(kernel, problem, dtype, *operands, result, workspace)
            return partial(launch_all, launches)

        ours: dict[str, Callable[[], object]] = {self._plan.pool.names[i]: work_of(i) for i in picks}
        able, failed = _able(ours)
        failures |= failed
        if not able:
            return {"status": FAILED, "error": "; ".join(failures.values())}
        differing = {}
        for name, work in able.items():
            result.fill_(float("nan"))
            work()
            if wrong := self._mismatches(result, right, problem):
                differing[name] = wrong
        del right
        both = able | theirs
        times = self._times(list(both.values()))
        by_name = dict(zip(both, times, strict=True))
        return {
            "status": MEASURED,
            "backend": vendor.backend,
            **judged({n: by_name[n] for n in able}, {n: by_name[n] for n in theirs}),
            **self._picked(selected, by_name),
            "ms": {name: statistics.median(t) for name, t in by_name.items()},
            "differing": differing,
            "failures": failures,
        }

    def _picked(self, selected: int | None, times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
        """The selected kernel and its time; the time is missing where it could not run."""
        if selected is None:
            return {}
        name = self._plan.pool.names[selected]
        return {"pick": name} | ({"pick_ms": judged_ms(times[name])} if name in times else {})

    def _mismatches(self, result: torch.Tensor, right: torch.Tensor, problem: Any) -> int:
        """Elements on which kernel and vendor disagree by more than twice what either may err."""
        from tilewise.kernels.triton.check import count_mismatches, scale_of

        self._wrong.zero_()
        rtol = 2 * (self._plan.timing.rtol + self._family.imprecision(problem, self._plan.target.dtype))
        count_mismatches(result, right, self._wrong, rtol, scale_of(right))
        return int(self._wrong.item())

    def _times(self, works: Sequence[Callable[[], object]]) -> list[tuple[float, ...]]:
        from tilewise.collect.stopwatch import GraphStopwatch, capture

        rough = [self._rough(work) for work in works]
        parts = shares(rough, [False] * len(rough), self._plan.timing)
        unrolled, rounds = max(p.unrolled for p in parts), max(p.rounds for p in parts)
        self._torch.cuda.synchronize()
        captured = {i: capture(work, unrolled) for i, work in enumerate(works)}
        watch = GraphStopwatch(captured, self._cache, self._uuid)
        samples = measure(rough, [Share(rounds, unrolled)] * len(works), watch, self._plan.timing)
        del captured, watch
        self._torch.cuda.empty_cache()  # what the vendor allocated inside the graphs
        return [s.times for s in samples]

    def _rough(self, work: Callable[[], object]) -> float:
        """Milliseconds of one cold call, after the clearing gave the host time to queue it."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cache.clear()
        self._cache.clear()
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def judged_ms(times: Sequence[float]) -> float:
    """What a candidate is judged by: the median of its odd rounds."""
    return statistics.median(times[1::2])


def judged(ours: Mapping[str, Sequence[float]], theirs: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Choose each side's fastest by the even rounds, and compare them by the odd ones."""

    def fastest(side: Mapping[str, Sequence[float]]) -> str:
        return min(side, key=lambda name: statistics.median(side[name][::2]))

    kernel, call = fastest(ours), fastest(theirs)
    ours_ms, theirs_ms = judged_ms(ours[kernel]), judged_ms(theirs[call])
    return {
        "kernel": kernel,
        "call": call,
        "oracle_ms": ours_ms,
        "vendor_ms": theirs_ms,
        "ratio": theirs_ms / ours_ms,
    }


def _able(works: Mapping[str, Callable[[], Any]]) -> tuple[dict[str, Callable[[], Any]], dict[str, str]]:
    """Those that run, warmed (cuDNN's benchmark mode tries algorithms at the first call), and why others do not."""
    import torch

    able, failures = {}, {}
    for name, work in works.items():
        try:
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            able[name] = work
        except (RuntimeError, ValueError) as e:
            torch.cuda.synchronize()  # raises where the device is lost
            failures[name] = one_line(e)
    return able, failures


class Worker(Protocol):
    """What does the problems in a worker process: :class:`Rival`, or a test's."""

    lost: bool

    def problem(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        """See :meth:`Rival.problem`."""


# A worker process has one of them; the executor hands it problems.
_worker: Worker | None = None
_picks: list[list[int]] = []
_selected: list[int | None] = []


def _start(path: Path, devices: Any, worker: Callable[[Plan, int], Worker]) -> None:
    global _worker, _picks, _selected
    plan, _picks, values = read_picks(path)
    _selected = values.get("selected", [None] * len(_picks))
    _worker = worker(plan, devices.get())


def _one(index: int) -> dict[str, Any] | None:
    """The entry of a problem; None where the device is lost."""
    assert _worker is not None
    return None if _worker.lost else _worker.problem(index, _picks[index], _selected[index])


def read_picks(path: Path) -> tuple[Plan, list[list[int]], dict[str, Any]]:
    """Plan, kernel indices a problem, and the rest of a file that `pick` wrote.

    Raises:
        DataError: the file is missing or of another form.
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
        output: the result file; what it holds already stays.
        devices: GPU indices, a process each.
        jobs: compiling processes; None: one a core.
        budget_s: seconds after which no further problem is begun.
        worker: made in each process from plan and device.

    Raises:
        DataError: `output` is of other picks, or a file is damaged.
        MeasurementError: a process died.
    """
    start = time.monotonic()
    plan, _, values = read_picks(path)
    identity = hashlib.sha256(path.read_bytes()).hexdigest()
    entries = _earlier(output, identity)
    progress = ProgressLine()
    compile_ahead(plan, jobs, lambda done, of: progress("compiling", done, of))
    about = machine()

    def result() -> dict[str, Any]:
        return {
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

    todo = [i for i in range(len(plan.items)) if i not in entries]
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    for device in devices:
        queue.put(device)
    try:
        with ProcessPoolExecutor(len(devices), spawn, _start, (path, queue, worker)) as pool:
            waiting = {pool.submit(_one, i) for i in todo}
            saved = time.monotonic()
            while waiting and time.monotonic() - start < budget_s:
                done, waiting = wait(waiting, timeout=5.0, return_when=FIRST_COMPLETED)
                _take(done, entries)
                progress("problems", len(entries), len(plan.items))
                if time.monotonic() - saved > _SAVE_EVERY_S:
                    save(output, result())
                    saved = time.monotonic()
            pool.shutdown(wait=True, cancel_futures=True)
            _take({future for future in waiting if not future.cancelled()}, entries)
    except BrokenProcessPool as e:
        save(output, result())
        raise MeasurementError(f"a worker died ({e}); {output} holds {len(entries)} problems, try again") from e
    save(output, result())
    return result()


def _take(done: set[Future[dict[str, Any] | None]], entries: dict[int, dict[str, Any]]) -> None:
    for entry in (future.result() for future in done):
        if entry is not None:
            entries[entry["index"]] = entry


def _earlier(output: Path, identity: str) -> dict[int, dict[str, Any]]:
    if not output.exists():
        return {}
    values = load(output)
    if values.get("picks_sha256") != identity:
        raise DataError(f"{output} is of other picks; earlier results are never overwritten, choose another output")
    return {e["index"]: e for e in values["entries"]}


def _labelled(entry: Mapping[str, Any], plan: Plan, labels: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    i = entry["index"]
    return {**entry, "problem": plan.items[i].problem.to_dict(), **{n: labels[i][n] for n in SLICES}}


def _pick(args: argparse.Namespace) -> int:
    from benchmarks.picks import pick_from

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
    """Exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vendor", description=__doc__.partition("\n")[0])
    verbs = parser.add_subparsers(required=True)
    pick = verbs.add_parser("pick")
    pick.add_argument("target")
    pick.add_argument("--data", type=Path, default=Path("data"))
    pick.add_argument("--fraction", type=float, default=0.18, help="of the problems held out, as in conf/config.yaml")
    pick.add_argument("--top", type=int, default=4)
    pick.add_argument("--model", type=Path, help="folder of a trained model whose selections are timed as well")
    pick.add_argument("--output", type=Path)
    pick.set_defaults(verb=_pick)
    go = verbs.add_parser("run")
    go.add_argument("picks", type=Path)
    go.add_argument("--devices", default="0", help="GPU indices, separated by commas")
    go.add_argument("--jobs", type=int, help="compiling processes; default: one a core")
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
