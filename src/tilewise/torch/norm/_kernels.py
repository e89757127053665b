"""Batch normalisation in training, with an addition and an activation after it: two passes forward, two backward.

A tensor is a matrix of pixels x channels, as channels-last storage is. The first pass of each direction sums shares of
the pixels, channel by channel; the second adds the shares up in a fixed order, so that results do not depend on timing,
and writes. Sums are fp32. Values are summed less the first pixel's, as a variance is far smaller than the square of a
mean that is far from zero.
"""

# Triton reads argument names as they stand here, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton.programs import activated


@triton.jit
def _tile(at, end, C, col, BLOCK_P: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr):
    """Return the offsets of a tile of pixels x channels, and which of them are in the share."""
    row = at + tl.arange(0, BLOCK_P)
    width = C // VECTOR * VECTOR  # the compiler does not see otherwise what divides C
    first = (row.to(tl.int64) if WIDE else row) * width
    return first[:, None] + col[None, :], (row < end)[:, None] & (col < width)[None, :]


@triton.jit
def _each(values, col, C):
    """Return a channel's value for each column, in fp32."""
    return tl.load(values + col, mask=col < C, other=0.0).to(tl.float32)


@triton.jit
def _share(P, pixels):
    """Return the first pixel of this program's share, and the end of the share."""
    begin = tl.program_id(0) * pixels
    return begin, tl.minimum(begin + pixels, P)


