"""Residue classes of the input's gradient in ``relay``, with strides of one or two; classes differ in their steps.

Input pixels of equal residue modulo the strides are reached by the same taps; see ``conv/_residues``. The tiles of a
class come together, those of the class with the most taps first. These functions are Triton's: its interpreter runs
them.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton.programs.conv._residues import taps_of


@triton.jit
def class_of(item, tiles, filters):
    """Return an item's tile within its residue class, and the residues of rows and columns; `tiles` of each class."""
    _, _, _, _, stride_h, stride_w, _, pad_h, pad_w, _, _, _ = filters
    order = item // tiles
    residue_h = (order // stride_w + pad_h * (stride_h - 1)) % stride_h  # tap 0 reaches those of order 0
    return item % tiles, residue_h, (order % stride_w + pad_w * (stride_w - 1)) % stride_w


@triton.jit
def _taps_along(residue, size, stride, pad, dilation):
    """Return :func:`taps_of`, and how far the taps lie apart."""
    every = tl.where(dilation % 2 == 0, 1, stride)
    first, count, start, leap = taps_of(residue, size, stride, pad, dilation, every, stride // every, 1)
    return first, count, start, leap, every


@triton.jit
def class_steps(item, tiles, Z, steps_c, filters):
    """Return the steps of an item: taps of its class x `steps_c`."""
    _, _, Y, X, stride_h, stride_w, _, pad_h, pad_w, _, dilation_h, dilation_w = filters
    _, residue_h, residue_w = class_of(item, tiles, filters)
    _, high, _, _, _ = _taps_along(residue_h, Y, stride_h, pad_h, dilation_h)
    _, wide, _, _, _ = _taps_along(residue_w, X, stride_w, pad_w, dilation_w)
    return Z * high * wide * steps_c


@triton.jit
def class_tap(number, residue_h, residue_w, filters):
    """Return a class' tap of this number, and how far it reaches into the output's gradient along each axis."""
    _, _, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w = filters
    y, high, start_h, leap_h, every_h = _taps_along(residue_h, Y, stride_h, pad_h, dilation_h)
    x, wide, start_w, leap_w, every_w = _taps_along(residue_w, X, stride_w, pad_w, dilation_w)
    z, row, column = number // (high * wide), number // wide % high, number % wide
    tap = (z * Y + y + row * every_h) * X + x + column * every_w
    return tap, pad_d - z * dilation_d, start_h - row * leap_h, start_w - column * leap_w
