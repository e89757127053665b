"""A pool as JSON, in the form that CK Tile's dispatcher writes."""

from __future__ import annotations

import json
from collections import Counter

import tilewise
from tilewise.kernels.pool import Pool
from tilewise.ops import Target


def export_json(target: Target, pool: Pool) -> str:
    """All kernels, what they are made of and how many there are of each kind, as stable JSON."""
    kernels = [
        {"identifier": name, "name": name, "algorithm": kernel.to_dict()}
        for name, kernel in zip(pool.names, pool.kernels, strict=True)
    ]
    document = {
        "metadata": {
            "target": target.name,
            "total_kernels": len(kernels),
            "default": pool.names[0],
            "pool_hash": pool.hash,
            "export_version": "1",
            "dispatcher_version": tilewise.__version__,
        },
        "statistics": {
            "by_datatype": {target.dtype: len(kernels)},
            "by_pipeline": dict(sorted(Counter(k.pipeline for k in pool.kernels).items())),
        },
        "kernels": kernels,
    }
    return json.dumps(document, indent=1) + "\n"
