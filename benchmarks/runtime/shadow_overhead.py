"""Overhead of shadowing: host time of a call without a measurement, and the share of GPU time at the default budget.

``python -m benchmarks.runtime.shadow_overhead --json FILE`` on any machine: host time, and the share for synthetic
calls. With ``--models PRODUCTION CANDIDATE`` on a GPU: the share in a stream of real calls, by the device's clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.results import machine, save
from tilewise.dispatch import Dispatcher, Selection, Switches
from tilewise.dispatch.measuring import GpuMeasurer
from tilewise.dispatch.shadowing import Case, Pair, PairTimes, PendingTimes, Shadow, expected_ms
from tilewise.errors import MeasurementError, TilewiseError, UsageError
from tilewise.kernels import load_pool
from tilewise.markdown import table
from tilewise.ops import GroupedConvProblem, Problem, Target

GOAL_US, GOAL_SHARE = 2.0, 0.01
TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
SHAPES = [
    GroupedConvProblem(N=n, C=c, K=c, G=1, Hi=size, Wi=size, Y=f, X=f, pad_h=f // 2, pad_w=f // 2)
    for n, c, size, f in ((1, 64, 14, 1), (8, 128, 28, 3), (32, 256, 14, 3), (32, 64, 56, 3), (64, 512, 28, 3))
]


class MadeUp:
    """A timer without a GPU: times as predicted, at 1.5 times the expected cost."""

    offline, device = False, "made up"

    def prepare(self, pair: Pair, case: Case) -> None:
        """Do nothing."""

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Return the expected cost, as on a GPU."""
        return 8 * case.call_ms + 0.4

    def start(self, pair: Pair, case: Case, tensors: Sequence[Any], out: Any) -> PendingTimes:
        """Return the times at once."""
        times = PairTimes((case.call_ms,) * 3, (1.1 * case.call_ms,) * 3, 1.5 * (8 * case.call_ms + 0.4))
        return lambda: times


def generation(content_hash: str, kernel: int) -> Any:
    """Return a generation whose model always selects this kernel of the shipped pool."""
    pool = load_pool(TARGET)
    pick = Selection(pool.kernels[kernel], pool.names[kernel], 300.0, "model")
    known = dict.fromkeys(SHAPES, pick)
    return SimpleNamespace(
        target=TARGET, model="made up", version=1, content_hash=content_hash * 64, decisions=known, launcher=None,
        rank=lambda *_: (pick,),
    )  # fmt: skip


def shadow_of(candidate: Any, journal: Path) -> tuple[Shadow, Any]:
    """Return a shadow of a synthetic production, and the production."""
    shadow = Shadow(TARGET, Switches(shadow="candidate", shadow_journal=str(journal)), None, GpuMeasurer())
    shadow._timer, shadow._candidate, shadow._has_looked = MadeUp(), candidate, True
    production = generation("a", 0)
    shadow.follow(production)
    return shadow, production


