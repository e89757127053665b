"""Timing of the pool's kernels and the vendor's calls on one device; part of compare.py."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.vendor.figures import FAILED, MEASURED, NO_KERNEL, UNSUPPORTED
from tilewise.collect import Plan, TimingShare, time_in_rounds, timing_shares
from tilewise.errors import one_line

if TYPE_CHECKING:
    import torch


class Rival:
    """A timer of one problem after another on one device."""

    def __init__(self, plan: Plan, index: int) -> None:
        import torch

        from tilewise.collect.engines import GpuEngine, L2Cache
        from tilewise.kernels.triton.programs import family_of

        self._engine = GpuEngine(plan, index)  # sets device and stream, raises the clocks
        torch.backends.cudnn.benchmark = True
        torch.set_grad_enabled(False)
        self._torch = torch
        self._plan = plan
        self._family = family_of(plan.target.op, plan.target.variant)
        self._cache = L2Cache()
        self._uuid = f"GPU-{torch.cuda.get_device_properties(index).uuid}"
        self._wrong = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.lost = False  # the device's context is broken, so a later run does the rest

    def problem(self, index: int, picks: Sequence[int], selected: int | None) -> dict[str, Any]:
        """Time the picked kernels, the model's selection and the vendor's calls on the plan's problem `index`.

        Failures are returned as values.
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
        from benchmarks.vendor.calls import VendorUnsupportedError, vendor_of
        from tilewise.kernels.triton.programs import empty_result, launch_all, random_operands

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
        """Return the selected kernel and its time; the time is missing if the kernel failed."""
        if selected is None:
            return {}
        name = self._plan.pool.names[selected]
        return {"pick": name} | ({"pick_ms": judged_ms(times[name])} if name in times else {})

    def _mismatches(self, result: torch.Tensor, right: torch.Tensor, problem: Any) -> int:
        """Return the number of elements on which kernel and vendor differ by more than twice the tolerance."""
        from tilewise.kernels.triton.programs import count_mismatches, scale_of

        self._wrong.zero_()
        rtol = 2 * (self._plan.timing.rtol + self._family.imprecision(problem, self._plan.target.dtype))
        count_mismatches(result, right, self._wrong, rtol, scale_of(right))
        return int(self._wrong.item())

    def _times(self, works: Sequence[Callable[[], object]]) -> list[tuple[float, ...]]:
        from tilewise.collect.engines import GraphStopwatch, capture_graph

        rough = [self._rough(work) for work in works]
        parts = timing_shares(rough, [False] * len(rough), self._plan.timing)
        unrolled, rounds = max(p.unrolled for p in parts), max(p.rounds for p in parts)
        self._torch.cuda.synchronize()
        captured = {i: capture_graph(work, unrolled) for i, work in enumerate(works)}
        watch = GraphStopwatch(captured, self._cache, self._uuid)
        samples = time_in_rounds(rough, [TimingShare(rounds, unrolled)] * len(works), watch, self._plan.timing)
        del captured, watch
        self._torch.cuda.empty_cache()  # frees the vendor's allocations inside the graphs
        return [s.times for s in samples]

    def _rough(self, work: Callable[[], object]) -> float:
        """Return the milliseconds of one cold call; the clearing before gives the host time to queue it."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._cache.clear()
        self._cache.clear()
        start.record()
        work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


def judged_ms(times: Sequence[float]) -> float:
    """Return the time that judges a candidate: the median of its odd rounds."""
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
    """Return the works that run, warmed up (cuDNN tries its algorithms at the first call), and errors of the others."""
    import torch

    able, failures = {}, {}
    for name, work in works.items():
        try:
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            able[name] = work
        except (RuntimeError, ValueError) as e:
            torch.cuda.synchronize()  # raises if the device is lost
            failures[name] = one_line(e)
    return able, failures
