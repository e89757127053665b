"""The dispatcher's JSON (CK profiler): a header and a list of instances.

``{"variant", "ndim_spatial", "layout", "datatype", "instances": [{"id", "tile_m", ...}, ...]}``. Instances of several
variants, types or layouts make a list of such documents. The fields are exactly the dispatcher's, with one addition: it
has none for ``store_immediate``, the three pads and ``persistent``, so these keys are written and read where true.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, cast

from tilewise.errors import KernelError
from tilewise.kernels.ck._ck_kernel import CkKernel
from tilewise.kernels.ck._instance import (
    DEPTHWISE,
    DEPTHWISE_SIZES,
    AnyInstance,
    DepthwiseInstance,
    Instance,
    InstanceHeader,
)

Document: TypeAlias = dict[str, Any]  # one JSON object: a header's keys and its instances

HEADER_KEYS = ("variant", "ndim_spatial", "layout", "datatype", "instances")

# Keys of an instance in the file's order, each with the attribute of the kernel, or of the instance.
_KERNEL = {
    **{n: n for n in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k")},
    **{n: n for n in ("warp_tile_m", "warp_tile_n", "warp_tile_k")},
    **{f"vector_size_{x}": f"vector_{x}" for x in "abc"},
    **{n: n for n in ("pipeline", "scheduler", "epilogue", "double_smem_buffer", "num_groups_to_merge")},
}
_INSTANCE = ("num_wave_groups", "specialization", "two_stage", "explicit_gemm", "split_image")
_STREAMK = ("streamk_enabled", "streamk_reduction_strategy", "streamk_persistent")  # of the kernel, last in a file
INSTANCE_KEYS = ("id", *_KERNEL, *_INSTANCE, *_STREAMK)
_WHERE_TRUE = ("store_immediate", "pad_m", "pad_n", "pad_k", "persistent")
# Keys that older files lack, or that are written only where true.
_OPTIONAL = {
    *_INSTANCE,
    *_STREAMK,
    *_WHERE_TRUE,
    "epilogue",
    "double_smem_buffer",
    "num_groups_to_merge",
}

# Other spellings of variants in files.
_VARIANTS = {"backward_data": "bwd_data", "backward_weight": "bwd_weight", "fwd": "forward"}


def is_dispatcher_document(document: object) -> bool:
    """Return whether parsed JSON looks like the dispatcher's."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, Mapping) and "instances" in first


def instances_from_document(document: object) -> tuple[AnyInstance, ...]:
    """Return the instances of a document or a list of documents, each with its id.

    Raises:
        KernelError: a key is missing, unknown or of the wrong type, or two instances share an id. The message names the
            instance.
    """
    if isinstance(document, list):
        return tuple(instance for part in document for instance in instances_from_document(part))
    values = _object(document, "the document")
    _require_keys(values, HEADER_KEYS, set(), "the document")
    variant = _text(values, "variant", "the document")
    header = InstanceHeader(
        _VARIANTS.get(variant, variant),
        _int(values, "ndim_spatial", "the document"),
        _text(values, "layout", "the document"),
        _text(values, "datatype", "the document"),
    )
    rows = values["instances"]
    if not isinstance(rows, list):
        raise KernelError(f"instances must be a list, got {_shown(rows)}")
    found: dict[int, AnyInstance] = {}
    for place, row in enumerate(rows):
        where = f"instance {place}"
        values = _object(row, where)
        number = _int(values, "id", where)
        if number in found:
            raise KernelError(f"{where}: id must be unique, got {number} again")
        read = _depthwise if header.variant == DEPTHWISE else _instance
        try:
            found[number] = read(values, header, where)
        except KernelError as e:
            raise e if str(e).startswith(where) else KernelError(f"{where} (id {number}): {e}") from e
    return tuple(found.values())


def to_document(instances: Iterable[AnyInstance]) -> Document | list[Document]:
    """Return the dispatcher's JSON as plain data: one document, or a list if instances differ in the header.

    Ids are written if all instances of a document have distinct ones; else they count from 0.

    Raises:
        KernelError: an instance is a matrix product, for which the format has no header; or `instances` is empty.
    """
    documents: dict[InstanceHeader, list[AnyInstance]] = {}
    for instance in instances:
        if isinstance(instance, Instance) and not instance.kernel.ndim:
            raise KernelError(f"{instance.name}: this format is for convolutions; write a .txt of instances instead")
        documents.setdefault(instance.header, []).append(instance)
    if not documents:
        raise KernelError("no instances: a document needs at least one")
    written = [
        {
            "variant": header.variant,
            "ndim_spatial": header.ndim,
            "layout": header.layout,
            "datatype": header.dtype,
            "instances": [{"id": n, **_row(i)} for n, i in zip(_ids(of_header), of_header, strict=True)],
        }
        for header, of_header in documents.items()
    ]
    return written[0] if len(written) == 1 else written


