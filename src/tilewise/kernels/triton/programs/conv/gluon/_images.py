"""The images of ``relay``: boxes of the pixels that a filter tap meets, also under a filter with strides of two.

Such a filter meets every second pixel. The pixels of odd or even rows and columns are an image each, with a descriptor
of its own, which zeroes what lies outside: forward and bwd_weight load from these, bwd_data stores to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.kernels.triton._boxes import Grid
from tilewise.kernels.triton.programs._program import ABSENT, described
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor

PARTS = ("", "01", "10", "11")  # of even rows and columns, or of all; of odd columns, odd rows, and both


@gluon.jit
def copy_input(
    x, x01, x10, x11, n, d, h, w, c, rd, rh, rw, stride_h, stride_w, loaded, place, STRIDED: gl.constexpr,
):  # fmt: skip
    """Copy the input (rd, rh, rw) pixels beyond a box of output pixels to shared memory, from channel `c` on.

    The box begins at (n, d, h, w).
    """
    if STRIDED:  # of one or two: a shift divides negative sizes as well
        at = [n, d + rd, h + (rh >> (stride_h - 1)), w + (rw >> (stride_w - 1)), c]
        odd_h, odd_w = rh & (stride_h - 1), rw & (stride_w - 1)
        if odd_h == 0:
            if odd_w == 0:
                tma.async_copy_global_to_shared(x, at, loaded, place)
            else:
                tma.async_copy_global_to_shared(x01, at, loaded, place)
        else:
            if odd_w == 0:
                tma.async_copy_global_to_shared(x10, at, loaded, place)
            else:
                tma.async_copy_global_to_shared(x11, at, loaded, place)
    else:
        tma.async_copy_global_to_shared(x, [n, d + rd, h + rh, w + rw, c], loaded, place)


@gluon.jit
def store_box(y, y01, y10, y11, n, d, h, w, c, odd_h, odd_w, box, STRIDED: gl.constexpr):
    """Begin to store a box of results from channel `c` on, to the image of odd or even rows and columns."""
    if STRIDED:
        if odd_h == 0:
            if odd_w == 0:
                tma.async_copy_shared_to_global(y, [n, d, h, w, c], box)
            else:
                tma.async_copy_shared_to_global(y01, [n, d, h, w, c], box)
        else:
            if odd_w == 0:
                tma.async_copy_shared_to_global(y10, [n, d, h, w, c], box)
            else:
                tma.async_copy_shared_to_global(y11, [n, d, h, w, c], box)
    else:
        tma.async_copy_shared_to_global(y, [n, d, h, w, c], box)


def image_types(name: str, element: str, strided: bool) -> dict[str, str]:
    """Return the element types of an argument's :data:`PARTS`, from that of a descriptor."""
    return {name + part: element if strided or not part else ABSENT for part in PARTS}


def described_images(
    x: Tensor, image: Grid, channels: int, p: GroupedConvProblem, block: Sequence[int], *, strided: bool
) -> tuple[TensorDescriptor | None, ...]:
    """Return the descriptors of :data:`PARTS`, which move `block`, of images with these pixels and channels."""
    n, d, h, w = map(int, image)
    if not strided:
        return described(x, (n, d, h, w, channels), block), None, None, None
    strides = [d * h * w, h * w, p.stride_h * w, p.stride_w]  # in pixels
    found = []
    for odd_h in (0, p.stride_h - 1):
        for odd_w in (0, p.stride_w - 1):
            shape = [n, d, -(-(h - odd_h) // p.stride_h), -(-(w - odd_w) // p.stride_w), channels]
            odd = x.reshape(-1)[(odd_h * w + odd_w) * channels :]
            found.append(TensorDescriptor(odd, shape, [*(s * channels for s in strides), 1], list(block)))
    return tuple(found)
