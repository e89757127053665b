"""Made-up measurements of any number of rows, for :mod:`benchmarks.scale.prepare_rows`.

Distinct matrix products, each with the whole committed pool. Times follow from work, memory traffic, padding to the
tile, a factor per kernel, and noise of 1 %; no row breaks a rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.arch import load_arch
from tilewise.data import PROGRAMS_COLUMN, measurement_columns, parquet_bytes
from tilewise.files import write_bytes
from tilewise.kernels import Pool, load_pool
from tilewise.ops import Target

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

TARGET = Target.parse("gemm_universal_bf16_sm90")
PART_ROWS = 1_000_000  # rows of a file
_SIZES = 500  # M and N take this many values each, so there are 250,000 products
_TYPES = {"str": "str", "int": "Int64", "float": "float64", "bool": "bool"}


def write_table(folder: Path, rows: int) -> int:
    """Write about `rows` measurements as files of one run, and return their number."""
    pool, written = load_pool(TARGET), 0
    for number, part in enumerate(parts(pool, rows)):
        write_bytes(folder / f"{number:04}.parquet", parquet_bytes(part))
        written += len(part)
    return written


def parts(pool: Pool, rows: int) -> Iterator[pd.DataFrame]:
    """Yield tables of whole problems, with about `rows` rows in all."""
    count = max(1, rows // len(pool))
    if count > _SIZES**2:
        raise ValueError(f"there are {_SIZES**2 * len(pool)} made-up rows, got {rows}")
    each = max(1, PART_ROWS // len(pool))
    for start in range(0, count, each):
        yield _part(pool, np.arange(start, min(start + each, count)))


def _part(pool: Pool, number: Ints) -> pd.DataFrame:
    rng = np.random.default_rng([0, int(number[0])])
    sizes = {
        "M": 512 + 16 * (number % _SIZES),
        "N": 512 + 16 * (number // _SIZES),
        "K": 256 + 64 * (number * 7919 % 97),
    }
    problem = {name: np.repeat(values, len(pool)) for name, values in sizes.items()}
    kernel = {name: np.tile(values, len(number)) for name, values in pool.columns.items()}
    m, n, k = (values.astype(np.float64) for values in problem.values())
    flops, moved = 2 * m * n * k, 2 * (m * k + k * n + m * n)
    latency = _latency(flops, moved, _padding(m, kernel.get("tile_m")) * _padding(n, kernel.get("tile_n")))
    factor = 1 + np.random.default_rng(1).random(len(pool))
    latency *= np.tile(factor, len(number)) * (1 + 0.01 * rng.standard_normal(len(m)).clip(-3, 3))
    values = {
        **{name: getattr(TARGET, name) for name in ("op", "variant", "dtype", "arch")},
        **problem,
        "layout": "rcr",
        "kernel_name": np.tile(np.array(pool.names, dtype=object), len(number)),
        **kernel,
        **{"latency_ms": latency, "tflops": flops / latency / 1e9, "bandwidth_gb_s": moved / latency / 1e6},
        **{"status": "ok", "error": None, "is_valid": True, "run_id": "made-up", "origin": "made up"},
        **{"hw_device": "made up", "hw_uuid": None, "driver": "0", "libraries": "none"},
        **{"measured_at": "2026-01-01T00:00:00Z", "regime": "cold_l2+graph", "unrolled": 4, "repeats": 12},
        **{"latency_min_ms": latency * 0.99, "latency_p20_ms": latency * 0.995, "latency_p80_ms": latency * 1.005},
        "sm_clock_mhz": 1980,
        PROGRAMS_COLUMN: None,
    }
    columns = measurement_columns(TARGET.op, pool.backend.name)
    frame = pd.DataFrame({c.name: values[c.name] for c in columns})
    return frame.astype({c.name: _TYPES[c.kind] if c.nullable or c.kind != "int" else "int64" for c in columns})


def _latency(flops: Floats, moved: Floats, padding: Floats) -> Floats:
    arch = load_arch(TARGET.arch)
    return flops * padding / (0.7 * arch.peak(TARGET.dtype) * 1e9) + moved / (0.8 * arch.dram_gb_s * 1e6) + 3e-3


def _padding(size: Floats, tile: Floats | None) -> Floats:
    """Return the factor by which tiles exceed the problem; 1 for kernels without tiles."""
    if tile is None:
        return np.ones(len(size))
    tile = np.maximum(tile, 1).astype(np.float64)
    padded: Floats = np.ceil(size / tile) * tile / size
    return padded
