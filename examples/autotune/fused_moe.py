"""The product of a mixture of experts: each token times the matrix of its expert, in one launch.

The chosen configurations can be written as vLLM's file of tuned fused_moe kernels:
python examples/autotune/fused_moe.py E N K FOLDER
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import torch
import triton
import triton.language as tl

import tilewise

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # with TRITON_INTERPRET=1 the kernel runs on a CPU
TOP_K = 2  # experts per token
TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)  # those of vLLM's files
# (rows, columns and depth of a tile, rows of tiles in a band, warps, stages)
TILES = (
    (64, 64, 64, 8, 4, 4), (16, 32, 128, 1, 4, 4), (16, 64, 64, 1, 4, 4), (16, 64, 128, 1, 4, 3),
    (16, 128, 64, 1, 4, 4), (16, 128, 128, 1, 4, 3), (16, 256, 64, 1, 8, 3), (32, 64, 64, 1, 4, 4),
    (32, 64, 128, 1, 4, 3), (32, 128, 64, 1, 4, 4), (32, 256, 64, 1, 8, 3), (64, 128, 64, 8, 4, 4),
    (64, 128, 64, 8, 8, 3), (64, 256, 64, 8, 8, 3), (128, 64, 64, 8, 4, 4), (128, 128, 32, 8, 4, 4),
    (128, 128, 64, 8, 4, 3), (128, 128, 64, 8, 8, 3), (128, 128, 64, 8, 8, 4), (128, 256, 32, 8, 8, 4),
    (128, 256, 64, 8, 8, 3), (256, 128, 64, 8, 8, 3),
)  # fmt: skip
CONFIGS = [
    triton.Config(
        {"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": n, "BLOCK_SIZE_K": k, "GROUP_SIZE_M": group},
        num_warps=warps,
        num_stages=stages,
    )
    for m, n, k, group, warps, stages in TILES
]


@tilewise.autotune(
    configs=CONFIGS,
    key=["T", "N", "K", "E"],
    name="my_fused_moe",
    flops="2*T*N*K",
    bytes="2*(T*K + min(T, E)*N*K + T*N)",
    programs="(cdiv(T, BLOCK_SIZE_M) + min(T, E)) * cdiv(N, BLOCK_SIZE_N)",
)
@triton.jit(do_not_specialize=["T"])
def fused_moe_kernel(
    x, weights, out, ends, T, N, K, E,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """Compute one tile: `ends` (E + 1 integers, the first 0) tells the rows of each expert, sorted by expert."""
    tiles_m, tiles_n = tl.cdiv(T, BLOCK_SIZE_M) + min(T, E), tl.cdiv(N, BLOCK_SIZE_N)
    band = tl.program_id(0) // (GROUP_SIZE_M * tiles_n) * GROUP_SIZE_M
    rows_of_band = min(tiles_m - band, GROUP_SIZE_M)
    within = tl.program_id(0) % (GROUP_SIZE_M * tiles_n)
    tile = band + within % rows_of_band
    expert = (
        tl.program_id(0).to(tl.int64) * 0 - 1
    )  # 64 bits, as all matrices together may have more than 2**31 elements
    first, before, start, stop = expert, expert + 1, expert + 1, expert
    for e in range(0, E):  # the expert whose tiles include this one
        end = tl.load(ends + e + 1).to(tl.int64)
        tiles = tl.cdiv(end - start, BLOCK_SIZE_M)
        if (tile >= before) & (tile < before + tiles):
            expert, first, stop = expert * 0 + e, start + (tile - before) * BLOCK_SIZE_M, end
        before += tiles
        start = end
    if expert >= 0:
        rows = first + tl.arange(0, BLOCK_SIZE_M)
        columns = within // rows_of_band * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
        depth = tl.arange(0, BLOCK_SIZE_K)
        valid = (rows < stop)[:, None]
        x_at = x + rows[:, None] * K + depth[None, :]
        w_at = weights + (expert * N + (columns % N)[None, :]) * K + depth[:, None]
        total = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_SIZE_K):
            inside = depth < K - k
            a = tl.load(x_at, mask=valid & inside[None, :], other=0.0)
            b = tl.load(w_at, mask=inside[:, None], other=0.0)
            total = tl.dot(a, b, total)
            x_at += BLOCK_SIZE_K
            w_at += BLOCK_SIZE_K
        out_at = out + rows[:, None] * N + columns[None, :]
        tl.store(out_at, total.to(out.dtype.element_ty), mask=valid & (columns < N)[None, :])


def fused_moe(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return each row of x (T, K) times the matrix of its expert, of weights (E, N, K); see the kernel for `ends`."""
    out = x.new_empty(len(x), weights.shape[1])
    arguments, grid = _launch(x, weights, out, ends)
    fused_moe_kernel[grid](*arguments)
    return out


