"""Overhead of ``Dispatcher.run`` over a direct launch of the same kernel: host time per call while the GPU is busy.

``python3 -m benchmarks.runtime.run_overhead [--calls 200] [--repeats 25] [--json FILE]`` (needs numpy, torch, triton)

The decision is known, as in every call but a problem's first. A direct launch is Triton's launch of the compiled
kernel, ``compiled[grid](*arguments)``, with all arguments prepared. A batch of calls is queued behind a kernel that
keeps the GPU busy until the last call is queued, so only host time is measured. Batches of both kinds alternate, and
the median batch counts. ``run()`` with ``out=`` does the same work as the direct launch; without it, it also allocates
the result.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.results import machine, save
from tilewise.dispatch import Dispatcher
from tilewise.errors import MeasurementError, TilewiseError, UsageError
from tilewise.kernels import Pool, load_pool, unsupported
from tilewise.markdown import table
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

if TYPE_CHECKING:
    from tilewise.kernels.triton.programs import Launch

GOAL_US = 5.0
_BUSY_CYCLES_A_CALL = 400_000  # about 200 us, longer than the host time of any launch
_CONV = GroupedConvProblem(N=1, C=64, K=64, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
_GEMM = GemmProblem(M=256, N=256, K=1024)
CASES: tuple[tuple[str, str, bool, Problem], ...] = (  # target, pipeline, split K, problem
    ("grouped_conv_forward_bf16_sm90", "taps", False, _CONV),
    ("grouped_conv_forward_bf16_sm90", "flat", True, _CONV),
    ("grouped_conv_bwd_data_bf16_sm90", "taps", False, _CONV),
    ("grouped_conv_bwd_weight_bf16_sm90", "taps", True, _CONV),
    ("gemm_universal_bf16_sm90", "plain", False, _GEMM),
    ("gemm_universal_bf16_sm90", "tma", False, _GEMM),
    ("gemm_universal_bf16_sm90", "persistent", True, _GEMM),
)


def host_us(
    works: Mapping[str, Callable[[], object]], calls: int, repeats: int, before: Callable[[], object],
    after: Callable[[], object], clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:  # fmt: skip
    """Return the host microseconds of one call of each work: the median over `repeats` batches, kinds alternating.

    Args:
        works: functions to call, by name; each is called a few times before timing.
        calls: calls per batch.
        repeats: batches of each work.
        before: called before each batch, untimed; makes the device busy.
        after: called after each batch, untimed; waits for the device.
        clock: returns seconds.
    """
    for work in works.values():
        for _ in range(3):
            work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            after()
            before()
            start = clock()
            for _ in range(calls):
                work()
            times[name].append((clock() - start) / calls * 1e6)
    after()
    return {name: statistics.median(t) for name, t in times.items()}


def kernel_of(pool: Pool, pipeline: str, split: bool, problem: Problem) -> Any:
    """Return the pool's first kernel of this kind for a problem.

    Raises:
        MeasurementError: the pool has no such kernel.
    """
    for kernel in pool.kernels:
        fits = kernel.pipeline == pipeline and (kernel.split_k > 1) == split
        if fits and unsupported(kernel, problem, pool.variant, pool.dtype) is None:
            return kernel
    raise MeasurementError(f"the pool of {pool.op} {pool.variant} has no such {pipeline} kernel for {problem}")


def measure(calls: int, repeats: int) -> list[dict[str, Any]]:
    """Measure all cases on the current device; return kernel and microseconds by kind of call."""
    import torch

    os.environ["TILEWISE_MEASURE"] = "off"  # each case has one kernel, so nothing is measured
    from tilewise.kernels.triton.programs import empty_result, family_of, random_operands

    found = []
    for name, pipeline, split, problem in CASES:
        target = Target.parse(name)
        kernel = kernel_of(load_pool(target), pipeline, split, problem)
        dispatcher = Dispatcher(target, Pool(target.op, target.variant, target.dtype, (kernel,)), None)
        family = family_of(target.op, target.variant)
        operands = random_operands(family, problem, target.dtype, "cuda", 0)
        out = empty_result(family, problem, target.dtype, "cuda")
        workspace = torch.empty(family.workspace_elements(kernel, problem), device="cuda")
        works: dict[str, Callable[[], object]] = {
            "direct": _direct(family.launches(kernel, problem, target.dtype, *operands, out, workspace)),
            "run_out": partial(dispatcher.run, problem, *operands, out=out),
            "run": partial(dispatcher.run, problem, *operands),
            "empty": partial(torch.empty, out.shape, dtype=out.dtype, device=out.device),
        }
        us = host_us(
            works, calls, repeats, lambda: torch.cuda._sleep(calls * _BUSY_CYCLES_A_CALL), torch.cuda.synchronize
        )
        about = {"target": name, "kernel": kernel.config}
        found.append({**about, **{f"{k}_us": v for k, v in us.items()}, "overhead_us": us["run_out"] - us["direct"]})
    return found


def _direct(launches: Sequence[Launch]) -> Callable[[], None]:
    """Return a function that calls Triton's launchers, one per binary, with their arguments."""
    from tilewise.kernels.triton.programs import compile_program

    prepared = [
        (compile_program(i.program)[i.grid], (*i.tensors, *i.sizes, *(v for _, v in i.program.constants)))
        for i in launches
    ]

    def run() -> None:
        for launcher, arguments in prepared:
            launcher(*arguments)

    return run


def text(cases: list[dict[str, Any]]) -> str:
    """Return the cases as a Markdown table."""
    names = ("direct_us", "run_out_us", "overhead_us", "run_us", "empty_us")
    rows = [[f"`{c['target']}`", f"`{c['kernel']}`", *(f"{c[n]:.1f}" for n in names)] for c in cases]
    header = ("target", "kernel", "direct, us", "run(out=)", "run(out=) - direct", "run()", "torch.empty")
    worst = max(c["overhead_us"] for c in cases)
    return f"{table(header, rows, words=2)}\nAt most {worst:.1f} us over a direct launch; the goal is {GOAL_US:g}.\n"


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 no GPU, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.runtime.run_overhead", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--calls", type=int, default=200, help="calls per batch; 400 fill the device's queue")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args()
    try:
        import torch

        if not torch.cuda.is_available():
            raise MeasurementError("the benchmark needs a CUDA device; run it on a machine with a GPU")
        cases = measure(args.calls, args.repeats)
        if args.json:
            worst = max(c["overhead_us"] for c in cases)
            save(args.json, {"benchmark": "run_overhead", "machine": machine(), "overhead_us": worst, "cases": cases})
    except TilewiseError as e:
        print(f"run_overhead: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    print(text(cases))
    return 0


if __name__ == "__main__":
    sys.exit(main())
