"""The backend contract of the vendor's library as PyTorch calls it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels._contract import Backend, Rules
from tilewise.kernels._epilogue import EMPTY_KIND, EpilogueKind
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels._named import NamedKernel, NamedNumbers, nominal_columns
from tilewise.ops import CHANNELS_LAST, Problem, Target

NAME = "vendor"
DTYPES = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}
SCALED = "cublaslt_scaled"  # the product of fp8 operands
# The calls of each op. `cudnn` is benchmark mode: PyTorch tries cuDNN's algorithms at the first call of a shape. Mode
# without it is no candidate of its own: PyTorch keeps one plan for each shape, that of the mode which came first.
CALLS: dict[str, tuple[str, ...]] = {
    "grouped_conv": ("cudnn",),
    "gemm": ("cublas", "cublaslt", SCALED),
}
LEAST_SQUARE, MOST_SQUARE = 4, 64  # channels of groups with kernels of their own
DEPTHWISE_FILTER = 7  # largest height and width with kernels of their own
# Of gradients with several filters a channel:
FEW_PIXELS = 10_700  # outputs of all images; beyond, many filter's gradients take 2 to 10 times as long for each
THIN, THINNEST = 20, 14  # channels below which the input's gradient takes 20 us or more: of all filters or small ones
SMALL_TAPS = 64  # taps of all filters of a channel that are small ones
LINE = 64  # outputs whose multiples the input's gradient takes by kernels of their own
ALIGNMENT = 8  # channels of a group; cuDNN is slower with others
FP8_ALIGNMENT = 16  # elements; cuBLASLt's rule for the rows of fp8 operands


@dataclass(frozen=True)
class VendorCall(NamedKernel):
    """A call of the vendor's library; its algorithm is one of :data:`CALLS`."""

    backend_name: ClassVar[str] = NAME

    @classmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`.

        Raises:
            KernelError: the text is not ``vendor_`` and one of :data:`CALLS`.
        """
        call = super().from_config(config)
        if not any(call.algorithm in known for known in CALLS.values()):
            known = ", ".join(f"{NAME}_{name}" for names in CALLS.values() for name in names)
            raise KernelError(f"{config!r} is no call of the vendor's library; known are {known}")
        return call


def illegal(kernel: VendorCall, target: Target, arch: HardwareProfile) -> str | None:
    """Return why a call cannot run for `target` on `arch` whatever the problem, or None."""
    if arch.vendor != "nvidia":
        return f"{kernel.algorithm} is a library of NVIDIA, {arch.name} is a GPU of {arch.vendor}"
    if kernel.algorithm not in CALLS.get(target.op, ()):
        return f"{kernel.algorithm} does not compute {target.op}"
    if target.dtype not in DTYPES[target.op]:
        return f"there are no {target.dtype} calls for {target.op}"
    if target.op == "gemm" and (target.dtype == "fp8") != (kernel.algorithm == SCALED):
        return f"{kernel.algorithm} does not multiply {target.dtype}"
    return None


def checks(kernel: KernelLike, problem: ProblemLike, variant: str, dtype: str) -> Rules:
    """Yield the rules that a problem must meet: convolutions have the channels last, fp8 products aligned sizes."""
    if problem.op == "grouped_conv":
        yield problem.layout != CHANNELS_LAST, "the vendor's calls take channels last (NHWGC) only"
    if problem.op == "gemm":
        scaled = np.asarray(kernel.algorithm == SCALED)
        yield scaled & (problem.layout != "rcr"), "cuBLASLt multiplies fp8 in layout rcr only"
        for name in ("N", "K"):
            rest = getattr(problem, name) % FP8_ALIGNMENT
            yield scaled & (rest != 0), f"cuBLASLt multiplies fp8 where {name} divides by {FP8_ALIGNMENT}"


def leaves(call: VendorCall, problem: Problem, target: Target, kind: EpilogueKind) -> EpilogueKind:
    """Return the part of an epilogue that a call of PyTorch's does not compute in the library's kernel.

    cuDNN's fused convolutions end with ReLU and take one group here. A product takes the bias with it, and after a bias
    ReLU or GELU. PyTorch has no such call of a product with a residual.
    """
    if problem.op == "grouped_conv":
        return EMPTY_KIND if kind.activation == "relu" and getattr(problem, "G", 0) == 1 else kind
    if not kind.has_bias:
        return kind
    takes_activation = call.algorithm != SCALED and not kind.has_residual and kind.activation in ("relu", "gelu_tanh")
    return EMPTY_KIND if takes_activation else kind._replace(has_bias=False)


def _program(inputs: FeatureInputs, program: Array) -> Array:
    """Return program numbers that tell the kinds of convolutions apart for which cuDNN has kernels of their own.

    These are volumes, groups with as many outputs as inputs, a power of two, and depthwise filters of one filter a
    channel, up to 7 x 7. Other groups whose channels 8 divides take two to five times as long in the median, dilated
    ones up to 20 times; trees alone did not learn it. (Times of cuDNN 9.19 in the tables of sm90, beside those of the
    fastest kernel of the pool; docs/learnings.md.) Of a kind, whether 8 divides the inputs and the outputs of a group.
    """
    if inputs.op != "grouped_conv":
        return program
    p = inputs.p
    image, as_many, width = p.Di * p.Z == 1, p.C == p.K, p.C // p.G
    usual = image & (p.dilation_d * p.dilation_h * p.dilation_w == 1)
    square = as_many & (width >= LEAST_SQUARE) & (np.gcd(width, MOST_SQUARE) == width)
    small = as_many & (p.Y <= DEPTHWISE_FILTER) & (p.X <= DEPTHWISE_FILTER)
    whole = np.where(image, 0, 1)
    grouped = np.where(usual, np.where(square, 3, 2), 4)
    single = np.where(usual & small, 6, 5)
    if inputs.variant != "forward":
        single = np.where(usual & ~as_many, _several_filters(inputs), single)
    kind = np.where(p.G == 1, whole, np.where(p.C == p.G, single, grouped))
    return 4 * kind + 2 * (width % ALIGNMENT == 0) + (p.K // p.G % ALIGNMENT == 0)


def _several_filters(inputs: FeatureInputs) -> Array:
    """Return the kind of a gradient of several filters a channel, from 7 on: cuDNN's kernels change at these bounds."""
    p = inputs.p
    if inputs.variant == "bwd_weight":
        large = (p.Y > DEPTHWISE_FILTER) | (p.X > DEPTHWISE_FILTER)
        return 7 + 2 * (inputs.gemm.k > FEW_PIXELS) + large
    thin = (p.C < THIN) & ((p.C >= THINNEST) | (p.Y * p.X * (p.K // p.G) > SMALL_TAPS))
    unstrided = np.where(thin, 8, np.where(p.K % LINE == 0, 9, 7))
    return np.where(p.stride_h * p.stride_w > 1, 10, unstrided)


VENDOR = Backend(
    name=NAME,
    label="the vendor's library",
    kernel=VendorCall,
    illegal=illegal,
    checks=checks,
    dtypes=DTYPES,
    pipelines=lambda op: NamedNumbers(NAME),
    common_columns=partial(nominal_columns, NAME),
    formulas=lambda: (Formulas(NAME, program=_program),),
    leaves=leaves,
    timed_in_background=True,
    needs_python=True,
    in_pytorch=True,
    tagged=True,
)
