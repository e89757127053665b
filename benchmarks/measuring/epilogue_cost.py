"""Times of kernels with an epilogue in their store, beside the same kernels without one, and beside a pass of its own.

    python3 -m benchmarks.measuring.epilogue_cost --models FOLDER [--output FILE]

Needs a GPU; `FOLDER` holds models by target (`models` after `make repro-all`). For layers of networks, and in each
pipeline that fuses, the model's first kernel is timed with every activation, captured in CUDA graphs. The predicted
time of a fused layer is that of its kernel alone, so a ratio well above 1 is a layer that is slower than predicted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton.testing
from torch import Tensor

from benchmarks.results import RESULTS, machine, save
from tilewise.arch import load_arch
from tilewise.dispatch import Dispatcher
from tilewise.kernels import ACTIVATIONS, EMPTY_KIND, TENSORS, Epilogue, EpilogueKind
from tilewise.kernels.triton import PIPELINES, Kernel
from tilewise.kernels.triton.programs import (
    compile_program,
    cuda_target,
    empty_result,
    family_of,
    launch_all,
    pass_launch,
    random_operands,
)
from tilewise.ops import OPS, GemmProblem, GroupedConvProblem, Problem, Target

KINDS = (
    EMPTY_KIND,
    EpilogueKind(True),
    *(EpilogueKind(True, False, activation) for activation in ACTIVATIONS),
    EpilogueKind(True, True, "relu"),
)
LEAST_ELEMENTS = 1_000_000
_PRODUCTS = [(3152, 3072, 768), (50176, 384, 96), (3136, 1536, 384), (784, 3072, 768), (16, 1000, 768)]
_IMAGES = [  # images, input channels, output channels, rows, filter's rows, groups
    (16, 64, 64, 56, 3, 1), (16, 256, 64, 56, 1, 1), (16, 512, 2048, 7, 1, 1), (16, 128, 128, 56, 3, 32),
    (16, 96, 96, 56, 7, 96), (1, 256, 256, 14, 3, 1),
]  # fmt: skip
PROBLEMS: dict[str, list[Problem]] = {
    "gemm_universal_bf16_sm90": [GemmProblem(M=m, N=n, K=k, layout="rcr") for m, n, k in _PRODUCTS],
    "grouped_conv_forward_bf16_sm90": [
        GroupedConvProblem(
            N=n, C=c, K=k, G=g, Hi=rows, Wi=rows, Y=size, X=size, pad_h=size // 2, pad_w=size // 2
        )
        for n, c, k, rows, size, g in _IMAGES
    ],
}  # fmt: skip


def kernels(dispatcher: Dispatcher, problem: Problem) -> list[Kernel]:
    """Return the model's first kernel of each pipeline that fuses, of whole tiles and of shares of one."""
    key = (dispatcher.target.op, dispatcher.target.variant)
    first: dict[tuple[str, bool], Kernel] = {}
    for selection in dispatcher.rank(problem):
        kernel = selection.kernel
        if isinstance(kernel, Kernel) and key in PIPELINES[kernel.pipeline].fuses:
            first.setdefault((kernel.pipeline, kernel.split_k > 1), kernel)
    return list(first.values())


def epilogue(kind: EpilogueKind, shape: tuple[int, ...], dtype: torch.dtype) -> Epilogue:
    """Return a random epilogue for a result of this shape."""
    bias = torch.randn(shape[-1], device="cuda").to(dtype) if kind.has_bias else None
    residual = torch.randn(shape, device="cuda").to(dtype) if kind.has_residual else None
    return Epilogue(bias, residual, kind.activation or None)


def name_of(kind: EpilogueKind) -> str:
    """Return the parts of an epilogue, joined by a plus; "" for an empty one."""
    return "+".join(filter(None, ("bias" * kind.has_bias, "residual" * kind.has_residual, kind.activation)))