def microseconds(call: Callable[[Problem], object], calls: int, repeats: int) -> float:
    """Return the thread's CPU time per call in microseconds: the median of batches, including the loop."""
    took = []
    for _ in range(repeats):
        begun = time.thread_time()
        for _ in range(calls // len(SHAPES)):
            for problem in SHAPES:
                call(problem)
        took.append((time.thread_time() - begun) / (calls // len(SHAPES) * len(SHAPES)) * 1e6)
    return statistics.median(took)


def idle(calls: int, repeats: int) -> dict[str, float]:
    """Return the microseconds of a call without a measurement, by reason."""
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for name, candidate in (
            ("off", generation("a", 0)), ("same model", generation("a", 0)), ("same kernel", generation("b", 0)),
            ("not earned yet", generation("b", 1)),
        ):  # fmt: skip
            shadow, production = shadow_of(candidate, Path(scratch, "journal"))
            owner = SimpleNamespace(_shadow=None if name == "off" else shadow)

            def call(problem: Problem, owner: Any = owner, production: Any = production) -> None:
                if owner._shadow is not None:
                    owner._shadow.on_run(production, problem, (), None)

            for problem in SHAPES:
                call(problem)
            shadow.prepare()
            found[name] = microseconds(call, calls, repeats)
            shadow.close()
    return found


def made_up_share(calls: int) -> dict[str, float]:
    """Return the share of GPU time over a stream of synthetic calls: the highest, and the final one."""
    with tempfile.TemporaryDirectory() as scratch:
        shadow, production = shadow_of(generation("b", 1), Path(scratch, "journal"))
        highest = 0.0
        for i in range(calls):
            shadow.on_run(production, SHAPES[i % len(SHAPES)], (), None)
            if i < len(SHAPES):
                shadow.prepare()
            highest = max(highest, shadow.spent_ms / shadow.served_ms)
        share = shadow.spent_ms / shadow.served_ms
        shadow.close()
    return {"calls": calls, "share": share, "highest_share": highest}


def real_share(production: str, candidate: str, calls: int) -> dict[str, float]:
    """Return the share of GPU time spent on shadow timing: its time / the time of the same calls without a shadow.

    Raises:
        MeasurementError: this machine has no GPU.
    """
    import torch

    from tilewise.kernels.triton.programs import family_of, random_operands

    if not torch.cuda.is_available():
        raise MeasurementError("--models needs a CUDA device; run it on a machine with a GPU")
    operands = {p: random_operands(family_of(TARGET.op, TARGET.variant), p, TARGET.dtype, "cuda", 0) for p in SHAPES}

    def device_ms(dispatcher: Dispatcher) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for i in range(calls):
            problem = SHAPES[i % len(SHAPES)]
            dispatcher.run(problem, *operands[problem])
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end))

    with tempfile.TemporaryDirectory() as scratch:
        switches = Switches(shadow=candidate, measure="off", shadow_journal=str(Path(scratch, "journal")))
        with (
            Dispatcher.from_folder(production, switches=switches) as dispatcher,
            Dispatcher.from_folder(production, switches=switches.but(shadow="off")) as plain,
        ):
            dispatcher.refresh()
            for problem in SHAPES:
                dispatcher.run(problem, *operands[problem])
                plain.run(problem, *operands[problem])
            shadow = dispatcher._shadow
            assert shadow is not None
            shadow.prepare()
            alone, beside = device_ms(plain), device_ms(dispatcher)
            pair = shadow._pair
            timed = sum(c.observed for c in pair.cases.values()) if pair is not None else 0
            expected = sum(expected_ms(p, plain.select(p)) for p in SHAPES) * calls / len(SHAPES)
    return {
        "calls": calls, "observations": timed, "share": shadow.spent_ms / alone, "slower": beside / alone - 1,
        "predicted_over_measured": expected / alone,
    }  # fmt: skip


def text(result: Mapping[str, Any]) -> str:
    """Return the figures in Markdown."""
    rows = [[name, f"{us:.2f}"] for name, us in result["idle_us"].items()]
    made_up, real = result["made_up"], result.get("gpu")
    said = (
        f"{table(['a call, shadow', 'us'], rows)}\n"
        f"The goal is {GOAL_US:g} us. Over {made_up['calls']:,} made-up calls, with timings that cost half as much "
        f"again as expected, {made_up['share']:.2%} of the GPU's time is spent, {made_up['highest_share']:.2%} at the "
        f"highest; the goal is {GOAL_SHARE:.0%}.\n"
    )
    if real:
        said += (
            f"On the GPU, {real['calls']:,} calls: {real['observations']} observations took {real['share']:.2%} of the "
            f"time of the same calls alone, and made them {real['slower']:+.2%} longer.\n"
        )
    return said


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 no GPU, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.runtime.shadow_overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument(
        "--models", nargs=2, metavar=("PRODUCTION", "CANDIDATE"), help="model folders to run on this GPU"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    try:
        result: dict[str, Any] = {
            "benchmark": "shadow_overhead",
            "machine": machine(),
            "idle_us": idle(args.calls, args.repeats),
            "made_up": made_up_share(5 * args.calls),
        }
        if args.models:
            result["gpu"] = real_share(args.models[0], args.models[1], 2 * args.calls)
        if args.json:
            save(args.json, result)
    except TilewiseError as e:
        print(f"shadow_overhead: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    print(text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
