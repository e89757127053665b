"""A pool as ``registry.json``, the JSON of CK Tile's ``dispatcher_export_registry_json``. This is its only writer."""

from __future__ import annotations

import json
from collections import Counter
from math import prod

import tilewise
from tilewise.kernels._contract import KernelBase
from tilewise.kernels._pool import Pool
from tilewise.ops import Target


def registry_json(target: Target, pool: Pool, warp_size: int, content_hash: str = "") -> str:
    """Return the kernels, their parameters and counts per kind as JSON.

    `timestamp` is empty, so equal models give equal texts. Triton's compiler decides on warps and warp tiles, so its
    kernels have all warps of `wave_shape` along M, and a `warp_tile_shape` of 0. Unknown figures are 0 as well.

    Args:
        target: The target.
        pool: The kernels.
        warp_size: Threads of a warp on the target's arch.
        content_hash: The content hash of the model that selects among the kernels; "" without a model.
    """
    document = {
        "metadata": {
            "timestamp": "",
            "total_kernels": len(pool),
            "export_version": "1.0",
            "dispatcher_version": f"tilewise {tilewise.__version__}",
            "target": target.name,
            "model": content_hash,
        },
        "statistics": {
            "by_datatype": {target.dtype: len(pool)},
            "by_pipeline": dict(Counter(k.registry_entry.pipeline for k in pool.kernels)),
            "by_scheduler": dict(Counter(k.registry_entry.scheduler for k in pool.kernels)),
        },
        "kernels": [
            {"identifier": name, "name": name, "algorithm": _algorithm(kernel, warp_size)}
            for name, kernel in zip(pool.names, pool.kernels, strict=True)
        ],
    }
    return json.dumps(document)


def _algorithm(kernel: KernelBase, warp_size: int) -> dict[str, object]:
    entry = kernel.registry_entry
    return {
        "tile_shape": _by_axis(entry.tile),
        "wave_shape": _by_axis(entry.warps),
        "warp_tile_shape": _by_axis(entry.warp_tile),
        "block_size": prod(entry.warps) * warp_size,
        "persistent": entry.persistent,
        "double_buffer": entry.double_buffer,
        "preshuffle": False,
        "transpose_c": False,
    }


def _by_axis(sizes: tuple[int, int, int]) -> dict[str, int]:
    return dict(zip("mnk", map(int, sizes), strict=True))
