"""Grouped convolution in 2D and 3D.

C and K are counted over all groups. A 2D problem is a 3D problem with ``Di = Z = 1``, so one set of formulas serves
both.

`layout` names the storage of the input; filter and output follow it. It stands for 2D and 3D alike:

* ``NHWGC``, channels last: NHWGC x GKYXC -> NHWGK, in 3D NDHWGC x GKZYXC -> NDHWGK. MIOpen's NHWC and NDHWC.
* ``NGCHW``, channels first: NGCHW x GKCYX -> NGKHW, in 3D NGCDHW x GKCZYX -> NGKDHW. MIOpen's NCHW and NCDHW.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from tilewise.errors import ProblemError
from tilewise.ops._dtypes import operand_bytes, result_bytes
from tilewise.ops._problem import (
    INT64_MAX,
    Dimensions,
    GemmDims,
    Problem,
    Size,
    require_int,
    require_int64,
    require_layout,
)

_T = TypeVar("_T")
CONV_VARIANTS = ("forward", "bwd_data", "bwd_weight")
CHANNELS_LAST, CHANNELS_FIRST = "NHWGC", "NGCHW"
CONV_LAYOUTS = (CHANNELS_LAST, CHANNELS_FIRST)
# (input size, filter size, stride, padding, dilation) of each spatial axis
_AXES = (
    ("Di", "Z", "stride_d", "pad_d", "dilation_d"),
    ("Hi", "Y", "stride_h", "pad_h", "dilation_h"),
    ("Wi", "X", "stride_w", "pad_w", "dilation_w"),
)

_COUNTS = ("N", "C", "K", "G", *(name for size, filt, stride, _, dil in _AXES for name in (size, filt, stride, dil)))
_PADDINGS = tuple(pad for _, _, _, pad, _ in _AXES)


class OutputSizes(NamedTuple):
    """Spatial output sizes along depth, height and width."""

    Do: Size
    Ho: Size
    Wo: Size


def output_sizes(p: Dimensions) -> OutputSizes:
    """Return ``(i + 2 pad - dilation (filter - 1) - 1) // stride + 1`` along each axis."""
    return OutputSizes(
        (p.Di + 2 * p.pad_d - p.dilation_d * (p.Z - 1) - 1) // p.stride_d + 1,
        (p.Hi + 2 * p.pad_h - p.dilation_h * (p.Y - 1) - 1) // p.stride_h + 1,
        (p.Wi + 2 * p.pad_w - p.dilation_w * (p.X - 1) - 1) // p.stride_w + 1,
    )


def spatial_dims(p: Dimensions) -> Size:
    """Return 3 where the input or the filter has a depth, else 2."""
    return 2 + ((p.Di > 1) | (p.Z > 1))


def conv_flops(p: Dimensions) -> Size:
    """Return ``2 N Do Ho Wo K Z Y X C / G``, the same for all three variants."""
    out = output_sizes(p)
    return 2 * p.N * out.Do * out.Ho * out.Wo * p.K * p.Z * p.Y * p.X * (p.C // p.G)


def input_elements(p: Dimensions) -> Size:
    """Return the elements of the input (or of its gradient)."""
    return p.N * p.Di * p.Hi * p.Wi * p.C


def weight_elements(p: Dimensions) -> Size:
    """Return the elements of the filter (or of its gradient)."""
    return p.K * p.Z * p.Y * p.X * (p.C // p.G)


def output_elements(p: Dimensions) -> Size:
    """Return the elements of the output (or of its gradient)."""
    out = output_sizes(p)
    return p.N * out.Do * out.Ho * out.Wo * p.K


def conv_min_bytes(p: Dimensions, dtype: str, variant: str = "forward") -> Size:
    """Return the bytes of reading two of the tensors once and writing the third once.

    Args:
        p: the dimensions.
        dtype: of the operands; the tensor that is written has the width of results.
        variant: decides which tensor is written.

    Raises:
        ConfigError: the dtype is unknown.
        ProblemError: the variant is unknown.
    """
    tensors = {"forward": output_elements, "bwd_data": input_elements, "bwd_weight": weight_elements}
    written = _variant(tensors, variant)
    read = sum(count(p) for count in tensors.values() if count is not written)
    return operand_bytes(dtype) * read + result_bytes(dtype) * written(p)


def implicit_gemm(p: Dimensions, variant: str) -> GemmDims:
    """Return the sizes of the matrix product that `variant` computes, one product per group.

    ``2 m n k batch`` equals the FLOPs, except for a strided ``bwd_data``: there only one filter tap in
    ``stride_d * stride_h * stride_w`` contributes to a pixel, so the figure is an upper bound.

    Raises:
        ProblemError: the variant is unknown.
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
    """Sizes (in elements) and layout of one grouped convolution; C and K count over all groups.

    Raises:
        ProblemError: a size is not an integer or too small, C or K does not divide by G, the dilated filter is larger
            than the padded input, the layout is unknown, or the FLOPs or a tensor exceed int64.
    """

    op: ClassVar[str] = "grouped_conv"
    variants: ClassVar[tuple[str, ...]] = CONV_VARIANTS
    layouts: ClassVar[tuple[str, ...]] = CONV_LAYOUTS
    later_columns: ClassVar[tuple[str, ...]] = ("layout",)

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
    layout: str = CHANNELS_LAST

    def __post_init__(self) -> None:
        require_int(self, _COUNTS, at_least=1)
        require_int(self, _PADDINGS, at_least=0)
        require_layout(self.layout, CONV_LAYOUTS)
        for name, value in (("C", self.C), ("K", self.K)):
            if value % self.G:
                raise ProblemError(name, f"must be divisible by G = {self.G}, got {value}")
        fields = self.__dict__
        bound = 2 * self.N * self.C * self.K  # upper bound of the FLOPs: one output per element of the padded input
        for size, filt, _, pad, dilation in _AXES:
            reach = fields[dilation] * (fields[filt] - 1) + 1
            padded = fields[size] + 2 * fields[pad]
            bound *= padded * fields[filt]
            if reach > padded:
                raise ProblemError(
                    filt, f"the filter reaches over {reach} elements, but {size} with its padding has only {padded}"
                )
        if bound > INT64_MAX:  # rare; computing the exact figures takes as long as all checks above
            require_int64("C", "the number of FLOPs", conv_flops(self))
            require_int64("C", "the number of input elements", input_elements(self))

    @property
    def ndim(self) -> int:
        """Number of spatial dimensions: 3 where the input or the filter has a depth, else 2."""
        return spatial_dims(self)  # type: ignore[no-any-return]

    @property
    def output_sizes(self) -> OutputSizes:
        """``(Do, Ho, Wo)``."""
        return output_sizes(self)

    @property
    def group_key(self) -> tuple[int, ...]:
        """All dimensions, in the order of the columns, without the layout: a shape is one group in every layout."""
        return tuple(getattr(self, name) for name in self.column_names() if name != "layout")

    @classmethod
    def layer_keys(cls, group_keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the group keys without the batch N, which is their first dimension."""
        return group_keys[:, 1:]

    @property
    def flops(self) -> int:
        """``2 N Do Ho Wo K Z Y X C / G``."""
        return int(conv_flops(self))

    def min_bytes(self, dtype: str) -> int:
        """Return the bytes of reading input and filter once and writing the output once."""
        return int(conv_min_bytes(self, dtype))

    def implicit_gemm(self, variant: str) -> GemmDims:
        """Return the sizes of the matrix product that `variant` computes, one product per group."""
        return implicit_gemm(self, variant)
