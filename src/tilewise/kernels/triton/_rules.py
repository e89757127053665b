"""The rules that all pipelines share: which Triton kernels are legal on an arch, and which problems one supports.

Pools, measuring, features, search and dispatch ask here. A rule gives its reason; tables of measurements hold reasons,
so their texts stay as they are. The rules of one pipeline are in its file; see
:mod:`tilewise.kernels.triton.pipelines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._epilogue import EMPTY_KIND, EpilogueKind
from tilewise.kernels._formulas import Array, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import tap_columns
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import (
    BARRIER_BYTES,
    BLOCK_REGISTERS,
    DESCRIPTOR_BYTES,
    FREE_WORK,
    HOPPER_SHARED_BYTES,
    INT32_ELEMENTS,
    MAX_ACCUMULATORS,
    MAX_GRID_YZ,
    MAX_WASTE,
    MAX_WORKSPACE_BYTES,
    MIN_DOT,
    MIN_DOT_BYTES,
    PARTIAL_BYTES,
    RESULT_BYTES,
    RESULT_ELEMENTS,
    STORED_ROWS,
)
from tilewise.kernels.triton._pipeline import Pipeline, PipelineRules, any_of, none_of
from tilewise.kernels.triton._shapes import accumulators_per_thread, class_taps, residue_classes
from tilewise.kernels.triton.pipelines import PIPELINES, pipelines_of
from tilewise.ops import (
    CHANNELS_LAST,
    Problem,
    Target,
    implicit_gemm,
    input_elements,
    operand_bytes,
    output_elements,
    stored_rows,
    weight_elements,
)

TRITON_DTYPES: dict[str, tuple[str, ...]] = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}


def illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    """Return why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    pipeline, cols = PIPELINES.get(kernel.pipeline), kernel.tile_n
    if cols % 3 == 0 and pipeline is not None and target.variant in pipeline.thirds:
        cols = cols // 3
    sizes = (kernel.tile_m, cols, kernel.tile_k, kernel.num_warps)
    if any(s < 1 or s & (s - 1) for s in sizes):
        return "tile sizes and warps must be powers of two"
    if kernel.num_stages < 1 or kernel.group_m < 1 or kernel.split_k < 1:
        return "num_stages, group_m and split_k must be at least 1"
    names = pipelines_of(target.op, target.variant)
    if pipeline is None or pipeline.name not in names:
        return f"pipeline must be one of {', '.join(names)}" if names else f"{target.name} has no pipelines"
    if target.dtype not in TRITON_DTYPES[target.op]:
        return f"there are no {target.dtype} kernels for {target.op}"
    reason = _too_many_registers(kernel, arch) or pipeline.illegal(kernel, target, arch)
    if reason is not None:
        return reason
    if not pipeline.matrix_units:
        split = kernel.split_k > 1 and target.variant != "bwd_weight"
        return f"{kernel.pipeline} takes split_k 1" if split else None
    return _bad_product(kernel, cols, target, arch)


