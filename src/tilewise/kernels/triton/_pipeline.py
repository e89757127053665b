"""The contract of a pipeline: one way of Triton kernels to move along K, stated in one file of ``pipelines``.

A dispatcher reads these files, so they import only NumPy and the standard library. The Triton functions need triton:
they lie in a module of ``programs``, which a pipeline names and :func:`implementation_of` imports on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from operator import and_, or_
from typing import TYPE_CHECKING, Literal

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.kernels.triton.programs import Launch, Program

CONV_VARIANTS = (("grouped_conv", "forward"), ("grouped_conv", "bwd_data"), ("grouped_conv", "bwd_weight"))
PIXEL_VARIANTS = CONV_VARIANTS[:2]  # whose rows are pixels
FORWARD = CONV_VARIANTS[:1]

PipelineRules = Callable[[KernelLike, ProblemLike, str], Rules]  # (kernel, problem, variant)
KOrder = Literal["tapwise", "flattened", "single"]


@dataclass(frozen=True)
class Implementation:
    """The launches of a pipeline for one (op, variant). See :class:`tilewise.kernels.triton.programs.Family`.

    Attributes:
        programs: (kernel, problem, variant, dtype) -> the programs that the kernel runs, in order. Where the pipeline
            fuses, a fifth argument is the :class:`~tilewise.kernels.EpilogueKind`, by default the empty one.
        launches: the first four arguments, then operands, result and workspace -> one launch per program. Where the
            pipeline fuses, also `epilogue`, an :class:`~tilewise.kernels.Epilogue`.
        alignment: (problem, variant, dtype) -> key; problems of equal key share the pipeline's programs.
    """

    programs: Callable[..., tuple[Program, ...]]
    launches: Callable[..., tuple[Launch, ...]]
    alignment: Callable[[ProblemLike, str, str], Hashable]


def _no_reason(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    return None


def _no_copies(problem: ProblemLike, variant: str) -> Array:
    return 0


def _same_size(kernel: KernelLike, problem: ProblemLike, variant: str, size: Array) -> Array:
    return size


@dataclass(frozen=True)
class Pipeline:
    """One way to move along K.

    In the rules and sizes, `kernel` is one kernel or a namespace of kernel columns, arrays of shape (kernels,). They
    compare ``kernel.pipeline`` with their own name, and leave the rows of other pipelines as they are.

    Attributes:
        name: of the pipeline, as in kernel names.
        number: of its compiled programs in calibrated cost models. Never change it, and never reuse one.
        variants: the (op, variant) pairs that it computes.
        programs: absolute name of the module with its ``IMPLEMENTATIONS``, :class:`Implementation` by (op, variant).
        matrix_units: whether it computes matrix products with matrix instructions. Otherwise it filters one channel
            per column: the groups are columns, `tile_k` is not a depth, and operands are not staged.
        fuses: the (op, variant) pairs whose programs compute an epilogue in their store; others leave it to a pass.
        described: whether operands are loaded through tensor descriptors (TMA).
        persistent: whether a program fills a compute unit. Without split-K, most compute many tiles and store them
            through shared memory.
        k_order: ``tapwise``: each filter tap pads its channels to `tile_k`; ``flattened``: taps and channels are one
            index; ``single``: there is one tap.
        filter_rows: whether a program without matrix units computes all taps of a filter row in bwd_weight.
        repeats_edges: whether rows and columns beyond the last read the last one again, where others mask loads.
        thirds: the variants in which `tile_n` may also be 3/2 of a power of two.
        columns: (kernel, problem) -> columns that tiles cover in bwd_weight. None: those of one tap each.
        illegal: (kernel, target, arch) -> why the kernel cannot run, or None. Checked before shared memory.
        needs: by op, rules on the problem, checked before the op's rules on groups and split-K.
        limits: by op, rules checked after those. Pipelines may share a function; it runs once.
        padded_rows: (kernel, problem, variant, rows) -> rows that tiles cover along M.
        padded_k: (kernel, problem, variant, k) -> length of K that steps cover.
        padded_work: (kernel, problem, variant, work) -> floating-point operations of a launch, padding included.
        copied: (problem, variant) -> 16-bit elements of operands that a launch first copies into its workspace.
        formulas: intermediates of the features that differ from those of other pipelines.
    """

    name: str
    number: int
    variants: tuple[tuple[str, str], ...]
    programs: str
    matrix_units: bool = True
    fuses: tuple[tuple[str, str], ...] = ()
    described: bool = False
    persistent: bool = False
    k_order: KOrder = "single"
    filter_rows: bool = False
    repeats_edges: bool = False
    thirds: tuple[str, ...] = ()
    columns: Callable[[KernelLike, ProblemLike], Array] | None = None
    illegal: Callable[[Kernel, Target, HardwareProfile], str | None] = _no_reason
    needs: Mapping[str, PipelineRules] = field(default_factory=dict)
    limits: Mapping[str, PipelineRules] = field(default_factory=dict)
    padded_rows: Callable[[KernelLike, ProblemLike, str, Array], Array] = _same_size
    padded_k: Callable[[KernelLike, ProblemLike, str, Array], Array] = _same_size
    padded_work: Callable[[KernelLike, ProblemLike, str, Array], Array] = _same_size
    copied: Callable[[ProblemLike, str], Array] = _no_copies
    formulas: Formulas | None = None


def implementation_of(pipeline: Pipeline, op: str, variant: str) -> Implementation:
    """Return the launches of a pipeline; import its programs, and with them triton, on first use.

    Raises:
        KernelError: the pipeline has no programs for the variant.
    """
    found: Mapping[tuple[str, str], Implementation] = import_module(pipeline.programs).IMPLEMENTATIONS
    if (op, variant) not in found:
        raise KernelError(f"{pipeline.programs} has no programs for {op} {variant}; add them to IMPLEMENTATIONS")
    return found[op, variant]


def any_of(kernel: KernelLike, pipelines: Iterable[Pipeline]) -> Array:
    """Return whether the kernel (or each of many) belongs to one of these pipelines."""
    return reduce(or_, (kernel.pipeline == pipeline.name for pipeline in pipelines), False)


def none_of(kernel: KernelLike, pipelines: Iterable[Pipeline]) -> Array:
    """Return whether the kernel (or each of many) belongs to no pipeline of these."""
    return reduce(and_, (kernel.pipeline != pipeline.name for pipeline in pipelines), True)
