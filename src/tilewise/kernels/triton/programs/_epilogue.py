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
from tilewise.kernels.triton.programs._program import ABSENT, RESULT_TYPES, VECTOR, Launch, Program

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
    return _activated(acc, ACTIVATION)


@triton.jit
def ended_pixels(acc, pixel, col, inside, C, Cg, g, bias, residual, ACTIVATION: tl.constexpr):
    """Return :func:`ended` for a tile of `pixel` x channel `col` of group `g`; see ``store_pixels``."""
    known = (col < Cg)[None, :]
    channel = (g * Cg + col)[None, :]
    return ended(
        acc, pixel[:, None] * C + channel, inside[:, None] & known, channel, known, bias, residual, ACTIVATION
    )  # fmt: skip


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """Return PyTorch's activation of fp32 values."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACTIVATION == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))  # sqrt(1 / 2)
    elif (
        ACTIVATION == "gelu_tanh"
    ):  # (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (x + 0.044715 x^3)
        x = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif ACTIVATION == "hardswish":
        x = x * tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    return x


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
        frozenset({"count", "channels"} if channels % VECTOR == 0 else ()),
        4,
        1,
    )


def pass_launch(epilogue: Epilogue, dtype: str, y: Tensor, channels: int) -> Launch:
    """Return the launch of :func:`pass_program` on `y`, whose last axis are the `channels`."""
    program, count = pass_program(epilogue.kind, dtype, channels), y.numel()
    tensors = (y, *epilogue_tensors(program, epilogue))
    return Launch(program, (triton.cdiv(count, _PASS_BLOCK), 1, 1), tensors, (count, channels))
