"""Attention whose scores never reach memory, tuned by heads, length, head size and mask.

python examples/autotune/attention.py HEADS LENGTH SIZE CAUSAL
"""

from __future__ import annotations

import random
import sys

import torch
import triton
import triton.language as tl

import tilewise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # with TRITON_INTERPRET=1 the kernel runs on a CPU
LOG2_E = 1.4426950408889634
CONFIGS = [
    triton.Config({"BLOCK_Q": q, "BLOCK_KV": kv}, num_warps=warps, num_stages=stages)
    for q, kv in ((64, 64), (16, 64), (32, 64), (64, 32), (64, 128), (128, 32), (128, 64), (128, 128))
    for warps, stages in ((4, 3), (8, 3), (4, 2))
    if warps * 16 <= q * kv // 32
]


@tilewise.autotune(
    configs=CONFIGS,
    key=["heads", "length", "SIZE", "CAUSAL"],
    name="my_attention",
    flops="4*heads*length*length*SIZE",
    bytes="8*heads*length*SIZE",
    programs="heads * cdiv(length, BLOCK_Q)",
)
@triton.jit(do_not_specialize=["heads", "length"])
def attention_kernel(
    q, k, v, out, heads, length, scale,
    SIZE: tl.constexpr, CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_KV: tl.constexpr,
):  # fmt: skip
    """Compute the outputs of one block of queries: a running softmax over blocks of keys and values."""
    head = tl.program_id(1).to(tl.int64) * length * SIZE
    rows, sizes = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q), tl.arange(0, SIZE)
    valid_rows = (rows < length)[:, None]
    query = tl.load(q + head + rows[:, None] * SIZE + sizes[None, :], mask=valid_rows, other=0.0)
    highest = tl.full((BLOCK_Q,), -1e30, tl.float32)
    total = tl.zeros((BLOCK_Q,), tl.float32)
    result = tl.zeros((BLOCK_Q, SIZE), tl.float32)
    end = length
    if CAUSAL:
        end = min(length, (tl.program_id(0) + 1) * BLOCK_Q)
    for start in range(0, end, BLOCK_KV):
        columns = start + tl.arange(0, BLOCK_KV)
        place = head + columns[:, None] * SIZE + sizes[None, :]
        valid = (columns < length)[:, None]
        key = tl.load(k + place, mask=valid, other=0.0)
        scores = tl.dot(query, tl.trans(key)) * scale
        seen = (columns < length)[None, :]
        if CAUSAL:
            seen = seen & (rows[:, None] >= columns[None, :])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        value = tl.load(v + place, mask=valid, other=0.0)
        result = tl.dot(weights.to(value.dtype), value, result * shrink[:, None])
        highest = higher
    result = result / total[:, None]
    tl.store(out + head + rows[:, None] * SIZE + sizes[None, :], result.to(out.dtype.element_ty), mask=valid_rows)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the attention of contiguous (heads, length, size) tensors."""
    out = torch.empty_like(q)
    arguments, grid = _launch(q, k, v, out, causal)
    attention_kernel[grid](*arguments)
    return out


def _launch(  # type: ignore[no-untyped-def]
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, causal: bool
):
    heads, length, size = q.shape

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(length, meta["BLOCK_Q"]), heads

    return (q, k, v, out, heads, length, LOG2_E * size**-0.5, size, causal), grid


def _operands(heads: int, length: int, size: int) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(heads, length, size, device=DEVICE, dtype=torch.float16) for _ in range(3))


@attention_kernel.inputs
def inputs(heads: int, length: int, SIZE: int, CAUSAL: int):  # type: ignore[no-untyped-def]
    """Return the arguments of a call with these sizes, for measuring without an application."""
    q, k, v = _operands(heads, length, SIZE)
    arguments, grid = _launch(q, k, v, torch.empty_like(q), bool(CAUSAL))
    return arguments, {"grid": grid}


@attention_kernel.sampler
def draw_key(random: random.Random) -> dict[str, int]:
    """Return heads (times batch), any length of a sequence, and the usual head sizes."""
    length = int(2 ** random.uniform(5, 12.5))
    heads = max(1, int(2 ** random.uniform(2, 8.5) * min(1, 2048 / length)))
    return {"heads": heads, "length": length, "SIZE": random.choice((64, 128)), "CAUSAL": random.choice((0, 1))}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Return the attention by PyTorch."""
    named = (tensor.float() for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*named, is_causal=causal).to(q.dtype)


def main(heads: int, length: int, size: int, causal: int) -> None:
    """Compare one attention with PyTorch's, and print the chosen configuration."""
    operands = _operands(heads, length, size)
    result = attention(*operands, bool(causal))
    torch.testing.assert_close(result, reference(*operands, bool(causal)), atol=0.01, rtol=0.02)
    print(f"heads={heads} length={length} SIZE={size} CAUSAL={causal}: {attention_kernel.best_config}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
