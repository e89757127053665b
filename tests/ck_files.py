"""Synthetic files in CK Tile's formats, with plausible figures for each problem, for tests and benchmarks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewise.ops import GemmProblem, GroupedConvProblem, Problem

CONV_KERNELS = tuple(
    f"grouped_conv_forward_bf16_2d_{tile}_{pipeline}"
    for tile in ("16x64x64", "32x64x64", "64x64x64", "32x128x64", "64x128x64", "128x128x64", "16x64x128", "128x64x128")
    for pipeline in ("compv3", "compv4", "compv5_intrawave_dsb")
)
GEMM_KERNELS = tuple(
    f"gemm_universal_fp8_rcr_{pipeline}_cshuffle_intrawave_{pads}_False_{tile}_1x4x1_16x16x128"
    for tile in ("128x128x128", "64x128x128", "256x128x128")
    for pipeline, pads in (("compv3", "False_False_False"), ("compv4", "True_True_True"), ("mem", "False_False_False"))
)
CSV_COLUMNS = "kernel,problem_idx,N,C,K,G,Hi,Wi,Y,X,stride_h,stride_w,pad_h,pad_w,latency_ms,tflops,non_zero"


def conv_problems(count: int, seed: int = 0) -> list[GroupedConvProblem]:
    """Return distinct 2D convolutions with one group."""
    rng = np.random.default_rng(seed)
    found: dict[GroupedConvProblem, None] = {}
    while len(found) < count:
        c, k = (int(64 * rng.integers(1, 33)) for _ in range(2))
        size, filt = int(rng.integers(7, 300)), int(rng.choice([1, 3, 5]))
        shape = GroupedConvProblem(
            N=int(rng.integers(1, 17)),
            C=c,
            K=k,
            G=1,
            Hi=size,
            Wi=size,
            Y=filt,
            X=filt,
            pad_h=filt // 2,
            pad_w=filt // 2,
        )
        found[shape] = None
    return list(found)


def gemm_problems(count: int, seed: int = 0) -> list[GemmProblem]:
    """Return distinct matrix products, with operand layouts row and column."""
    rng = np.random.default_rng(seed)
    found: dict[GemmProblem, None] = {}
    while len(found) < count:
        m, n, k = (int(16 * rng.integers(1, 513)) for _ in range(3))
        found[GemmProblem(m, n, k)] = None
    return list(found)


def latency(problem: Problem, number: int) -> float:
    """Return a plausible time of the kernel with this number, in milliseconds, as precise as the tools print it."""
    return round(0.004 + problem.flops / 3e11 * (1 + 0.13 * (number * 7 % 11)), 6)


def tflops(problem: Problem, ms: float) -> float:
    """Return the TFLOPS, as precise as the tools print them."""
    return round(problem.flops / ms / 1e9, 6)


def csv_lines(problems: Sequence[GroupedConvProblem], kernels: Sequence[str] = CONV_KERNELS) -> Iterator[str]:
    """Yield the lines of a benchmark CSV, the header first."""
    yield CSV_COLUMNS
    for index, p in enumerate(problems):
        shape = f"{p.N},{p.C},{p.K},{p.G},{p.Hi},{p.Wi},{p.Y},{p.X},{p.stride_h},{p.stride_w},{p.pad_h},{p.pad_w}"
        for number, kernel in enumerate(kernels):
            ms = latency(p, number)
            yield f"{kernel},{index},{shape},{ms:.7f},{tflops(p, ms):.6f},{p.N * p.K}"


def kernel_config(name: str) -> dict[str, Any]:
    """Return a kernel's configuration in a benchmark JSON."""
    words = name.removeprefix("gemm_universal_").split("_")
    sizes = [[int(v) for v in w.split("x")] for w in words[9:12]]
    tiles = zip(("tile", "warp", "warp_tile"), sizes, strict=True)
    return {
        "name": name,
        **{f"{tile}_{d}": v for tile, values in tiles for d, v in zip("mnk", values, strict=True)},
        "pipeline": words[2],
        "epilogue": words[3],
        "scheduler": words[4],
        **{pad: words[5 + i] == "True" for i, pad in enumerate(("pad_m", "pad_n", "pad_k", "persistent"))},
    }


def benchmark_json(problems: Sequence[GemmProblem], kernels: Sequence[str] = GEMM_KERNELS) -> dict[str, Any]:
    """Return a benchmark JSON."""

    def benchmark(p: GemmProblem, number: int) -> dict[str, Any]:
        ms = latency(p, number)
        return {"m": p.M, "n": p.N, "k": p.K, "is_valid": True, "tflops": tflops(p, ms), "avg_time_ms": ms}

    return {
        "metadata": {"dtype": "fp8", "layout": "rcr", "num_kernels": len(kernels), "num_problems": len(problems)},
        "results": [
            {"kernel_config": kernel_config(name), "benchmarks": [benchmark(p, i) for p in problems]}
            for i, name in enumerate(kernels)
        ],
    }


def log_object(p: GemmProblem, kernel: str, number: int, split_k: int = 1, ms: float | None = None) -> str:
    """Return one measurement of a streaming log; `ms` is a plausible latency by default."""
    ms = latency(p, number) if ms is None else ms
    value = {
        "name": kernel,
        "problem": {
            "split_k": split_k,
            **{"m": p.M, "n": p.N, "k": p.K, "stride_a": p.K, "stride_b": p.K, "stride_c": p.N},
            **{"dtype_a": "fp8", "dtype_b": "fp8", "dtype_acc": "fp32", "dtype_c": "fp16"},
            **{"layout_a": "RowMajor", "layout_b": "ColumnMajor", "layout_c": "RowMajor", "structured_sparsity": False},
        },
        "perf_result": {
            "latency(ms)": ms,
            "tflops(TFlops)": tflops(p, ms),
            "bandwidth(GB/s)": round(p.min_bytes("fp8") / ms / 1e6, 2),
        },
    }
    return json.dumps(value, indent=2)


def log_pieces(problems: Sequence[GemmProblem], kernels: Sequence[str] = GEMM_KERNELS) -> Iterator[str]:
    """Yield the pieces of a streaming log."""
    yield "Running all kernels\n"
    for index, p in enumerate(problems, 1):
        yield f"Shape {index}: M={p.M} N={p.N} K={p.K} dtype=fp8 layout=rcr\n"
        for number, kernel in enumerate(kernels):
            yield f"Launching kernel with args: grid: {{{p.M}, 1, 1}}\n{log_object(p, kernel, number)}\n"
