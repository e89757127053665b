"""The export of a pool has CK Tile's keys, wherever it is written, and two keys of its own."""

from __future__ import annotations

import json

import pytest

from tilewise.arch import load_arch
from tilewise.kernels import load_pool, registry_json
from tilewise.ops import Target

# The keys that CK Tile documents for dispatcher_export_registry_json.
METADATA = {"timestamp", "total_kernels", "export_version", "dispatcher_version"}
STATISTICS = {"by_datatype", "by_pipeline", "by_scheduler"}
SHAPES = {"tile_shape", "wave_shape", "warp_tile_shape"}
ALGORITHM = SHAPES | {"block_size", "persistent", "double_buffer", "preshuffle", "transpose_c"}
OWN = {"target", "model"}


@pytest.mark.parametrize("name", ["gemm_universal_bf16_sm90", "grouped_conv_forward_fp16_sm90"])
def test_the_keys_are_those_that_ck_tile_documents(name: str) -> None:
    target = Target.parse(name)
    pool = load_pool(target)
    document = json.loads(registry_json(target, pool, load_arch(target.arch).warp_size, "abc"))
    assert set(document) == {"metadata", "statistics", "kernels"}
    assert set(document["metadata"]) == METADATA | OWN
    assert document["metadata"]["total_kernels"] == len(document["kernels"]) == len(pool)
    assert set(document["statistics"]) == STATISTICS
    assert all(sum(counts.values()) == len(pool) for counts in document["statistics"].values())
    for kernel in document["kernels"]:
        assert set(kernel) == {"identifier", "name", "algorithm"}
        assert set(kernel["algorithm"]) == ALGORITHM
        assert all(set(kernel["algorithm"][shape]) == {"m", "n", "k"} for shape in SHAPES)