def _too_many_registers(kernel: Kernel, arch: HardwareProfile) -> str | None:
    threads = kernel.num_warps * arch.warp_size
    accumulators = accumulators_per_thread(kernel, arch)
    most = min(MAX_ACCUMULATORS, BLOCK_REGISTERS // threads // 2)
    if accumulators > most:
        return f"{accumulators} accumulators a thread, more than {most}"
    if accumulators < 1:
        return f"{threads} threads for {kernel.tile_m * kernel.tile_n} outputs"
    return None


def _bad_product(kernel: Kernel, cols: int, target: Target, arch: HardwareProfile) -> str | None:
    """Return why matrix units cannot compute the tile, whose columns come in parts of `cols`, or None."""
    least_k = max(MIN_DOT, MIN_DOT_BYTES // operand_bytes(target.dtype))
    if min(kernel.tile_m, cols) < MIN_DOT or kernel.tile_k < least_k:
        return f"tile_m and tile_n must be at least {MIN_DOT}, tile_k at least {least_k}"
    needed = shared_memory_bytes(kernel, target.dtype) + _store_bytes(kernel)
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def shared_memory_bytes(kernel: KernelLike, dtype: str) -> Array:
    """Return the bytes of the operand tiles in flight: one A and one B tile per stage of a matrix product.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    staged = kernel.num_stages * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * operand_bytes(dtype)
    return uses_matrix_units(kernel) * staged


def uses_matrix_units(kernel: KernelLike) -> Array:
    """Return whether the kernel computes a matrix product; `kernel` as for :func:`shared_memory_bytes`."""
    return none_of(kernel, _pipelines(lambda p: not p.matrix_units))


def is_described(kernel: KernelLike) -> Array:
    """Return whether operands are loaded through tensor descriptors; `kernel` as above."""
    return any_of(kernel, _pipelines(lambda p: p.described))


def is_persistent(kernel: KernelLike) -> Array:
    """Return whether one program per compute unit computes many tiles; `kernel` as above."""
    return any_of(kernel, _pipelines(lambda p: p.persistent))


def stores_tiles(kernel: KernelLike) -> Array:
    """Return whether results are stored through a tensor descriptor; `kernel` as above."""
    return is_persistent(kernel) & (kernel.split_k == 1)


def _pipelines(wanted: Callable[[Pipeline], bool]) -> Iterable[Pipeline]:
    return filter(wanted, PIPELINES.values())


def _store_bytes(kernel: Kernel) -> int:
    """Return the shared memory in use beside the operand tiles in flight, as compiled by Triton 3.6.

    These are barriers, and one tile of 16-bit results where the next tile is loaded while that one is stored.
    """
    if not is_described(kernel):
        return 0
    stored: int = stores_tiles(kernel) * kernel.tile_m * kernel.tile_n * RESULT_BYTES
    return BARRIER_BYTES + stored


def leaves(kernel: Kernel, problem: Problem, target: Target, kind: EpilogueKind) -> EpilogueKind:
    """Return the part of an epilogue that a kernel leaves to a pass: all of it where its programs cannot compute it.

    A residual needs shared memory beside the operand tiles in flight where the next tile is loaded meanwhile.
    """
    if (target.op, target.variant) not in PIPELINES[kernel.pipeline].fuses:
        return kind
    if kind.has_residual and stores_tiles(kernel):
        needed = shared_memory_bytes(kernel, target.dtype) + _store_bytes(kernel) + _residual_bytes(kernel)
        return kind if needed > HOPPER_SHARED_BYTES else EMPTY_KIND
    return EMPTY_KIND


def store_factor(kernel: Kernel) -> float:
    """Return how many times as long as in most kernels an epilogue takes in a kernel's store.

    The only program of a compute unit has no other that computes meanwhile: 1.6 to 2.1 times as long, by kind
    (benchmarks/results/epilogue_cost.json). Shares of tiles are summed by a kernel that waits for memory: no longer.
    """
    if kernel.split_k > 1:
        return 0.0
    return 2.0 if PIPELINES[kernel.pipeline].persistent else 1.0


def is_one_launch(kernel: Kernel, problem: Problem, variant: str) -> bool:
    """Return whether one launch computes a result: none copies operands before, or adds shares of tiles after it."""
    return kernel.split_k == 1 and not PIPELINES[kernel.pipeline].copied(problem, variant)


def _residual_bytes(kernel: Kernel) -> int:
    """Return the shared memory by which a tile of a residual changes its layout, at most, as compiled by Triton 3.6."""
    return 2 * kernel.tile_m * kernel.tile_n


def checks(kernel: KernelLike, problem: Problem, variant: str, dtype: str) -> Rules:
    """Yield the rules of the problem's op as (broken, reason).

    Args:
        kernel: a legal kernel, or a namespace of the kernel columns of many; then `broken` is an array.
        problem: the problem, or a namespace of symbols.
        variant: the variant of its op.
        dtype: the type of the operands.
    """
    if problem.op not in OP_RULES:
        yield True, f"no kernels for op {problem.op}"
        return
    yield from OP_RULES[problem.op](kernel, problem, variant, dtype)


def _conv(kernel: KernelLike, problem: ProblemLike, variant: str, dtype: str) -> Rules:
    yield problem.layout != CHANNELS_LAST, "Triton kernels take channels last (NHWGC) only"
    counts = {"forward": output_elements, "bwd_data": input_elements, "bwd_weight": weight_elements}
    for name, count in (("input", input_elements), ("filter", weight_elements), ("output", output_elements)):
        yield count(problem) >= INT32_ELEMENTS, f"{name} has 2^31 elements or more"
    for rules in _distinct(pipeline.needs.get("grouped_conv") for pipeline in PIPELINES.values()):
        yield from rules(kernel, problem, variant)
    gemm, product = implicit_gemm(problem, variant), uses_matrix_units(kernel)
    yield product & (gemm.batch > MAX_GRID_YZ), f"more than {MAX_GRID_YZ} groups"
    classes, taps, m, k = 1, problem.Z * problem.Y * problem.X, gemm.m, gemm.k
    if variant == "bwd_data":
        classes, taps = residue_classes(problem), class_taps(problem)
        m, k = -(-gemm.m // classes), taps * (problem.K // problem.G)
        yield classes * kernel.split_k > MAX_GRID_YZ, f"more than {MAX_GRID_YZ} residue classes x split_k"
    rows = _padded(m, kernel.tile_m)
    leanest = 2.0 * classes * gemm.batch * _padded(m, MIN_DOT) * _padded(gemm.n, MIN_DOT) * _padded(k, MIN_DOT)
    for pipeline in PIPELINES.values():
        rows = pipeline.padded_rows(kernel, problem, variant, rows)
        k = pipeline.padded_k(kernel, problem, variant, k)
    yield from _shares(kernel, -(-k // np.where(product, kernel.tile_k, kernel.tile_m)), counts[variant](problem))
    # The order decides only in which order exported models hold the rules: a kernel has one pipeline.
    limits = sorted(PIPELINES.values(), key=lambda p: p.k_order == "tapwise")
    for rules in _distinct(pipeline.limits.get("grouped_conv") for pipeline in limits):
        yield from rules(kernel, problem, variant)
    flat = any_of(kernel, _pipelines(lambda p: p.k_order == "flattened"))
    if variant == "bwd_weight":  # a tapwise pipeline pads its columns, not K
        cols = np.where(flat, _padded(gemm.n, kernel.tile_n), tapwise_columns(kernel, problem))
        steps_k = _padded(k, kernel.tile_k)
    else:
        cols = _padded(gemm.n, kernel.tile_n)
        steps_k = np.where(flat, _padded(k, kernel.tile_k), taps * _padded(k // taps, kernel.tile_k))
    work = 2.0 * classes * gemm.batch * rows * cols * steps_k
    for pipeline in PIPELINES.values():
        work = pipeline.padded_work(kernel, problem, variant, work)
    yield product & _wasteful(work, leanest), _WASTE


def _distinct(rules: Iterable[PipelineRules | None]) -> list[PipelineRules]:
    """Return the rules of several pipelines without repeats, in order."""
    return list(dict.fromkeys(rule for rule in rules if rule is not None))


def tapwise_columns(kernel: KernelLike, problem: ProblemLike) -> Array:
    """Return the columns that the tiles of a tapwise pipeline cover in bwd_weight."""
    columns = tap_columns(kernel, problem, 1)
    for pipeline in PIPELINES.values():
        if pipeline.columns is not None:
            columns = np.where(kernel.pipeline == pipeline.name, pipeline.columns(kernel, problem), columns)
    return columns


def _gemm(kernel: KernelLike, problem: ProblemLike, variant: str, dtype: str) -> Rules:
    p = problem
    for name, count in (("A", p.M * p.K), ("B", p.K * p.N), ("C", p.M * p.N)):
        yield count >= INT32_ELEMENTS, f"{name} has 2^31 elements or more"
    for rules in _distinct(pipeline.needs.get("gemm") for pipeline in PIPELINES.values()):
        yield from rules(kernel, problem, variant)
    rows, elements = stored_rows(p), DESCRIPTOR_BYTES // operand_bytes(dtype)
    unaligned = (rows["a"] % elements != 0) | (rows["b"] % elements != 0)
    yield is_described(kernel) & unaligned, f"{elements} must divide the rows that descriptors load"
    yield stores_tiles(kernel) & (p.N % RESULT_ELEMENTS != 0), STORED_ROWS
    yield from _shares(kernel, -(-p.K // kernel.tile_k), p.M * p.N)
    for rules in _distinct(pipeline.limits.get("gemm") for pipeline in PIPELINES.values()):
        yield from rules(kernel, problem, variant)
    leanest = 2.0 * _padded(p.M, MIN_DOT) * _padded(p.N, MIN_DOT) * _padded(p.K, MIN_DOT)
    work = 2.0 * _padded(p.M, kernel.tile_m) * _padded(p.N, kernel.tile_n) * _padded(p.K, kernel.tile_k)
    yield _wasteful(work, leanest), _WASTE


def _shares(kernel: KernelLike, steps: Array, results: Array) -> Rules:
    """Yield the rules of a split of K's steps, whose partial sums lie in a workspace."""
    split = kernel.split_k > 1
    yield split & (kernel.split_k > steps), "split_k leaves programs without work"
    yield split & ((kernel.split_k + 1) * steps >= INT32_ELEMENTS), "split_k x steps along K is 2^31 or more"
    workspace = kernel.split_k * results * PARTIAL_BYTES
    yield split & (workspace > MAX_WORKSPACE_BYTES), "split_k needs more than 2 GiB of workspace"


_WASTE = f"more than {MAX_WASTE} times the leanest tile's work"


def _wasteful(work: Array, leanest: Array) -> Array:
    return (work > FREE_WORK) & (work > MAX_WASTE * leanest)


def _padded(size: Array, tile: Array) -> Array:
    return -(-size // tile) * tile


# The rules on the problems of an op: (kernel, problem, variant, dtype) -> (broken, reason), as of :func:`checks`.
OP_RULES: dict[str, Callable[[KernelLike, Problem, str, str], Rules]] = {"grouped_conv": _conv, "gemm": _gemm}
