"""An op of a user, for tests: its definition, and recorded measurements of GEMM as a user's table would have them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd

from committed import data_file
from tilewise.ops import OPS, OpDefinition, register

DEFINITION = OpDefinition(
    name="my_matmul",
    problem=(("M", "int"), ("N", "int"), ("K", "int"), ("layout", ("rcr", "rrr")), ("causal", "bool")),
    config=(("BLOCK_M", "int"), ("BLOCK_N", "int"), ("BLOCK_K", "int"), ("pipe", "str"), ("even_k", "bool")),
    flops="2*M*N*K",
    bytes="(M*K + K*N + M*N)*2",
    supports="BLOCK_K <= 2*K and (pipe != 'tma' or layout == 'rcr')",
    features=(("area", "BLOCK_M*BLOCK_N"), ("rest", "K % BLOCK_K")),
)
TABLE = "gemm_universal_bf16_sm90/h200-3.parquet"
NAMES = {
    "tile_m": "BLOCK_M", "tile_n": "BLOCK_N", "tile_k": "BLOCK_K", "group_m": "GROUP_M", "split_k": "SPLIT_K",
    "num_warps": "num_warps", "num_stages": "num_stages",
}  # fmt: skip


@contextmanager
def unknown(name: str) -> Iterator[None]:
    """Make an op unknown within a block, as other tests of the process may have registered one of this name."""
    other = OPS.pop(name, None)
    try:
        yield
    finally:
        OPS.pop(name, None)
        if other is not None:
            OPS[name] = other


@contextmanager
def registered(definition: OpDefinition = DEFINITION) -> Iterator[OpDefinition]:
    """Register an op within a block."""
    with unknown(definition.name):
        register(definition)
        yield definition


def recorded_table(problems: int, kernels: int) -> pd.DataFrame:
    """Return recorded times of plain GEMM kernels in layout rcr: M, N, K, the tile columns and ``time_us``."""
    rows = pd.read_parquet(data_file(TABLE))
    rows = rows[(rows["layout"] == "rcr") & (rows["pipeline"] == "plain") & rows["is_valid"]]
    draw = np.random.default_rng(0)
    kept = draw.permutation(sorted(rows["kernel_name"].unique()))[:kernels]
    keys = rows[["M", "N", "K"]].drop_duplicates().sample(problems, random_state=0)
    rows = rows[rows["kernel_name"].isin(kept)].merge(keys)
    return rows[["M", "N", "K", *NAMES]].rename(columns=NAMES).assign(time_us=rows["latency_ms"] * 1e3)
