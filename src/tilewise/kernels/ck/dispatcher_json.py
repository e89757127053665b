"""The dispatcher's JSON (CK profiler): a header and a list of instances.

``{"variant", "ndim_spatial", "layout", "datatype", "instances": [{"id", "tile_m", ...}, ...]}``; instances of several
variants, types or layouts make a list of such documents. It has no place for ``store_immediate``, the three pads and
``persistent``, so such a key is written (and read) where it is true; apart from that it is exactly the dispatcher's set
of fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tilewise.errors import KernelError
from tilewise.kernels.ck.instance import DEPTHWISE, DEPTHWISE_SIZES, AnyInstance, DepthwiseInstance, Instance
from tilewise.kernels.ck.kernel import CkKernel

HEADER = ("variant", "ndim_spatial", "layout", "datatype", "instances")

# The instance's keys in the file's order: which attribute, of the kernel or of the instance.
_KERNEL = {
    **{n: n for n in ("tile_m", "tile_n", "tile_k", "warp_m", "warp_n", "warp_k")},
    **{n: n for n in ("warp_tile_m", "warp_tile_n", "warp_tile_k")},
    **{f"vector_size_{x}": f"vector_{x}" for x in "abc"},
    **{n: n for n in ("pipeline", "scheduler", "epilogue", "double_smem_buffer", "num_groups_to_merge")},
}
_INSTANCE = (
    "num_wave_groups",
    "specialization",
    "two_stage",
    "explicit_gemm",
    "split_image",
    "streamk_enabled",
    "streamk_reduction_strategy",
    "streamk_persistent",
)
INSTANCE_KEYS = ("id", *_KERNEL, *_INSTANCE)
_WHERE_TRUE = ("store_immediate", "pad_m", "pad_n", "pad_k", "persistent")
_OPTIONAL = {*_INSTANCE, *_WHERE_TRUE, "epilogue", "double_smem_buffer", "num_groups_to_merge"}  # older files

# Other names that files use for a variant.
_VARIANTS = {"backward_data": "bwd_data", "backward_weight": "bwd_weight", "fwd": "forward"}


def is_dispatcher(document: Any) -> bool:
    """Whether this looks like the dispatcher's JSON."""
    first = document[0] if isinstance(document, list) and document else document
    return isinstance(first, Mapping) and "instances" in first


def from_document(document: Any) -> tuple[AnyInstance, ...]:
    """The instances of a document or a list of them, each with its id.

    Raises:
        KernelError: a key is missing, unknown or of the wrong type, or two instances share an id; names the instance.
    """
    if isinstance(document, list):
        return tuple(instance for part in document for instance in from_document(part))
    header = _object(document, "the document")
    _keys(header, HEADER, set(), "the document")
    variant = _text(header, "variant", "the document")
    variant = _VARIANTS.get(variant, variant)
    shared = (_int(header, "ndim_spatial", "the document"), _text(header, "layout", "the document"))
    dtype = _text(header, "datatype", "the document")
    rows = header["instances"]
    if not isinstance(rows, list):
        raise KernelError(f"instances must be a list, got {_kind(rows)}")
    found: dict[int, AnyInstance] = {}
    for place, row in enumerate(rows):
        where = f"instance {place}"
        values = _object(row, where)
        number = _int(values, "id", where)
        if number in found:
            raise KernelError(f"{where}: id {number} stands there twice")
        read = _depthwise if variant == DEPTHWISE else _instance
        try:
            found[number] = read(values, variant, *shared, dtype, where)
        except KernelError as e:
            raise e if str(e).startswith(where) else KernelError(f"{where} (id {number}): {e}") from e
    return tuple(found.values())


def to_document(instances: Iterable[AnyInstance]) -> dict[str, Any] | list[dict[str, Any]]:
    """The dispatcher's JSON as plain data: one document, or a list of them where instances differ in the header.

    Ids are kept where all of a document are there and distinct, else numbered from 0.

    Raises:
        KernelError: an instance is a matrix product, for which the format has no header; or there are none.
    """
    documents: dict[tuple[str, int, str, str], list[AnyInstance]] = {}
    for instance in instances:
        if isinstance(instance, Instance) and not instance.kernel.ndim:
            raise KernelError(f"{instance.name}: this format is for convolutions; write a .txt of instances instead")
        documents.setdefault(instance.header, []).append(instance)
    if not documents:
        raise KernelError("no instances: a document needs the header of at least one")
    written = [
        {
            "variant": variant,
            "ndim_spatial": ndim,
            "layout": layout,
            "datatype": dtype,
            "instances": [{"id": n, **_row(i)} for n, i in zip(_ids(of_header), of_header, strict=True)],
        }
        for (variant, ndim, layout, dtype), of_header in documents.items()
    ]
    return written[0] if len(written) == 1 else written


