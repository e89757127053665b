"""The epilogue of a result in Triton: in the store of its kernel, in the sum of its shares, or in a pass of its own.

A function that fuses it has the arguments ``bias``, ``residual`` and ``ACTIVATION``, and calls :func:`ended` (for
images :func:`ended_pixels`) once before its store. An absent part is the constant None, or "", and leaves no trace in
the binary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import Epilogue, EpilogueKind
from tilewise.kernels.triton.programs._program import ABSENT, RESULT_TYPES, VECTOR, Launch, Program, interpreted

if TYPE_CHECKING:
    from torch import Tensor

_ARGUMENTS = ("bias", "residual")
_PASS_BLOCK = 2048  # results that a program of the pass takes


@triton.jit
def ended(acc, offset, mask, channel, known, bias, residual, ACTIVATION: tl.constexpr):
    """Return ``activation(acc + bias + residual)``.

    `acc` are results in fp32, stored at `offset` where `mask` holds. `channel` is their index into the bias and `known`
    where that is one; both may have fewer elements and broadcast.
    """
    if bias is not None:
        acc += tl.load(bias + channel, mask=known, other=0.0).to(tl.float32)
    if residual is not None:
        acc += tl.load(residual + offset, mask=mask, other=0.0).to(tl.float32)
    return activated(acc, ACTIVATION)


@triton.jit
def ended_pixels(acc, pixel, col, inside, C, Cg, g, bias, residual, ACTIVATION: tl.constexpr):
    """Return :func:`ended` for a tile of `pixel` x channel `col` of group `g`; see ``store_pixels``."""
    known = (col < Cg)[None, :]
    channel = (g * Cg + col)[None, :]
    return ended(
        acc, pixel[:, None] * C + channel, inside[:, None] & known, channel, known, bias, residual, ACTIVATION
    )  # fmt: skip


@triton.jit
def activated(x, ACTIVATION: tl.constexpr):
    """Return PyTorch's activation of fp32 values.

    The kernel's units of matrices stand still meanwhile, so the instructions are counted: those of the CUDA library
    took up to 2.7 times as long as the product before them (H200, 50176 x 384 x 96, bf16, GELU).
    """
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "silu":
        x = x * _reciprocal(1.0 + _exp2(-1.4426950408889634 * x))  # exp(x) = 2^(x log2(e))
    elif ACTIVATION == "gelu":
        x = _gelu(x)
    elif ACTIVATION == "gelu_tanh":
        # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3)
        x = x * _reciprocal(1.0 + _exp2(x * (-2.302208198 - 0.1029432397 * x * x)))
    elif ACTIVATION == "hardswish":
        x = x * tl.minimum(tl.maximum(x * 0.16666666666666666 + 0.5, 0.0), 1.0)
    return x


@triton.jit
def _gelu(x):
    """Return the exact GELU, ``x (1 + erf(x / sqrt(2))) / 2``, with a relative error of 2e-4 for x > -5.6.

    That is less than half the last bit of fp16. Results below -5.6, of at most 6e-8, are near 0. The polynomial is the
    best of its degree for ``erfc(z) exp(z^2) / 2`` with ``z = |x| / sqrt(2)``, in relative error, for |x| up to 5.6:
    ``tests/kernels/test_epilogue.py`` finds the coefficients again.
    """
    size = tl.minimum(tl.abs(x), 13.0)  # 13 for infinity, which times 0 is no number
    p = -7.75720983e-07 * size + 2.38696198e-05
    p = p * size - 0.00032208883
    p = p * size + 0.00252319014
    p = p * size - 0.0128671109
    p = p * size + 0.0457576074
    p = p * size - 0.120045742
    p = p * size + 0.244524969
    p = p * size - 0.397977996
    p = p * size + 0.499969505
    tail = size * _exp2(-0.7213475204444817 * size * size)  # exp(-z^2)
    return tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL) - p * tail


_HAS_UNITS = tl.constexpr(not interpreted())  # the hardware's approximations, without steps for denormal numbers


@triton.jit
def _exp2(x):
    """Return 2^x with a relative error of 2e-7; 0 below 2^-126."""
    if _HAS_UNITS:
        return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return tl.exp2(x)


@triton.jit
def _reciprocal(x):
    """Return 1 / x with a relative error of 1e-7; 0 above 2^126."""
    if _HAS_UNITS:
        return tl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return 1.0 / x


@triton.jit
def end_results(y, bias, residual, count, channels, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr):
    """Replace `count` stored results by their epilogue: the pass after a kernel that does not fuse it."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    acc = tl.load(y + at, mask=mask, other=0.0).to(tl.float32)
    acc = ended(acc, at, mask, at % channels, mask, bias, residual, ACTIVATION)
    tl.store(y + at, acc.to(y.dtype.element_ty), mask=mask)


def epilogue_pointers(kind: EpilogueKind, dtype: str) -> tuple[tuple[str, str], ...]:
    """Return the pointer arguments of a function that fuses, with their types, for operands of a dtype."""
    element = RESULT_TYPES[dtype]
    present = (kind.has_bias, kind.has_residual)
    return tuple((name, element if there else ABSENT) for name, there in zip(_ARGUMENTS, present, strict=True))


def epilogue_tensors(program: Program, epilogue: Epilogue) -> tuple[Tensor | None, ...]:
    """Return the tensors of the epilogue's arguments, as far as a program has such arguments and reads them."""
    types = {name: element for name, element in program.pointers if name in _ARGUMENTS}
    return tuple(None if element == ABSENT else getattr(epilogue, name) for name, element in types.items())


def pass_program(kind: EpilogueKind, dtype: str, channels: int) -> Program:
    """Return the program of :func:`end_results` on results of operands of a dtype."""
    return Program(
        end_results,
        (("y", RESULT_TYPES[dtype]), *epilogue_pointers(kind, dtype)),
        ("count", "channels"),
        (("BLOCK", _PASS_BLOCK), ("ACTIVATION", kind.activation)),
        frozenset({("count", VECTOR), ("channels", VECTOR)} if channels % VECTOR == 0 else ()),
        4,
        1,
    )


def pass_launch(epilogue: Epilogue, dtype: str, y: Tensor, channels: int) -> Launch:
    """Return the launch of :func:`pass_program` on `y`, whose last axis are the `channels`."""
    program, count = pass_program(epilogue.kind, dtype, channels), y.numel()
    tensors = (y, *epilogue_tensors(program, epilogue))
    return Launch(program, (triton.cdiv(count, _PASS_BLOCK), 1, 1), tensors, (count, channels))
