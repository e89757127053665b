"""A matrix product ``C[M, N] = A[M, K] @ B[K, N]``, tuned by its sizes.

python examples/autotune/matmul.py M N K
"""

from __future__ import annotations

import random
import sys

import torch
import triton
import triton.language as tl

import tilewise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # with TRITON_INTERPRET=1 the kernel runs on a CPU
# (rows, columns and depth of a tile, warps, stages)
TILES = (
    (128, 128, 64, 8, 3), (16, 64, 128, 4, 4), (16, 128, 64, 4, 5), (16, 32, 256, 4, 3), (32, 64, 128, 4, 4),
    (32, 128, 64, 4, 4), (64, 32, 128, 4, 4), (64, 64, 64, 4, 4), (64, 64, 128, 4, 3), (64, 128, 64, 4, 4),
    (64, 256, 32, 8, 4), (64, 256, 64, 8, 3), (128, 32, 64, 4, 4), (128, 64, 64, 4, 4), (128, 64, 128, 4, 3),
    (128, 128, 32, 4, 4), (128, 128, 64, 4, 4), (128, 128, 128, 8, 2), (128, 256, 32, 8, 4), (128, 256, 64, 8, 3),
    (256, 64, 64, 8, 3), (256, 128, 32, 8, 4), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4),
)  # fmt: skip
CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
    for m, n, k, warps, stages in TILES
]


@tilewise.autotune(
    configs=CONFIGS,
    key=["M", "N", "K"],
    name="my_matmul",
    flops="2*M*N*K",
    bytes="2*(M*K + K*N + M*N)",
    programs="cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N)",
)
@triton.jit(do_not_specialize=["M"])
def matmul_kernel(
    a, b, c, M, N, K, a_row, b_row, c_row,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute one tile of C; the tiles of eight rows of tiles share columns of B in the L2 cache."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band = tl.program_id(0) // (8 * tiles_n) * 8
    rows_of_band = min(tiles_m - band, 8)
    within = tl.program_id(0) % (8 * tiles_n)
    rows = (band + within % rows_of_band) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (within // rows_of_band) * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    # Rows and columns beyond the edge read valid memory; their sums are not stored.
    a_at = a + (rows % M).to(tl.int64)[:, None] * a_row + depth[None, :]
    b_at = b + depth.to(tl.int64)[:, None] * b_row + (columns % N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        inside = depth < K - k
        x = tl.load(a_at, mask=inside[None, :], other=0.0)
        y = tl.load(b_at, mask=inside[:, None], other=0.0)
        total = tl.dot(x, y, total)
        a_at += BLOCK_K
        b_at += BLOCK_K * b_row
    c_at = c + rows.to(tl.int64)[:, None] * c_row + columns[None, :]
    tl.store(c_at, total.to(c.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of two row-major matrices."""
    c = a.new_empty(len(a), b.shape[1])
    arguments, grid = _launch(a, b, c)
    matmul_kernel[grid](*arguments)
    return c


def _launch(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor):  # type: ignore[no-untyped-def]
    (M, K), N = a.shape, b.shape[1]

    def grid(meta: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),)

    return (a, b, c, M, N, K, a.stride(0), b.stride(0), c.stride(0)), grid


@matmul_kernel.inputs
def inputs(M: int, N: int, K: int):  # type: ignore[no-untyped-def]
    """Return the arguments of a call with these sizes, for measuring without an application."""
    a, b = (torch.randn(size, device=DEVICE, dtype=torch.float16) for size in ((M, K), (K, N)))
    arguments, grid = _launch(a, b, a.new_empty(M, N))
    return arguments, {"grid": grid}


@matmul_kernel.sampler
def draw_key(random: random.Random) -> dict[str, int]:
    """Return sizes as layers of language models have them: any number of tokens, widths in steps of 64."""
    tokens = int(2 ** random.uniform(1, 13))
    return {"M": tokens, "N": 64 * int(2 ** random.uniform(0, 7.6)), "K": 64 * int(2 ** random.uniform(0, 7.6))}


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product by PyTorch."""
    return a @ b


def main(M: int, N: int, K: int) -> None:
    """Compare one product with PyTorch's, and print the chosen configuration."""
    a, b = (torch.randn(size, device=DEVICE, dtype=torch.float16) for size in ((M, K), (K, N)))
    torch.testing.assert_close(matmul(a, b), reference(a, b), atol=0.05, rtol=0.02)
    print(f"M={M} N={N} K={K}: {matmul_kernel.best_config}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
