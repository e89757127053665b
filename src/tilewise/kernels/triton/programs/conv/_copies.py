"""The copies of operands with padded channels that a launch makes first; see ``tilewise.kernels.triton._copies``."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels.triton._copies import copied_elements, operand_rows
from tilewise.kernels.triton.programs._program import TRITON_TYPES, VECTOR, Launch, Program
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 256  # vectors that a program copies


@triton.jit
def _pad_rows(source, padded, block, rows, channels, BLOCK: tl.constexpr, VECTOR: tl.constexpr):
    """Copy a block of vectors of padded channels."""
    vectors = tl.cdiv(channels, VECTOR)  # of a row
    at = block * BLOCK + tl.arange(0, BLOCK)
    inside, lane = at < rows * vectors, tl.arange(0, VECTOR)[None, :]
    c = (at % vectors * VECTOR)[:, None] + lane
    mask = inside[:, None] & (c < channels)
    values = tl.load(source + (at // vectors * channels)[:, None] + c, mask=mask, other=0.0)
    tl.store(padded + (at * VECTOR)[:, None] + lane, values, mask=inside[:, None])


@triton.jit
def pad_channels(
    first, second, padded,
    first_rows, first_channels, second_rows, second_channels, behind,
    BLOCK: tl.constexpr, VECTOR: tl.constexpr,
):  # fmt: skip
    """Copy two matrices of these rows to `padded`, the first to `behind`, the second after it; zeros pad channels."""
    vectors = first_rows * tl.cdiv(first_channels, VECTOR)
    blocks, block = tl.cdiv(vectors, BLOCK), tl.program_id(0)
    start = padded + behind.to(tl.int64)
    if block < blocks:
        _pad_rows(first, start, block, first_rows, first_channels, BLOCK, VECTOR)
    else:
        start += vectors.to(tl.int64) * VECTOR
        _pad_rows(second, start, block - blocks, second_rows, second_channels, BLOCK, VECTOR)


def stored_divisor(channels: int) -> int:
    """Return the divisor of a result's channels that its stores make use of: a descriptor's, or a pair's."""
    return VECTOR if channels % VECTOR == 0 else gcd(channels, 2)


def copy_programs(problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """Return the program that copies operands; none where descriptors load both as they are."""
    if not any(copied_elements(problem, variant)):
        return ()
    (_, first), (_, second) = operand_rows(problem, variant)
    element = TRITON_TYPES[dtype]
    pointers = tuple((name, element) for name in ("first", "second", "padded"))
    sizes = ("first_rows", "first_channels", "second_rows", "second_channels", "behind")
    divisors = {"first_channels": gcd(first, VECTOR), "second_channels": gcd(second, VECTOR)}
    known = frozenset((name, divisor) for name, divisor in divisors.items() if divisor > 1)
    return (Program(pad_channels, pointers, sizes, (("BLOCK", _BLOCK), ("VECTOR", VECTOR)), known, 4, 1),)


def copies_of(
    problem: GroupedConvProblem, variant: str, dtype: str, operands: Sequence[Tensor], workspace: Tensor, shares: int
) -> tuple[list[Tensor], tuple[Launch, ...]]:
    """Return the operands to load, copies in place of those that descriptors cannot load, and the launch that copies.

    Args:
        problem: without groups.
        variant: of the op.
        dtype: of the operands.
        operands: both.
        workspace: fp32, for the shares of split-K and the copies.
        shares: elements of the workspace before the copies.
    """
    programs = copy_programs(problem, variant, dtype)
    if not programs:
        return list(operands), ()
    counts = [int(count) for count in copied_elements(problem, variant)]
    memory = workspace.view(operands[0].dtype)
    at = behind = shares * workspace.element_size() // memory.element_size()
    loaded, sizes = [], []
    for operand, count, (rows, channels) in zip(operands, counts, operand_rows(problem, variant), strict=True):
        loaded.append(memory[at : at + count] if count else operand)
        sizes += [int(rows) if count else 0, int(channels)]
        at += count
    blocks = sum(triton.cdiv(count // VECTOR, _BLOCK) for count in counts)
    return loaded, (Launch(programs[0], (blocks, 1, 1), (*operands, memory), (*sizes, behind)),)