@triton.jit
def _sums(partial, col, C, shares, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, AT_ONCE: tl.constexpr = 16):
    """Return both sums of each channel over all shares."""
    width = C // VECTOR * VECTOR
    first = tl.zeros((AT_ONCE, BLOCK_C), tl.float32)
    second = tl.zeros((AT_ONCE, BLOCK_C), tl.float32)
    for at in range(0, shares, AT_ONCE):
        share = at + tl.arange(0, AT_ONCE)
        offset = share[:, None] * width + col[None, :]
        mask = (share < shares)[:, None] & (col < width)[None, :]
        first += tl.load(partial + offset, mask=mask, other=0.0)
        second += tl.load(partial + shares * width + offset, mask=mask, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def _store_sums(partial, first, second, col, C):
    """Write the sums of this program's share."""
    offset = tl.program_id(0) * C + col
    tl.store(partial + offset, tl.sum(first, axis=0), mask=col < C)
    tl.store(partial + tl.num_programs(0) * C + offset, tl.sum(second, axis=0), mask=col < C)


@triton.jit
def _slope(z, ACTIVATION: tl.constexpr):
    """Return the derivative of the activation, at borders as PyTorch has it."""
    if ACTIVATION == "relu":
        slope = tl.where(z > 0.0, 1.0, 0.0)
    elif ACTIVATION == "silu":
        sigmoid = tl.sigmoid(z)
        slope = sigmoid * (1.0 + z * (1.0 - sigmoid))
    else:  # hardswish
        slope = tl.where(z < -3.0, 0.0, tl.where(z <= 3.0, z / 3.0 + 0.5, 1.0))
    return slope


@triton.jit
def moments(
    x, partial, P, C, pixels,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Sum the pixels of a share and their squares, both less the first pixel of all."""
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    shift = _each(x, col, C)
    first = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    begin, end = _share(P, pixels)
    for at in range(begin, end, BLOCK_P):
        offset, mask = _tile(at, end, C, col, BLOCK_P, VECTOR, WIDE)
        value = tl.where(mask, tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) - shift[None, :], 0.0)
        first += value
        second += value * value
    _store_sums(partial, first, second, col, C)


@triton.jit
def normalise(
    x, residual, weight, bias, y, mean_out, rstd_out, running_mean, running_var, tracked, partial,
    P, C, pixels, momentum, eps,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Write the result of a share; programs of the first one write the statistics, and update the running ones."""
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = col < C
    first, second = _sums(partial, col, C, tl.num_programs(0), BLOCK_C, VECTOR)
    beyond = first / P
    mean = _each(x, col, C) + beyond
    variance = tl.maximum(second / P - beyond * beyond, 0.0, propagate_nan=tl.PropagateNan.ALL)
    rstd = 1.0 / tl.sqrt(variance + eps)
    w, b = _each(weight, col, C), _each(bias, col, C)
    if tl.program_id(0) == 0:
        tl.store(mean_out + col, mean, mask=known)
        tl.store(rstd_out + col, rstd, mask=known)
        old_mean, old_var = _each(running_mean, col, C), _each(running_var, col, C)
        unbiased = variance * P / (P - 1)
        tl.store(running_mean + col, old_mean + momentum * (mean - old_mean), mask=known)
        tl.store(running_var + col, old_var + momentum * (unbiased - old_var), mask=known)
        if tl.program_id(1) == 0:
            tl.store(tracked, tl.load(tracked) + 1)
    begin, end = _share(P, pixels)
    for at in range(begin, end, BLOCK_P):
        offset, mask = _tile(at, end, C, col, BLOCK_P, VECTOR, WIDE)
        value = (tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        value = value * w[None, :] + b[None, :]
        if residual is not None:
            value += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
        tl.store(y + offset, activated(value, ACTIVATION), mask=mask)


@triton.jit
def _gradient(dy, x, y, mean, rstd, w, b, offset, mask, ACTIVATION: tl.constexpr):
    """Return a tile of the gradient before the activation, and of the normalised values."""
    gradient = tl.load(dy + offset, mask=mask, other=0.0).to(tl.float32)
    normal = (tl.load(x + offset, mask=mask, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    if ACTIVATION != "":
        if y is None:
            before = normal * w[None, :] + b[None, :]
        else:  # of ReLU, whose result tells the same
            before = tl.load(y + offset, mask=mask, other=0.0).to(tl.float32)
        gradient *= _slope(before, ACTIVATION)
    return gradient, normal


@triton.jit
def gradient_sums(
    dy, x, y, weight, bias, mean_in, rstd_in, partial, P, C, pixels,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Sum the gradients of a share before the activation, and their products with the normalised values."""
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, rstd, w, b = _each(mean_in, col, C), _each(rstd_in, col, C), _each(weight, col, C), _each(bias, col, C)
    first = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    second = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    begin, end = _share(P, pixels)
    for at in range(begin, end, BLOCK_P):
        offset, mask = _tile(at, end, C, col, BLOCK_P, VECTOR, WIDE)
        gradient, normal = _gradient(dy, x, y, mean, rstd, w, b, offset, mask, ACTIVATION)
        first += gradient  # 0 beyond the share, as dy is
        second += gradient * normal
    _store_sums(partial, first, second, col, C)


@triton.jit
def gradients(
    dy, x, y, weight, bias, mean_in, rstd_in, dx, dresidual, dweight, dbias, partial, P, C, pixels,
    BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr, VECTOR: tl.constexpr, WIDE: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a share's pixels; programs of the first one write those of weight and bias."""
    col = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = col < C
    mean, rstd, w, b = _each(mean_in, col, C), _each(rstd_in, col, C), _each(weight, col, C), _each(bias, col, C)
    first, second = _sums(partial, col, C, tl.num_programs(0), BLOCK_C, VECTOR)
    if tl.program_id(0) == 0:
        tl.store(dbias + col, first, mask=known)
        tl.store(dweight + col, second, mask=known)
    scale, level, tilt = w * rstd, first / P, second / P
    begin, end = _share(P, pixels)
    for at in range(begin, end, BLOCK_P):
        offset, mask = _tile(at, end, C, col, BLOCK_P, VECTOR, WIDE)
        gradient, normal = _gradient(dy, x, y, mean, rstd, w, b, offset, mask, ACTIVATION)
        if dresidual is not None:
            tl.store(dresidual + offset, gradient, mask=mask)
        tl.store(dx + offset, scale[None, :] * (gradient - level[None, :] - normal * tilt[None, :]), mask=mask)
