"""Comparison of a result with its reference, in one pass on the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 4096
_SAMPLE = 1 << 16


@triton.jit(do_not_specialize=["size"])
def _count(y, reference, bad, size, rtol, atol, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < size
    r = tl.load(reference + at, mask=mask, other=0.0).to(tl.float32)
    v = tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
    right = tl.abs(v - r) <= rtol * tl.abs(r) + atol  # false for NaN
    wrong = tl.sum(tl.where(mask & (right == 0), 1, 0), 0)
    tl.atomic_add(bad, wrong, mask=wrong > 0)


def scale_of(reference: Tensor) -> float:
    """Return the root mean square of a reference, from an even sample of its elements."""
    flat = reference.flatten()
    return float(flat[:: max(1, flat.numel() // _SAMPLE)].double().square().mean().sqrt())


def count_mismatches(y: Tensor, reference: Tensor, bad: Tensor, rtol: float, scale: float) -> None:
    """Add to `bad` the number of elements that miss ``|y - reference| <= rtol * (|reference| + scale)``.

    Args:
        y: the result, of any float type; elements that were never written should be NaN.
        reference: fp32 or fp64 (compared as fp32), same shape.
        bad: int32, one element.
        rtol: relative tolerance.
        scale: :func:`scale_of` the reference; admits cancellation in sums near zero.
    """
    size = reference.numel()
    _count[(triton.cdiv(size, _BLOCK),)](y, reference, bad, size, rtol, rtol * scale, BLOCK=_BLOCK)