def dispatcher_json_text(instances: Iterable[AnyInstance]) -> str:
    """Return the dispatcher's JSON as text; equal instances give equal text.

    Raises:
        KernelError: as for :func:`to_document`.
    """
    return json.dumps(to_document(instances), indent=2) + "\n"


def _ids(instances: list[AnyInstance]) -> Iterable[int]:
    ids = [i.id for i in instances if i.id is not None]
    return ids if len(set(ids)) == len(instances) else range(len(instances))


def _row(instance: AnyInstance) -> Document:
    if isinstance(instance, DepthwiseInstance):
        return {name: getattr(instance, name) for name in DEPTHWISE_SIZES}
    row = {key: getattr(instance.kernel, name) for key, name in _KERNEL.items()}
    row |= {name: getattr(instance, name) for name in _INSTANCE}
    row |= {name: getattr(instance.kernel, name) for name in _STREAMK}
    strategy = instance.kernel.streamk_reduction_strategy
    row["streamk_reduction_strategy"] = int(strategy) if strategy.isdecimal() and strategy[0] != "0" else strategy
    return row | {name: True for name in _WHERE_TRUE if getattr(instance.kernel, name)}


def _instance(values: Mapping[str, object], header: InstanceHeader, where: str) -> AnyInstance:
    _require_keys(values, INSTANCE_KEYS, _OPTIONAL, where)
    kinds, kernel = CkKernel.column_kinds(), dict[str, Any]()
    for key, name in {**_KERNEL, **{n: n for n in (*_WHERE_TRUE, *_STREAMK)}}.items():
        if key in values:
            kernel[name] = _READ[_EXTRA_KINDS.get(name, kinds[name])](values, key, where)
    extras: dict[str, Any] = {n: _READ[_EXTRA_KINDS.get(n, "bool")](values, n, where) for n in _INSTANCE if n in values}
    number = cast(int, values["id"])  # checked by the caller
    return Instance(
        header.variant, header.dtype, CkKernel(ndim=header.ndim, **kernel), header.layout, id=number, **extras
    )


def _depthwise(values: Mapping[str, object], header: InstanceHeader, where: str) -> AnyInstance:
    _require_keys(values, ("id", *DEPTHWISE_SIZES), set(), where)
    sizes = {n: _int(values, n, where) for n in ("id", *DEPTHWISE_SIZES)}
    return DepthwiseInstance(header.dtype, header.ndim, header.layout, **sizes)


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise KernelError(f"{where} must be an object, got {_shown(value)}")
    return value


def _require_keys(values: Mapping[str, object], required: Iterable[str], optional: set[str], where: str) -> None:
    missing = [n for n in required if n not in values and n not in optional]
    if missing:
        raise KernelError(f"{where}: {', '.join(missing)} is missing")
    unknown = sorted(set(values) - set(required) - optional)
    if unknown:
        raise KernelError(
            f"{where}: {', '.join(map(repr, unknown[:5]))} is an unknown key and would be lost; remove it"
        )


def _int(values: Mapping[str, object], key: str, where: str) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise KernelError(f"{where}: {key} must be a whole number, got {_shown(value)}")
    return value


def _bool(values: Mapping[str, object], key: str, where: str) -> bool:
    value = values[key]
    if not isinstance(value, bool):
        raise KernelError(f"{where}: {key} must be true or false, got {_shown(value)}")
    return value


def _text(values: Mapping[str, object], key: str, where: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise KernelError(f"{where}: {key} must be a text, got {_shown(value)}")
    return value


def _strategy(values: Mapping[str, object], key: str, where: str) -> str:
    """Read a text, a number or null as text; the source defines its meaning."""
    value = values[key]
    if value is None:
        return ""
    return str(_int(values, key, where)) if isinstance(value, int) else _text(values, key, where)


_EXTRA_KINDS = {"num_wave_groups": "int", "specialization": "str", "streamk_reduction_strategy": "strategy"}
_READ: Mapping[str, Callable[[Mapping[str, object], str, str], int | bool | str]] = {
    "int": _int,
    "bool": _bool,
    "str": _text,
    "strategy": _strategy,
}


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
