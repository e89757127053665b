"""Grouped convolution in 2D and 3D, layout NHWGC x GKYXC -> NHWGK (channels last).

C and K are counted over all groups. A 2D problem is a 3D one with ``Di = Z = 1``: one set of formulas serves both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

from tilewise.errors import ProblemError
from tilewise.ops._base import INT64_MAX, GemmDims, Problem, require_int, require_int64
from tilewise.ops.dtypes import operand_bytes, result_bytes

_T = TypeVar("_T")
VARIANTS = ("forward", "bwd_data", "bwd_weight")
# (input size, filter size, stride, padding, dilation) of each spatial axis
_AXES = (
    ("Di", "Z", "stride_d", "pad_d", "dilation_d"),
    ("Hi", "Y", "stride_h", "pad_h", "dilation_h"),
    ("Wi", "X", "stride_w", "pad_w", "dilation_w"),
)

_COUNTS = ("N", "C", "K", "G", *(name for size, filt, stride, _, dil in _AXES for name in (size, filt, stride, dil)))
_PADDINGS = tuple(pad for _, _, _, pad, _ in _AXES)


class OutputSizes(NamedTuple):
    """Spatial output sizes (ints, or int64 arrays)."""

    Do: Any
    Ho: Any
    Wo: Any


def output_sizes(p: Any) -> OutputSizes:
    """``(i + 2 pad - dilation (filter - 1) - 1) // stride + 1`` along each axis."""
    return OutputSizes(
        (p.Di + 2 * p.pad_d - p.dilation_d * (p.Z - 1) - 1) // p.stride_d + 1,
        (p.Hi + 2 * p.pad_h - p.dilation_h * (p.Y - 1) - 1) // p.stride_h + 1,
        (p.Wi + 2 * p.pad_w - p.dilation_w * (p.X - 1) - 1) // p.stride_w + 1,
    )


def spatial_dims(p: Any) -> Any:
    """2, or 3 where depth matters."""
    return 2 + ((p.Di > 1) | (p.Z > 1))


def flops(p: Any) -> Any:
    """``2 N Do Ho Wo K Z Y X C / G``, the same for all three variants."""
    out = output_sizes(p)
    return 2 * p.N * out.Do * out.Ho * out.Wo * p.K * p.Z * p.Y * p.X * (p.C // p.G)


def input_elements(p: Any) -> Any:
    """Elements of the input (or its gradient)."""
    return p.N * p.Di * p.Hi * p.Wi * p.C


def weight_elements(p: Any) -> Any:
    """Elements of the filter (or its gradient)."""
    return p.K * p.Z * p.Y * p.X * (p.C // p.G)


def output_elements(p: Any) -> Any:
    """Elements of the output (or its gradient)."""
    out = output_sizes(p)
    return p.N * out.Do * out.Ho * out.Wo * p.K


def min_bytes(p: Any, dtype: str, variant: str = "forward") -> Any:
    """Each of the three tensors once, in bytes; the one that `variant` writes counts with the result's width."""
    tensors = {"forward": output_elements, "bwd_data": input_elements, "bwd_weight": weight_elements}
    written = _variant(tensors, variant)
    read = sum(count(p) for count in tensors.values() if count is not written)
    return operand_bytes(dtype) * read + result_bytes(dtype) * written(p)


def implicit_gemm(p: Any, variant: str) -> GemmDims:
    """The matrix product that `variant` walks, one per group.

    For a strided ``bwd_data`` only one tap in ``stride_d * stride_h * stride_w`` contributes to a pixel, so
    ``2 m n k batch`` is an upper bound of the FLOPs there; for the other two it is exact.
    """
    out = output_sizes(p)
    taps = p.Z * p.Y * p.X
    pixels_out = p.N * out.Do * out.Ho * out.Wo
    c, k = p.C // p.G, p.K // p.G
    return _variant(
        {
            "forward": GemmDims(pixels_out, k, taps * c, p.G),
            "bwd_data": GemmDims(p.N * p.Di * p.Hi * p.Wi, c, taps * k, p.G),
            "bwd_weight": GemmDims(k, taps * c, pixels_out, p.G),
        },
        variant,
    )


def _variant(table: dict[str, _T], variant: str) -> _T:
    if variant not in table:
        raise ProblemError("variant", f"must be one of {', '.join(table)}, got {variant!r}")
    return table[variant]


@dataclass(frozen=True)
class GroupedConvProblem(Problem):
    """One grouped-convolution shape; sizes in elements, C and K over all groups.

    Raises:
        ProblemError: a size is no integer or too small, C or K does not divide by G, the dilated filter is larger
            than the padded input, or the FLOPs or a tensor exceed int64.
    """

    op: ClassVar[str] = "grouped_conv"
    variants: ClassVar[tuple[str, ...]] = VARIANTS

    N: int
    C: int
    K: int
    G: int
    Hi: int
    Wi: int
    Y: int
    X: int
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    Di: int = 1
    Z: int = 1
    stride_d: int = 1
    pad_d: int = 0
    dilation_d: int = 1

    def __post_init__(self) -> None:
        require_int(self, _COUNTS, at_least=1)
        require_int(self, _PADDINGS, at_least=0)
        for name, value in (("C", self.C), ("K", self.K)):
            if value % self.G:
                raise ProblemError(name, f"must be divisible by G = {self.G}, got {value}")
        fields = self.__dict__
        bound = 2 * self.N * self.C * self.K  # of the FLOPs, with an output for each element of a padded input
        for size, filt, _, pad, dilation in _AXES:
            reach = fields[dilation] * (fields[filt] - 1) + 1
            padded = fields[size] + 2 * fields[pad]
            bound *= padded * fields[filt]
            if reach > padded:
                raise ProblemError(
                    filt, f"the filter reaches over {reach} elements, but {size} with its padding has only {padded}"
                )
        if bound > INT64_MAX:  # seldom, and what the exact numbers are takes as long as all of the above
            require_int64("C", "the number of FLOPs", flops(self))
            require_int64("C", "the number of input elements", input_elements(self))

    @property
    def ndim(self) -> int:
        """Spatial dimensions: 2, or 3 where depth matters."""
        return spatial_dims(self)  # type: ignore[no-any-return]

    @property
    def output_sizes(self) -> OutputSizes:
        """``(Do, Ho, Wo)``."""
        return output_sizes(self)

    @property
    def group_key(self) -> tuple[int, ...]:
        """All dimensions, in the order of the columns."""
        return tuple(getattr(self, name) for name in self.column_names())

    @property
    def flops(self) -> int:
        """``2 N Do Ho Wo K Z Y X C / G``."""
        return int(flops(self))

    def min_bytes(self, dtype: str) -> int:
        """Input, filter and output once each."""
        return int(min_bytes(self, dtype))

    def implicit_gemm(self, variant: str) -> GemmDims:
        """The matrix product that `variant` walks, one per group."""
        return implicit_gemm(self, variant)