def rows(dispatcher: Dispatcher) -> Iterator[dict[str, Any]]:
    """Measure and yield the times of each problem of a target, kernel and kind."""
    target = dispatcher.target
    family = family_of(target.op, target.variant)
    for problem in PROBLEMS[target.name]:
        operands = random_operands(family, problem, target.dtype, "cuda", seed=1)
        y = empty_result(family, problem, target.dtype, "cuda")
        epilogues = {kind: epilogue(kind, family.result(problem), y.dtype) for kind in KINDS}
        pass_us = {kind: _pass_us(ends, target.dtype, y) for kind, ends in epilogues.items()}
        for kernel in kernels(dispatcher, problem):
            workspace = torch.empty(family.workspace_elements(kernel, problem), device="cuda")
            for kind, ends in epilogues.items():
                made = family.launches(kernel, problem, target.dtype, *operands, y, workspace, epilogue=ends)
                us = triton.testing.do_bench_cudagraph(lambda made=made: launch_all(made), rep=10) * 1e3
                yield {
                    "target": target.name,
                    "problem": problem.to_dict(),
                    "kernel": kernel.name(target.op, target.variant, target.dtype),
                    "pipeline": kernel.pipeline,
                    "split": kernel.split_k > 1,
                    "kind": name_of(kind),
                    "us": us,
                    "pass_us": pass_us[kind],
                }


def clocks(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the median clocks of a compute unit that each kind adds to a result's store, by persistent kernel or not.

    Only whole tiles and results of at least a million elements count: others leave units without work. The difference
    is that to the kernel with a bias, as all layers of networks have one here.
    """
    arch = load_arch("sm90")
    biased = {(str(row["problem"]), row["kernel"]): row["us"] for row in found if row["kind"] == "bias"}
    added = defaultdict(list)
    for row in found:
        target = Target.parse(row["target"])
        problem = OPS[target.op].from_dict(row["problem"])
        elements = prod(TENSORS[target.op, target.variant].result(problem))
        if not row["split"] and elements >= LEAST_ELEMENTS and row["kind"] not in ("", "bias"):
            us = row["us"] - biased[str(row["problem"]), row["kernel"]]
            side = "persistent" if PIPELINES[row["pipeline"]].persistent else "others"
            added[side, row["kind"]].append(us * arch.compute_units * arch.clock_mhz / elements)
    result: dict[str, dict[str, float]] = {"persistent": {}, "others": {}}
    for (side, kind), values in added.items():
        result[side][kind] = round(statistics.median(values), 3)
    return result


def _pass_us(ends: Epilogue, dtype: str, y: Tensor) -> float:
    if ends.kind.is_empty:
        return 0.0
    made = [pass_launch(ends, dtype, y, y.shape[-1])]
    return float(triton.testing.do_bench_cudagraph(lambda: launch_all(made), rep=5) * 1e3)


def compile_all(dispatcher: Dispatcher) -> None:
    """Compile the programs into Triton's cache, on all cores."""
    target = dispatcher.target
    jobs = [
        (target, p, kernel, kind) for p in PROBLEMS[target.name] for kernel in kernels(dispatcher, p) for kind in KINDS
    ]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(_compile, *zip(*jobs, strict=True)))  # raises the first error


def _compile(target: Target, problem: Problem, kernel: Kernel, kind: EpilogueKind) -> None:
    for program in family_of(target.op, target.variant).programs(kernel, problem, target.dtype, kind):
        compile_program(program, cuda_target(target.arch))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder with a model's folder for each target")
    parser.add_argument("--output", type=Path, default=RESULTS / "epilogue_cost.json")
    args = parser.parse_args(argv)
    dispatchers = [Dispatcher.from_folder(args.models / name) for name in PROBLEMS]
    for dispatcher in dispatchers:
        compile_all(dispatcher)
    found = []
    for dispatcher in dispatchers:
        for row in rows(dispatcher):
            found.append(row)
            print(row["target"], row["kernel"], row["kind"], f"{row['us']:.1f} us", file=sys.stderr, flush=True)
    save(args.output, {"benchmark": "epilogue_cost", "machine": machine(), "clocks": clocks(found), "rows": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
