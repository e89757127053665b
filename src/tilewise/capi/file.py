"""A model as one file for C: the rules, features, estimate and trees of :mod:`tilewise.model.ranker`, and the names.

Little-endian: ``TILEWISE``, version (uint32), CRC-32 of all that follows it (uint32), length of the file (uint64), then
sections in a fixed order: four letters, bytes of an item (uint32), items (uint64), the items, zeros up to a multiple of
8 bytes. capi/file.c reads it and believes none of it; a file without an estimate ends before its sections.

The scale model is left out: it adds the same to all kernels of a problem.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import tilewise
from tilewise.core.trace import UntraceableError
from tilewise.errors import ArtefactError
from tilewise.files import write_bytes
from tilewise.model.ranker import compile_parts
from tilewise.model.trained import TrainedModel
from tilewise.ops.gemm import LAYOUTS

VERSION = 2


def export_model(model: TrainedModel, path: str | Path) -> None:
    """Write `model` for the C library; equal models give equal bytes.

    Raises:
        ArtefactError: see :func:`model_bytes`.
        OSError: `path` cannot be written.
    """
    write_bytes(path, model_bytes(model))


def model_bytes(model: TrainedModel) -> bytes:
    """The file's content.

    Raises:
        ArtefactError: the model has a formula that is no list of steps, so only NumPy can rank with it.
    """
    try:
        parts = compile_parts(
            model.features, model.pool, model.arch, model.scores, None, model.estimate, model.shortlist
        )
    except UntraceableError as e:
        raise ArtefactError(f"{model.where}: cannot be exported to C: {e}") from e
    a, target, codes = parts.arrays, model.target, parts.codes.get("layout", {})
    n_inputs, n_slots, constants, steps, index = a["program"]
    n_features, *trees = a["scores"]
    estimate = a["estimate"]
    n_costs, n_drivers = estimate[:2] if estimate else (0, 0)
    sizes = (len(model.pool), n_inputs, n_slots, len(a["classes"]), n_features, n_costs, n_drivers)
    head = (*sizes, estimate is not None, model.shortlist)
    partitions = np.concatenate([*a["classes"], np.empty(0, dtype=np.int32)])
    sections = [
        _section("targ", 1, _texts(target.op, target.variant, target.dtype, target.arch)),
        _section("json", 1, _texts(registry_json(model))),
        _section("code", 8, np.array([codes.get(layout, -1) for layout in LAYOUTS], dtype=np.int64)),
        _section("head", 4, np.array(head, dtype=np.int32)),
        _section("name", 1, _texts(*model.pool.names)),
        _section("clas", 4, partitions),
        _section("cons", 8, constants),
        _section("step", 28, steps),
        _section("indx", 4, index),
        *(_section(tag, 8, a[n]) for tag, n in _OUTPUTS.items()),
        *(_section(tag, item, x) for (tag, item), x in zip(_TREES.items(), trees, strict=True)),
    ]
    if estimate:
        _, _, limits, *weights = estimate
        sections += [_section("sing", 8, a["single"]), _section("limi", 8, np.array(limits, dtype=np.float64))]
        sections += [_section(tag, 8, x) for tag, x in zip(_WEIGHTS, weights, strict=True)]
    return seal(b"".join(sections))


_OUTPUTS = {"rule": "rules", "outs": "features", "cost": "costs", "driv": "drivers"}
_TREES = {"root": 8, "feat": 8, "thre": 8, "chil": 16, "miss": 1, "left": 1, "valu": 8}
_WEIGHTS = ("prog", "fact", "cent", "scal", "weig")


def seal(sections: bytes) -> bytes:
    """Put the head in front."""
    rest = struct.pack("<Q", len(sections) + 24) + sections
    return b"TILEWISE" + struct.pack("<II", VERSION, zlib.crc32(rest)) + rest


def _section(tag: str, item: int, data: Any) -> bytes:
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, dtype=_little(data)).tobytes()
    return struct.pack("<4sIQ", tag.encode(), item, len(raw) // item) + raw + b"\0" * (-len(raw) % 8)


def _little(array: np.ndarray) -> np.dtype[Any]:
    return array.dtype.newbyteorder("<")


def _texts(*texts: str) -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)


def registry_json(model: TrainedModel) -> str:
    """The pool as CK Tile's ``dispatcher_export_registry_json`` tells a registry.

    `timestamp` is empty, so that equal models give equal files. Of Triton's kernels, `wave_shape` has all warps along M
    and `warp_tile_shape` is 0, as their compiler decides on both; what a convolution's name does not tell is 0 as well.
    """
    kernels = list(zip(model.pool.names, model.pool.kernels, strict=True))
    schedulers = (str(getattr(k, "scheduler", "") or "default") for k in model.pool.kernels)
    document = {
        "metadata": {
            "timestamp": "",
            "total_kernels": len(kernels),
            "export_version": "1.0",
            "dispatcher_version": f"tilewise {tilewise.__version__}",
            "target": model.target.name,
            "model": model.content_hash,
        },
        "statistics": {
            "by_datatype": {model.target.dtype: len(kernels)},
            "by_pipeline": dict(Counter(str(k.pipeline) for k in model.pool.kernels)),
            "by_scheduler": dict(Counter(schedulers)),
        },
        "kernels": [
            {"identifier": name, "name": name, "algorithm": _algorithm(k, model.arch.warp_size)} for name, k in kernels
        ],
    }
    return json.dumps(document)


def _algorithm(kernel: Any, warp_size: int) -> dict[str, Any]:
    def shape(prefix: str, otherwise: tuple[int, int, int]) -> dict[str, int]:
        axes = zip("mnk", otherwise, strict=True)
        return {axis: int(getattr(kernel, f"{prefix}_{axis}", default)) for axis, default in axes}

    waves = shape("warp", (getattr(kernel, "num_warps", 0), 1, 1))
    return {
        "tile_shape": shape("tile", (0, 0, 0)),
        "wave_shape": waves,
        "warp_tile_shape": shape("warp_tile", (0, 0, 0)),
        "block_size": waves["m"] * waves["n"] * waves["k"] * warp_size,
        "persistent": bool(getattr(kernel, "persistent", kernel.pipeline == "persistent")),
        "double_buffer": bool(getattr(kernel, "double_smem_buffer", False)),
        "preshuffle": False,
        "transpose_c": False,
    }
