"""A layer norm over the rows of a matrix, tuned by its shape.

python examples/autotune/layer_norm.py ROWS WIDTH
"""

from __future__ import annotations

import random
import sys

import torch
import triton
import triton.language as tl

import tilewise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # with TRITON_INTERPRET=1 the kernel runs on a CPU
EPS = 1e-5
CONFIGS = [
    triton.Config({"BLOCK": block}, num_warps=warps)
    for block in (1024, 256, 512, 2048, 4096, 8192)
    for warps in (4, 2, 8, 16)
    if 64 <= block // warps <= 2048
]


@tilewise.autotune(
    configs=CONFIGS,
    key=["rows", "width"],
    name="my_layer_norm",
    flops="8*rows*width",
    bytes="4*rows*width + 4*width",
    programs="rows",
)
@triton.jit(do_not_specialize=["rows"])
def layer_norm_kernel(x, weight, bias, y, rows, width, eps, BLOCK: tl.constexpr):
    """Normalise one row: mean and variance around the row's first value in one pass, the result in a second one."""
    x += tl.program_id(0).to(tl.int64) * width
    y += tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, BLOCK)
    shift = tl.load(x).to(tl.float32)  # keeps the sum of squares exact where the mean is large
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, width, BLOCK):
        inside = start + at < width
        value = tl.where(inside, tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32) - shift, 0.0)
        total += value
        squares += value * value
    mean = tl.sum(total, 0) / width
    scale = 1 / tl.sqrt(tl.sum(squares, 0) / width - mean * mean + eps)
    for start in range(0, width, BLOCK):
        inside = start + at < width
        value = tl.load(x + start + at, mask=inside, other=0.0).to(tl.float32) - shift
        w = tl.load(weight + start + at, mask=inside, other=0.0).to(tl.float32)
        b = tl.load(bias + start + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(y + start + at, ((value - mean) * scale * w + b).to(y.dtype.element_ty), mask=inside)


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the layer norm of each row of a contiguous matrix."""
    y = torch.empty_like(x)
    layer_norm_kernel[(len(x),)](x, weight, bias, y, *x.shape, EPS)
    return y


def _operands(rows: int, width: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(size, device=DEVICE, dtype=torch.float16) for size in ((rows, width), (width,), (width,)))


@layer_norm_kernel.inputs
def inputs(rows: int, width: int):  # type: ignore[no-untyped-def]
    """Return the arguments of a call with this shape, for measuring without an application."""
    x, weight, bias = _operands(rows, width)
    return (x, weight, bias, torch.empty_like(x), rows, width, EPS), {"grid": (rows,)}


@layer_norm_kernel.sampler
def draw_key(random: random.Random) -> dict[str, int]:
    """Return shapes as transformers have them: any number of tokens, widths in steps of 64."""
    return {"rows": int(2 ** random.uniform(4, 14)), "width": 64 * int(2 ** random.uniform(1, 8))}


def reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return the layer norm by PyTorch."""
    named = (x.float(), x.shape[1:], weight.float(), bias.float(), EPS)
    return torch.nn.functional.layer_norm(*named).to(x.dtype)


def main(rows: int, width: int) -> None:
    """Compare one layer norm with PyTorch's, and print the chosen configuration."""
    operands = _operands(rows, width)
    torch.testing.assert_close(layer_norm(*operands), reference(*operands), atol=0.01, rtol=0.02)
    print(f"rows={rows} width={width}: {layer_norm_kernel.best_config}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
