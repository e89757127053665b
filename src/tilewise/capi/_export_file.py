"""Export of a model as one file for C: bytecode, cost model and trees of :mod:`tilewise.model`, and the kernels' names.

The file is little-endian: ``TILEWISE``, version (uint32), CRC-32 of the rest (uint32), length of the file (uint64),
then sections in a fixed order. A section has four letters, the bytes of an item (uint32), the number of items (uint64)
and the items, padded with zeros to a multiple of 8 bytes. Without a cost model its sections are missing, and so are
those of a scale model. The trees of additional labels follow in files of version 4: their names, then the sections of a
ranker for each. capi/model_file.c reads the file and checks every number.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewise.core import UntraceableError
from tilewise.errors import ArtefactError
from tilewise.files import write_bytes
from tilewise.kernels import Pool, backend_of, registry_json
from tilewise.model import RankerInputs, RankerParts, TrainedModel, compile_parts
from tilewise.ops import GEMM_LAYOUTS, OPS

# Of files without and with trees of additional labels. The reader also takes version 2, without a scale model.
VERSION, VERSION_WITH_EXTRAS = 3, 4

Array: TypeAlias = npt.NDArray[np.generic]


def export_model(model: TrainedModel, path: str | Path) -> tuple[str, ...]:
    """Write a model for the C library; equal models give equal bytes.

    Returns:
        The names of the kernels that are left out, as a C program cannot launch them.

    Raises:
        ArtefactError: see :func:`model_bytes`.
        OSError: `path` cannot be written.
    """
    write_bytes(path, model_bytes(model))
    return tuple(name for name, kept in zip(model.pool.names, _for_c(model.pool), strict=True) if not kept)


def _for_c(pool: Pool) -> npt.NDArray[np.bool_]:
    """Return which kernels of a pool a C program can launch or name: bool, (len(pool),)."""
    return np.array([not backend_of(kernel).needs_python for kernel in pool.kernels])


def _inputs_for_c(model: TrainedModel) -> RankerInputs:
    """Return the members of a model that rank the kernels of :func:`_for_c`.

    Raises:
        ArtefactError: no kernel is left.
    """
    inputs, kept = model.ranker_inputs, _for_c(model.pool)
    if not kept.any():
        raise ArtefactError(f"{model.where}: all kernels run through Python; export a model with other kernels")
    if kept.all():
        return inputs
    pool = dataclasses.replace(inputs.pool, kernels=tuple(itertools.compress(inputs.pool.kernels, kept)))
    cost_model = inputs.cost_model
    if cost_model is not None:  # its last row of weights serves kernels outside the pool
        cost_model = dataclasses.replace(cost_model, weights=cost_model.weights[np.append(kept, True)])
    return dataclasses.replace(inputs, pool=pool, cost_model=cost_model)


def model_bytes(model: TrainedModel) -> bytes:
    """Return the contents of the file.

    Raises:
        ArtefactError: a formula cannot be traced, so that only NumPy can rank with the model; or a C program can launch
            none of the kernels.
    """
    inputs = _inputs_for_c(model)
    pool = inputs.pool
    extras = {
        label: dataclasses.replace(inputs, scores=trees, scale=None, cost_model=None, shortlist=0)
        for label, trees in model.extras.items()
    }
    try:
        parts = compile_parts(inputs)
        of_extras = [compile_parts(extra) for extra in extras.values()]
    except UntraceableError as e:
        raise ArtefactError(f"{model.where}: cannot be exported to C: {e}") from e
    target, codes = model.target, parts.codes.get("layout", {})
    sections = [
        _section("targ", 1, _texts(target.op, target.variant, target.dtype, target.arch)),
        _section("json", 1, _texts(registry_json(target, pool, model.arch.warp_size, model.content_hash))),
        _section("code", 8, _layout_codes(target.op, codes)),
        *_ranker_sections(parts, model.label == "log1p", pool.names),
    ]
    if not extras:
        return seal(b"".join(sections))
    sections.append(_section("xtra", 1, _texts(*extras)))
    sections += [section for extra in of_extras for section in _ranker_sections(extra, is_log1p=False)]
    return seal(b"".join(sections), VERSION_WITH_EXTRAS)


def _ranker_sections(parts: RankerParts, is_log1p: bool, names: Sequence[str] = ()) -> list[bytes]:
    """Return the sections of a ranker: those of its names too, for the first of a file."""
    arrays = parts.arrays
    n_inputs, n_slots, constants, instructions, index = arrays["bytecode"]
    n_features, *trees = arrays["scores"]
    cost_model = arrays["cost_model"]
    n_costs, n_drivers = cost_model[:2] if cost_model else (0, 0)
    sizes = (arrays["n_kernels"], n_inputs, n_slots, len(arrays["classes"]), n_features, n_costs, n_drivers)
    n_scale_features, *scale = arrays["scale"] or (-1,)
    head = (*sizes, cost_model is not None, arrays["shortlist"], n_scale_features, is_log1p)
    partitions = np.concatenate([*arrays["classes"], np.empty(0, dtype=np.int32)])
    sections = [
        _section("head", 4, np.array(head, dtype=np.int32)),
        *([_section("name", 1, _texts(*names))] if names else []),
        _section("clas", 4, partitions),
        _section("cons", 8, constants),
        _section("step", 28, instructions),
        _section("indx", 4, index),
        _section("rule", 8, arrays["rules"]),
        _section("outs", 8, arrays["features"]),
        _section("cost", 8, arrays["costs"]),
        _section("driv", 8, arrays["drivers"]),
        *(_section(tag, item, x) for (tag, item), x in zip(_TREES.items(), trees, strict=True)),
    ]
    if cost_model:
        _, _, limits, *weights = cost_model
        sections += [_section("sing", 8, arrays["single"]), _section("limi", 8, np.array(limits, dtype=np.float64))]
        sections += [_section(tag, 8, x) for tag, x in zip(_WEIGHTS, weights, strict=True)]
    if scale:
        sections += [_section("prob", 8, arrays["problem"])]
        sections += [_section(tag, item, x) for (tag, item), x in zip(_TREES.items(), scale, strict=True)]
    return sections


_TREES = {"root": 8, "feat": 8, "thre": 8, "chil": 16, "miss": 1, "left": 1, "valu": 8}
_WEIGHTS = ("prog", "fact", "cent", "scal", "weig")


def seal(sections: bytes, version: int = VERSION) -> bytes:
    """Return the file with these sections: its head has version, checksum and length."""
    rest = struct.pack("<Q", len(sections) + 24) + sections
    return b"TILEWISE" + struct.pack("<II", version, zlib.crc32(rest)) + rest


def _layout_codes(op: str, codes: dict[str, int]) -> Array:
    """Return the code of each layout of the op; -1 fills the section, whose length is that of all ops."""
    known = [codes.get(layout, -1) for layout in OPS[op].layouts]
    return np.array(known + [-1] * (len(GEMM_LAYOUTS) - len(known)), dtype=np.int64)


def _section(tag: str, item: int, data: Array | bytes) -> bytes:
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data, dtype=_little(data)).tobytes()
    return struct.pack("<4sIQ", tag.encode(), item, len(raw) // item) + raw + b"\0" * (-len(raw) % 8)


def _little(array: Array) -> np.dtype[np.generic]:
    return array.dtype.newbyteorder("<")


def _texts(*texts: str) -> bytes:
    return b"".join(text.encode() + b"\0" for text in texts)
