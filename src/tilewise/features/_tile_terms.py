"""The costs and drivers of the cost model that every tiled matrix product shares; see :class:`TileInputs`."""

from __future__ import annotations

import numpy as np

from tilewise.features._block_inputs import FMA_LANES, LATENCY_CLOCKS, LAUNCH_CLOCKS, UNIT_BYTES_PER_CLOCK, log2
from tilewise.features._feature_table import Term
from tilewise.features._tile_inputs import WORKSPACE_BYTES
from tilewise.ops import result_bytes

# Costs of a launch on its busiest compute unit, in clocks up to a factor: :mod:`tilewise.train` fits the
# factors to measurements, one set per compiled program.
TILE_COSTS = (
    Term("arithmetic", "products of tiles", lambda i: i.busy_steps * i.step_compute_clocks),
    Term("loads", "operand bytes from L2", lambda i: i.busy_steps * i.step_load_clocks / i.reuse),
    Term("latency", "steps one after another", lambda i: i.latency_steps * LATENCY_CLOCKS),
    Term("staged_latency", "steps, as far as stages leave them uncovered", lambda i: (
        i.latency_steps * i.step_latency_clocks
    )),
    Term("elements", "operand elements", lambda i: i.busy_steps * i.step_elements / i.reuse / FMA_LANES),
    Term("addresses", "addresses and masks of A", lambda i: (
        i.busy_steps * i.k.tile_m * i.step_k / i.reuse / FMA_LANES
    )),
    Term("rows", "rows and columns addressed", lambda i: i.busy_steps * (i.k.tile_m + i.k.tile_n) / FMA_LANES),
    Term("results", "results stored", lambda i: i.busy_programs * i.tile_area / FMA_LANES),
    Term("result_bytes", "bytes of results stored", lambda i: (
        i.busy_programs * i.tile_area * np.where(i.k.split_k > 1, WORKSPACE_BYTES, result_bytes(i.dtype))
        / UNIT_BYTES_PER_CLOCK
    )),
    Term("waves", "pipelines filled and drained", lambda i: np.ceil(i.grid_waves) * LATENCY_CLOCKS),
    Term("programs", "programs begun", lambda i: i.busy_programs * LATENCY_CLOCKS),
    Term("memory", "fewest bytes from memory", lambda i: i.dram_clocks),
    Term("traffic", "bytes through L2", lambda i: i.traffic / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)),
    Term("workspace", "bytes of partial sums and copies", lambda i: (
        i.workspace_traffic / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)
    )),
    Term("launch", "one launch", lambda i: LAUNCH_CLOCKS),
    Term("second_launch", "another where shares are added or operands copied", lambda i: (
        np.where(i.workspace_bytes > 0, LAUNCH_CLOCKS, 0)
    )),
)  # fmt: skip

# The error of the costs' sum depends on these, differently for each kernel.
TILE_DRIVERS = (
    Term("m", "log2 of the rows", lambda i: log2(i.gemm.m)),
    Term("n", "log2 of the columns", lambda i: log2(i.gemm.n)),
    Term("k", "log2 of the depth", lambda i: log2(i.gemm.k)),
    Term("efficiency_k", "useful share of the steps along K", lambda i: i.efficiency_k),
    Term("efficiency_n", "useful share of the tiles along N", lambda i: i.efficiency_n),
    Term("wave_efficiency", "useful share of the waves' slots", lambda i: i.grid_waves / np.ceil(i.grid_waves)),
    Term("waves", "waves, at most 4", lambda i: np.minimum(i.grid_waves, 4.0)),
    Term("wave_reuse", "log2 of a wave's loads / distinct ones", lambda i: log2(i.wave_reuse)),
    Term("wave_l2", "log2 of a wave's distinct bytes / L2", lambda i: log2(i.wave_bytes / i.arch.l2_bytes)),
    Term("traffic", "log2 of the bytes moved / the fewest", lambda i: log2(i.traffic / i.min_bytes)),
)
