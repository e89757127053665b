"""A softmax over the rows of a matrix, tuned by its shape.

python examples/autotune/softmax.py ROWS COLUMNS
"""

from __future__ import annotations

import random
import sys

import torch
import triton
import triton.language as tl

import tilewise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # with TRITON_INTERPRET=1 the kernel runs on a CPU
CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block in (1024, 256, 512, 2048, 4096, 8192)
    for warps in (4, 2, 8, 16)
    if 64 <= block // warps <= 2048
]


@tilewise.autotune(
    configs=CONFIGS,
    key=["rows", "columns"],
    name="my_softmax",
    flops="5*rows*columns",
    bytes="4*rows*columns",
    programs="rows",
)
@triton.jit(do_not_specialize=["rows"])
def softmax_kernel(x, y, rows, columns, BLOCK: tl.constexpr):
    """Compute one row: its maximum and sum in one pass over blocks, the result in a second one."""
    x += tl.program_id(0).to(tl.int64) * columns
    y += tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    highest = tl.full((BLOCK,), -1e30, tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        value = tl.load(x + start + at, mask=start + at < columns, other=-1e30).to(tl.float32)
        higher = tl.maximum(highest, value)
        total = total * tl.exp(highest - higher) + tl.exp(value - higher)
        highest = higher
    top = tl.max(highest, 0)
    scale = 1 / tl.sum(total * tl.exp(highest - top), 0)
    for start in range(0, columns, BLOCK):
        inside = start + at < columns
        value = tl.load(x + start + at, mask=inside, other=-1e30).to(tl.float32)
        tl.store(y + start + at, (tl.exp(value - top) * scale).to(y.dtype.element_ty), mask=inside)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row of a contiguous matrix."""
    y = torch.empty_like(x)
    softmax_kernel[(len(x),)](x, y, *x.shape)
    return y


@softmax_kernel.inputs
def inputs(rows: int, columns: int):  # type: ignore[no-untyped-def]
    """Return the arguments of a call with this shape, for measuring without an application."""
    x = torch.randn(rows, columns, device=DEVICE, dtype=torch.float16)
    return (x, torch.empty_like(x), rows, columns), {"grid": (rows,)}


@softmax_kernel.sampler
def draw_key(random: random.Random) -> dict[str, int]:
    """Return shapes as attention scores and vocabularies have them; columns in steps of 16."""
    return {"rows": int(2 ** random.uniform(4, 14)), "columns": 16 * int(2 ** random.uniform(2, 10.5))}


def reference(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax by PyTorch."""
    return torch.softmax(x.float(), 1).to(x.dtype)


def main(rows: int, columns: int) -> None:
    """Compare one softmax with PyTorch's, and print the chosen configuration."""
    x = torch.randn(rows, columns, device=DEVICE, dtype=torch.float16)
    torch.testing.assert_close(softmax(x), reference(x), atol=1e-3, rtol=0.02)
    print(f"rows={rows} columns={columns}: {softmax_kernel.best_config}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
