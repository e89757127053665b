"""Made-up measurement tables for tests: an analytic latency with noise, in the columns of a real table.

Plausible on purpose: tile and wave quantisation, channel padding, memory traffic and launch cost decide which kernel
wins, so a model has something to learn, and unsupported pairs are rows with a status, as in a real table.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile, load_arch
from tilewise.data import group_keys, holdout_mask, measurement_columns
from tilewise.errors import KernelError
from tilewise.kernels import load_pool, unsupported
from tilewise.kernels.triton import Kernel, illegal, pipelines_of
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

CONV = "grouped_conv_forward_bf16_sm90"
_DTYPES = {"str": "str", "int": "Int64", "float": "float64", "bool": "bool"}
_LAUNCH_MS = 2e-3


def measurements(
    target: str | Target = CONV,
    n_problems: int = 40,
    n_kernels: int = 24,
    seed: int = 0,
    *,
    repeats: int = 0,
    noise: float = 0.004,
    failures: float = 0.002,
) -> pd.DataFrame:
    """Return `n_problems` x `n_kernels` rows of ``synthetic-1``, and `repeats` problems again in ``synthetic-2``.

    Args:
        target: a target or its name.
        n_problems: distinct problems.
        n_kernels: kernels, spread over the shipped pool (the default first), or made up where none is shipped.
        seed: everything random derives from it; equal arguments give equal tables.
        repeats: how many of the problems the second run measures again.
        noise: relative standard deviation of a measurement.
        failures: share of supported pairs that fail with ``runtime_error``.
    """
    target = Target.parse(target) if isinstance(target, str) else target
    shapes, pool = problems(target, n_problems, seed), kernels(target, n_kernels)
    first = _run(target, shapes, pool, "synthetic-1", "2025-01-01T00:00:00Z", (seed, 1, noise, failures))
    if not repeats:
        return first
    second = _run(target, shapes[:repeats], pool, "synthetic-2", "2025-01-02T00:00:00Z", (seed, 2, noise, failures))
    return pd.concat([first, second], ignore_index=True)


def problems(target: Target, count: int, seed: int = 0) -> list[Problem]:
    """`count` distinct problems, the same for equal arguments; a longer list begins with the shorter one."""
    rng = np.random.default_rng([seed, 0])
    found: dict[tuple[int, ...], Problem] = {}
    while len(found) < count:
        problem = _gemm(rng) if target.op == "gemm" else _conv(rng)
        found.setdefault(problem.group_key, problem)
    return list(found.values())


_COMMON = {"grouped_conv": ("taps", "flat", "point", "depth"), "gemm": pipelines_of("gemm")}


@cache
def kernels(target: Target, count: int) -> tuple[Kernel, ...]:
    """`count` kernels spread over the shipped pool, its default first; made up where none is shipped.

    Walks that few of the problems here can use are left out: tables of some kernels would hold hardly a row of them.
    """
    try:
        pool: Sequence[Kernel] = [k for k in load_pool(target).kernels if k.pipeline in _COMMON[target.op]]
    except KernelError:
        arch = load_arch(target.arch)
        made = [
            Kernel(m, n, k, pipeline, warps, 3)
            for pipeline in ("taps", "flat")
            for k in (32, 64)
            for m in (64, 128, 32, 256)
            for n in (64, 128, 32)
            for warps in (4, 8)
        ]
        pool = [k for k in made if illegal(k, target, arch) is None]
    if count > len(pool):
        raise ValueError(f"at most {len(pool)} kernels for {target.name}, got {count}")
    return tuple(pool[i] for i in np.linspace(0, len(pool) - 1, count).round().astype(int))


def _run(
    target: Target,
    shapes: Sequence[Problem],
    pool: Sequence[Kernel],
    run_id: str,
    measured_at: str,
    randomness: tuple[int, int, float, float],
) -> pd.DataFrame:
    seed, stream, noise, failures = randomness
    rng, arch = np.random.default_rng([seed, stream]), load_arch(target.arch)
    quirks = {k: 1 + 0.04 * _unit(k.config) for k in pool}
    rows = []
    for problem in shapes:
        for kernel in pool:
            reason = None if target.op == "gemm" else unsupported(kernel, problem, target.variant, target.dtype)
            jitter, fails = 1 + noise * rng.standard_normal(), rng.random() < failures
            row = {
                **{n: getattr(target, n) for n in ("op", "variant", "dtype", "arch")},
                **problem.to_dict(),
                "kernel_name": kernel.name(target.op, target.variant, target.dtype),
                **kernel.to_dict(),
                "run_id": run_id,
                "origin": "synthetic",
                "hw_device": arch.device,
                "libraries": "synthetic",
                "measured_at": measured_at,
                "regime": "cold_l2+graph",
            }
            if reason is not None:
                row |= {"status": "unsupported", "error": reason, "is_valid": False}
            elif fails:
                row |= {"status": "runtime_error", "error": "made up", "is_valid": False}
            else:
                row |= _timing(latency_ms(problem, kernel, target, arch) * quirks[kernel] * jitter, problem, target)
            rows.append(row)
    columns = measurement_columns(target.op)
    return pd.DataFrame(rows, columns=[c.name for c in columns]).astype(
        {c.name: "int64" if c.kind == "int" and not c.nullable else _DTYPES[c.kind] for c in columns}
    )


def latency_ms(problem: Problem, kernel: Kernel, target: Target, arch: HardwareProfile) -> float:
    """Return the analytic latency: the longer of waves x steps along K and memory traffic, plus the launch."""
    gemm = problem.implicit_gemm(target.variant)
    tiles = math.ceil(gemm.m / kernel.tile_m) * math.ceil(gemm.n / kernel.tile_n) * gemm.batch * kernel.split_k
    if kernel.pipeline == "taps" and isinstance(problem, GroupedConvProblem):
        taps = problem.Z * problem.Y * problem.X
        steps = taps * math.ceil(gemm.k / taps / kernel.tile_k)
    else:
        steps = math.ceil(gemm.k / kernel.tile_k)
    area = kernel.tile_m * kernel.tile_n
    rate = 0.9 * area / (area + 3000) * (0.78 if kernel.pipeline == "flat" else 1.0)  # share of a unit's peak
    rate *= 1 - 0.15 / kernel.num_stages - 0.08 * abs(math.log2(area / kernel.num_warps / 2048))
    if kernel.pipeline == "depth":
        rate, steps = 0.02, max(gemm.k, 1)
    resident = max(1, min(4, 32768 // area))
    waves = math.ceil(tiles / (arch.compute_units * resident)) * resident
    unit_flops_ms = arch.peak(target.dtype) * 1e9 / arch.compute_units
    compute = waves * math.ceil(steps / kernel.split_k) * 2 * area * kernel.tile_k / (unit_flops_ms * max(rate, 0.02))
    traffic = problem.min_bytes(target.dtype) + (kernel.split_k - 1) * 8 * gemm.m * gemm.n * gemm.batch
    launches = 1 if kernel.split_k == 1 else 2
    return float(max(compute, traffic / (0.8 * arch.dram_gb_s * 1e6)) + _LAUNCH_MS * launches)


def _timing(latency: float, problem: Problem, target: Target) -> dict[str, Any]:
    return {
        "latency_ms": latency,
        "tflops": problem.flops / latency / 1e9,
        "bandwidth_gb_s": problem.min_bytes(target.dtype) / latency / 1e6,
        "status": "ok",
        "is_valid": True,
        "unrolled": 4,
        "repeats": 12,
        "latency_min_ms": latency * 0.995,
        "latency_p20_ms": latency * 0.998,
        "latency_p80_ms": latency * 1.003,
        "sm_clock_mhz": 1980,
    }


def _conv(rng: np.random.Generator) -> GroupedConvProblem:
    def pick(*values: int) -> int:
        return int(rng.choice(values))

    size, filt, stride = pick(7, 14, 28, 56, 112), pick(1, 1, 3, 3, 5), pick(1, 1, 1, 2)
    style = rng.random()
    channels, out = pick(16, 32, 64, 96, 128, 256, 512), pick(16, 32, 64, 128, 192, 256, 512)
    groups = 1
    if style < 0.2:
        groups = pick(2, 4, 8, 16)
        channels, out = channels - channels % groups, out - out % groups
    elif style < 0.3:
        groups = out = channels
    return GroupedConvProblem(
        N=pick(1, 2, 4, 8, 16, 32), C=channels, K=out, G=groups, Hi=size, Wi=size, Y=filt, X=filt,
        stride_h=stride, stride_w=stride, pad_h=filt // 2, pad_w=filt // 2,
    )  # fmt: skip


def _gemm(rng: np.random.Generator) -> GemmProblem:
    m, n, k = (int(2 ** rng.uniform(*span)) // 8 * 8 for span in ((3, 13), (6, 13), (6, 13)))
    return GemmProblem(M=m, N=n, K=k, layout=str(rng.choice(["rcr", "rrr"])))


def _unit(text: str) -> float:
    """Return a number in [0, 1) that belongs to `text`: a kernel's own quirk, the same in every run."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") / 2**32


def with_few_kernels(frame: pd.DataFrame, share: float) -> tuple[pd.DataFrame, set[tuple[int, ...]]]:
    """Convolutions with three kernels only for about a share of the problems, and the group keys of those."""
    keys = group_keys("grouped_conv", frame)
    thin = holdout_mask("grouped_conv", keys + 1, share)  # another draw than the holdout's
    few = frame["kernel_name"].isin(frame["kernel_name"].unique()[:3])
    return frame[~thin | few], set(map(tuple, keys[thin].tolist()))


__all__ = ["CONV", "kernels", "latency_ms", "measurements", "problems", "with_few_kernels"]
