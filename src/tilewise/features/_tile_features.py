"""The features that every tiled matrix product shares; see :class:`tilewise.features._tile_inputs.TileInputs`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tilewise.features._block_inputs import log2
from tilewise.features._feature_table import Feature
from tilewise.kernels import FIRST_NUMBER

HARDWARE_FEATURES = (
    Feature("hw_compute_units", "", "compute units", "hardware", lambda i: i.arch.compute_units),
    Feature("hw_warp_size", "threads", "threads of a warp", "hardware", lambda i: i.arch.warp_size),
    Feature("hw_clock", "MHz", "highest clock", "hardware", lambda i: i.arch.clock_mhz),
    Feature("hw_shared_block", "bytes", "shared memory of a block", "hardware", lambda i: i.arch.shared_memory_bytes),
    Feature(
        "hw_shared_unit", "bytes", "shared memory of a unit", "hardware", lambda i: i.arch.shared_memory_unit_bytes
    ),
    Feature("hw_registers", "", "registers of a compute unit", "hardware", lambda i: i.arch.registers),
    Feature("hw_max_threads", "threads", "threads resident on a unit", "hardware", lambda i: i.arch.max_threads),
    Feature("hw_max_blocks", "", "blocks resident on a unit", "hardware", lambda i: i.arch.max_blocks),
    Feature("hw_l2", "bytes", "L2 cache", "hardware", lambda i: i.arch.l2_bytes),
    Feature("hw_dram_gb_s", "GB/s", "memory bandwidth", "hardware", lambda i: i.arch.dram_gb_s),
    Feature("hw_peak_tflops", "TFLOPS", "peak of the matrix units", "hardware", lambda i: i.arch.peak(i.dtype)),
    Feature("hw_ridge", "FLOP/byte", "intensity where memory and matrix units tie", "hardware", lambda i: i.ridge),
)

# Where targets of several archs are learnt together. They stand last in the matrix, so that earlier columns keep their
# places.
ARCH_FEATURES = tuple(
    replace(feature, across_archs=True)
    for feature in (
        Feature("hw_chiplets", "", "dies with compute units (XCDs)", "hardware", lambda i: i.chiplets),
        Feature("hw_simds", "", "vector units of a compute unit", "hardware", lambda i: i.arch.simds_per_unit),
        Feature("hw_l1", "bytes", "vector cache of a compute unit", "hardware", lambda i: i.arch.l1_bytes),
        Feature("hw_l3", "bytes", "cache behind L2; 0 without one", "hardware", lambda i: i.arch.l3_bytes),
        Feature(
            "last_cache_log2", "log2", "fewest bytes / the last cache before memory, of all chiplets", "problem",
            lambda i: log2(i.min_bytes / i.last_cache_bytes),
        ),
        Feature(
            "programs_per_chiplet_log2", "log2", "programs that share an L2", "interaction",
            lambda i: log2(i.programs / i.chiplets),
        ),
        Feature(
            "warps_per_simd", "warps", "warps that a vector unit chooses from", "interaction",
            lambda i: i.resident * i.k.num_warps / max(i.arch.simds_per_unit, 1),
        ),
        Feature(
            "step_l1_log2", "log2", "operands that a compute unit loads in a step / its vector cache", "interaction",
            lambda i: log2(i.resident * i.step_bytes / max(i.arch.l1_bytes, 1)),
        ),
    )
)  # fmt: skip

KERNEL_FEATURES = (
    Feature("tile_m", "", "rows of a tile", "kernel", lambda i: i.k.tile_m),
    Feature("tile_n", "", "columns of a tile", "kernel", lambda i: i.k.tile_n),
    Feature("tile_k", "", "depth of a step", "kernel", lambda i: i.k.tile_k),
    Feature("num_warps", "warps", "warps of a block", "kernel", lambda i: i.k.num_warps),
    Feature("num_stages", "", "stages of the software pipeline", "kernel", lambda i: i.k.num_stages),
    Feature("group_m", "tiles", "row tiles that share a sweep over the columns", "kernel", lambda i: i.k.group_m),
    Feature("split_k", "", "programs that share a tile", "kernel", lambda i: i.k.split_k),
    Feature("tile_area_log2", "log2", "results of a tile", "kernel", lambda i: log2(i.tile_area)),
    Feature("tile_aspect_log2", "log2", "rows / columns of a tile", "kernel", lambda i: log2(i.k.tile_m / i.k.tile_n)),
    Feature(
        "tile_intensity", "", "tile_m tile_n / (tile_m + tile_n): arithmetic per loaded element", "kernel",
        lambda i: i.tile_area / (i.k.tile_m + i.k.tile_n),
    ),
    Feature("accumulators", "registers", "partial sums a thread holds", "kernel", lambda i: i.accumulators),
    Feature("step_bytes", "bytes", "operands a program loads in a step", "kernel", lambda i: i.step_bytes),
    Feature(
        "step_bytes_thread", "bytes", "operands a thread loads in a step", "kernel", lambda i: i.step_bytes / i.threads
    ),
    Feature(
        "warpgroup", "flag", "warps and rows suffice for warpgroup matrix instructions", "kernel", lambda i: i.warpgroup
    ),
    Feature(
        "step_balance_log2", "log2", "clocks of a step's arithmetic / of its loads", "kernel",
        lambda i: log2(i.step_compute_clocks / i.step_load_clocks),
    ),
)  # fmt: skip

TILE_FEATURES = (
    Feature(
        "registers", "registers", "estimated registers of a thread, as alignment allows", "interaction",
        lambda i: i.registers,
    ),
    Feature(
        "shared_bytes", "bytes", "shared memory of a block, as alignment allows", "interaction",
        lambda i: i.shared_bytes,
    ),
    Feature(
        "shared_share", "", "shared memory of a block / what a block may have", "interaction",
        lambda i: i.shared_bytes / i.arch.shared_memory_bytes,
    ),
    Feature("resident", "blocks", "blocks that a compute unit holds", "interaction", lambda i: i.resident),
    Feature(
        "resident_warps", "warps", "warps that a compute unit holds", "interaction",
        lambda i: i.resident * i.k.num_warps,
    ),
    Feature(
        "bytes_in_flight", "bytes", "loads that a compute unit keeps under way", "interaction",
        lambda i: i.resident * i.step_bytes * np.maximum(i.k.num_stages - 1, 1),
    ),
    Feature("tiles_m_log2", "log2", "tiles along M", "interaction", lambda i: log2(i.tiles_m)),
    Feature("tiles_n_log2", "log2", "tiles along N", "interaction", lambda i: log2(i.tiles_n)),
    Feature("steps_log2", "log2", "steps along all of K", "interaction", lambda i: log2(i.steps)),
    Feature("m_over_tile_log2", "log2", "M / tile_m", "interaction", lambda i: log2(i.gemm.m / i.k.tile_m)),
    Feature("n_over_tile_log2", "log2", "N / tile_n", "interaction", lambda i: log2(i.cols / i.k.tile_n)),
    Feature("efficiency_m", "", "useful share of the tiles along M", "interaction", lambda i: i.efficiency_m),
    Feature("efficiency_n", "", "useful share of the tiles along N", "interaction", lambda i: i.efficiency_n),
    Feature("efficiency_k", "", "useful share of the steps along K", "interaction", lambda i: i.efficiency_k),
    Feature("efficiency", "", "useful share of the arithmetic", "interaction", lambda i: i.efficiency),
    Feature("programs_log2", "log2", "programs of the launch", "interaction", lambda i: log2(i.programs)),
    Feature(
        "programs_per_unit", "", "programs / compute units", "interaction", lambda i: i.programs / i.arch.compute_units
    ),
    Feature("waves", "", "programs / programs that run at once", "interaction", lambda i: i.waves),
    Feature("wave_efficiency", "", "useful share of the waves' slots", "interaction", lambda i: i.wave_efficiency),
    Feature(
        "unit_efficiency", "", "average load of a compute unit / load of the busiest", "interaction",
        lambda i: i.unit_efficiency,
    ),
    Feature(
        "program_steps_log2", "log2", "steps of the longest program", "interaction", lambda i: log2(i.program_steps)
    ),
    Feature(
        "fill_efficiency", "", "useful share of a program's time when its pipeline fills and drains", "interaction",
        lambda i: i.fill_efficiency,
    ),
    Feature(
        "steps_balance", "", "average steps of a split's programs / steps of the longest", "interaction",
        lambda i: i.steps / (i.program_steps * i.k.split_k),
    ),
    Feature(
        "a_traffic_log2", "log2", "loads of the operand along M / its stored bytes", "interaction",
        lambda i: log2(i.a_traffic / i.a_bytes),
    ),
    Feature(
        "b_traffic_log2", "log2", "loads of the operand along N / its stored bytes", "interaction",
        lambda i: log2(i.b_traffic / i.b_bytes),
    ),
    Feature(
        "traffic_log2", "log2", "bytes that all programs load and store / the fewest", "interaction",
        lambda i: log2(i.traffic / i.min_bytes),
    ),
    Feature(
        "traffic_intensity_log2", "log2(FLOP/byte)", "FLOPs / bytes that all programs load and store", "interaction",
        lambda i: log2(i.flops / i.traffic),
    ),
    Feature(
        "workspace_log2", "log2", "1 + bytes of split-K's partial sums / fewest bytes", "interaction",
        lambda i: log2(1.0 + i.workspace_bytes / i.min_bytes),
    ),
    Feature(
        "wave_reuse_log2", "log2", "loads of a wave / distinct ones among them", "interaction",
        lambda i: log2(i.wave_reuse),
    ),
    Feature(
        "wave_l2_log2", "log2", "distinct operand bytes of a wave / L2", "interaction",
        lambda i: log2(i.wave_bytes / i.arch.l2_bytes),
    ),
    Feature(
        "compute_time_log2", "log2", "arithmetic on the busiest unit / least time of the problem", "interaction",
        lambda i: log2(i.compute_clocks / i.roofline_clocks),
    ),
    Feature(
        "load_time_log2", "log2", "loads of the busiest unit / least time of the problem", "interaction",
        lambda i: log2(i.load_clocks / i.roofline_clocks),
    ),
    Feature(
        "latency_time_log2", "log2", "latency that stages leave uncovered / least time of the problem", "interaction",
        lambda i: log2(np.ceil(i.waves) * i.program_steps * i.step_latency_clocks / i.roofline_clocks),
    ),
    Feature(
        "estimated_efficiency_log2", "log2", "least time of the problem / time by the pipeline model", "interaction",
        lambda i: log2(i.estimated_efficiency),
    ),
)  # fmt: skip

# A tile kernel is told apart by its parameters.
NAMED_FEATURES = (
    Feature(
        "candidate", "", "number of a candidate that is known by name; 0 for a tile kernel", "kernel",
        lambda i: np.where(i.pipeline_number >= FIRST_NUMBER, i.pipeline_number, 0),
    ),
)  # fmt: skip


def pipeline_features(names: Iterable[str]) -> tuple[Feature, ...]:
    """Return a flag for each of these pipelines."""
    return tuple(_pipeline(name) for name in names)


def _pipeline(name: str) -> Feature:
    return Feature(f"pipeline_{name}", "flag", f"K is walked as `{name}`", "kernel", lambda i: i.pipeline_is(name))