def dumps(instances: Iterable[AnyInstance]) -> str:
    """The dispatcher's JSON as text; the same for the same instances.

    Raises:
        KernelError: as for :func:`to_document`.
    """
    return json.dumps(to_document(instances), indent=2) + "\n"


def _ids(instances: list[AnyInstance]) -> Iterable[int]:
    ids = [i.id for i in instances if i.id is not None]
    return ids if len(set(ids)) == len(instances) else range(len(instances))


def _row(instance: AnyInstance) -> dict[str, Any]:
    if isinstance(instance, DepthwiseInstance):
        return {name: getattr(instance, name) for name in DEPTHWISE_SIZES}
    row = {key: getattr(instance.kernel, name) for key, name in _KERNEL.items()}
    row |= {name: getattr(instance, name) for name in _INSTANCE}
    strategy = instance.streamk_reduction_strategy
    row["streamk_reduction_strategy"] = int(strategy) if strategy.isdecimal() and strategy[0] != "0" else strategy
    return row | {name: True for name in _WHERE_TRUE if getattr(instance.kernel, name)}


def _instance(values: Mapping[str, Any], variant: str, ndim: int, layout: str, dtype: str, where: str) -> AnyInstance:
    _keys(values, INSTANCE_KEYS, _OPTIONAL, where)
    kinds, kernel = CkKernel.column_kinds(), {}
    for key, name in {**_KERNEL, **{n: n for n in _WHERE_TRUE}}.items():
        if key in values:
            kernel[name] = _READ[kinds[name]](values, key, where)
    extras = {n: _READ[_EXTRA_KINDS.get(n, "bool")](values, n, where) for n in _INSTANCE if n in values}
    return Instance(variant, dtype, CkKernel(ndim=ndim, **kernel), layout, id=values["id"], **extras)


def _depthwise(values: Mapping[str, Any], variant: str, ndim: int, layout: str, dtype: str, where: str) -> AnyInstance:
    _keys(values, ("id", *DEPTHWISE_SIZES), set(), where)
    sizes = {n: _int(values, n, where) for n in ("id", *DEPTHWISE_SIZES)}
    return DepthwiseInstance(dtype, ndim, layout, **sizes)


def _object(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise KernelError(f"{where} must be an object, got {_kind(value)}")
    return value


def _keys(values: Mapping[str, Any], wanted: Iterable[str], optional: set[str], where: str) -> None:
    missing = [n for n in wanted if n not in values and n not in optional]
    if missing:
        raise KernelError(f"{where}: {', '.join(missing)} is missing")
    unknown = sorted(set(values) - set(wanted) - optional)
    if unknown:
        raise KernelError(f"{where}: {', '.join(map(repr, unknown[:5]))} is no key of it; it would be lost")


def _int(values: Mapping[str, Any], key: str, where: str) -> int:
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise KernelError(f"{where}: {key} must be a whole number, got {_kind(value)}")
    return value


def _bool(values: Mapping[str, Any], key: str, where: str) -> bool:
    value = values[key]
    if not isinstance(value, bool):
        raise KernelError(f"{where}: {key} must be true or false, got {_kind(value)}")
    return value


def _text(values: Mapping[str, Any], key: str, where: str) -> str:
    value = values[key]
    if not isinstance(value, str):
        raise KernelError(f"{where}: {key} must be a text, got {_kind(value)}")
    return value


def _strategy(values: Mapping[str, Any], key: str, where: str) -> str:
    """A text or a number, null where there is none: its meaning is the source's."""
    value = values[key]
    if value is None:
        return ""
    return str(_int(values, key, where)) if isinstance(value, int) else _text(values, key, where)


_EXTRA_KINDS = {"num_wave_groups": "int", "specialization": "str", "streamk_reduction_strategy": "strategy"}
_READ: Mapping[str, Any] = {"int": _int, "bool": _bool, "str": _text, "strategy": _strategy}


def _kind(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