def _launch(  # type: ignore[no-untyped-def]
    x: torch.Tensor, weights: torch.Tensor, out: torch.Tensor, ends: torch.Tensor
):
    T, (E, N, K) = len(x), weights.shape

    def grid(meta: dict[str, int]) -> tuple[int]:
        return ((triton.cdiv(T, meta["BLOCK_SIZE_M"]) + min(T, E)) * triton.cdiv(N, meta["BLOCK_SIZE_N"]),)

    return (x, weights, out, ends, T, N, K, E), grid


def operands(T: int, N: int, K: int, E: int) -> tuple[torch.Tensor, ...]:
    """Return rows sorted by expert, all matrices, and the ends of the experts' rows; routing is uniform."""
    generator = torch.Generator().manual_seed(T)
    routed = torch.bincount(torch.randint(E, (T,), generator=generator), minlength=E).cumsum(0)
    ends = torch.cat([routed.new_zeros(1), routed]).to(torch.int32).to(DEVICE)
    x = torch.randn(T, K, device=DEVICE, dtype=torch.float16)
    return x, torch.randn(E, N, K, device=DEVICE, dtype=torch.float16), ends


@fused_moe_kernel.inputs
def inputs(T: int, N: int, K: int, E: int):  # type: ignore[no-untyped-def]
    """Return the arguments of a call with these sizes, for measuring without an application."""
    x, weights, ends = operands(T, N, K, E)
    arguments, grid = _launch(x, weights, x.new_empty(T, N), ends)
    return arguments, {"grid": grid}


@fused_moe_kernel.sampler
def draw_key(random: random.Random) -> dict[str, int]:
    """Return routed rows (tokens times experts per token), and widths and experts as models have them."""
    rows, experts = int(2 ** random.uniform(1, 13)), random.choice((8, 16, 32, 64))
    width = 64 * int(2 ** random.uniform(2, 5.5))
    return {"T": rows, "N": width, "K": 64 * int(2 ** random.uniform(2, 5.5)), "E": experts}


def reference(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the same by one product of PyTorch per expert."""
    pieces = zip(ends[:-1].tolist(), ends[1:].tolist(), weights, strict=True)
    return torch.cat([x[start:end] @ matrix.T for start, end, matrix in pieces])


def write_vllm_file(E: int, N: int, K: int, folder: Path) -> Path:
    """Choose a configuration for each number of tokens of vLLM's files, and write such a file.

    Args:
        E: experts.
        N: half of the rows of an expert's first matrix, as vLLM counts them.
        K: width of a token.
        folder: of the file.
    """
    chosen = {}
    for tokens in TOKENS:
        arguments, launch = inputs(tokens * TOP_K, 2 * N, K, E)
        picked = fused_moe_kernel.choose(*arguments, **launch).configuration.arguments
        chosen[str(tokens)] = {name: picked[name] for name in (*CONFIGS[0].kwargs, "num_warps", "num_stages")}
    name = torch.cuda.get_device_name().replace(" ", "_") if DEVICE == "cuda" else "cpu"
    path = folder / f"E={E},N={N},device_name={name}.json"
    path.write_text(json.dumps(chosen, indent=4) + "\n")
    return path


def main(E: int, N: int, K: int, folder: str) -> None:
    """Compare one product with PyTorch's, and write vLLM's file."""
    given = operands(64, 2 * N, K, E)
    torch.testing.assert_close(fused_moe(*given), reference(*given), atol=0.05, rtol=0.02)
    print(write_vllm_file(E, N, K, Path(folder)))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), sys.argv[4])
