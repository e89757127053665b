"""Sources of kernel sets: files of every format, pools and targets, all read in one way.

The format is recognised from the content: trait JSON, dispatcher JSON, a pool's JSON, old ``.conf`` lines, or canonical
instance strings, one per line. A model's folder stands for its pool, a target's name for the pool that ships for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilewise.arch import HardwareProfile
from tilewise.errors import ConfigError, DataError, KernelError
from tilewise.kernels._backends import backend
from tilewise.kernels._contract import KernelBase
from tilewise.kernels._pool import Pool, load_pool
from tilewise.kernels.ck import (
    AnyInstance,
    ConfHeader,
    convert_conf,
    distinct_instances,
    expand_gemm_sweep,
    expand_sweep,
    get_instance_string,
    instances_from_document,
    is_dispatcher_document,
    is_gemm_sweep,
    is_sweep,
    parse_instance_string,
)
from tilewise.ops import Target

Kind = Literal["traits", "dispatcher", "conf", "strings", "pool"]

MAX_BYTES = 64 << 20  # hundreds of thousands of instances; a larger file is something else


@dataclass(frozen=True)
class Entry:
    """One kernel of a source.

    Attributes:
        text: its canonical string.
        name: its kernel name, which may omit parameters.
        fields: its attributes in filters.
        instance: CK Tile's instance; None for a kernel of another backend.
    """

    text: str
    name: str
    fields: Mapping[str, object]
    instance: AnyInstance | None


@dataclass(frozen=True)
class Source:
    """The kernels of a file.

    Attributes:
        where: the file, for messages.
        kind: its format. A pool knows only the parameters in names.
        entries: each kernel once.
        skipped: (line number, reason) of unusable lines.
        notes: (line number, remark); 0 stands for the whole file.
    """

    where: str
    kind: Kind
    entries: tuple[Entry, ...]
    skipped: tuple[tuple[int, str], ...] = ()
    notes: tuple[tuple[int, str], ...] = ()

    @property
    def instances(self) -> tuple[AnyInstance, ...]:
        """CK Tile's instances.

        Raises:
            KernelError: a kernel is of another backend.
        """
        found = [e.instance for e in self.entries if e.instance is not None]
        if len(found) < len(self.entries):
            raise KernelError(f"{self.where}: kernels of other backends than CK Tile have no instance form")
        return tuple(found)


@dataclass(frozen=True)
class Comparison:
    """The differences of two sources.

    Attributes:
        by: the compared parts: whole instances, or names if a source is a pool.
        n_common: number of kernels in both.
        only_a, only_b: texts in one source alone, sorted.
    """

    by: Literal["instance", "name"]
    n_common: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """True if both sources are the same set."""
        return not (self.only_a or self.only_b)


def compare_sources(a: Source, b: Source) -> Comparison:
    """Compare two sources as sets; order and ids do not matter."""
    by: Literal["instance", "name"] = "name" if "pool" in (a.kind, b.kind) else "instance"
    left, right = ({e.name if by == "name" else e.text for e in s.entries} for s in (a, b))
    return Comparison(by, len(left & right), tuple(sorted(left - right)), tuple(sorted(right - left)))


def read_source(where: str, header: ConfHeader, arch: HardwareProfile) -> Source:
    """Read a source.

    Args:
        where: a file, a model's folder, or a target's name.
        header: type, dimensions and layout of ``.conf`` lines that omit them, and the type of a sweep of matrix
            products.
        arch: its rules expand a sweep and check the lines of a ``.conf``. If its kernels are not CK Tile's, only the
            rules of all archs check a ``.conf``.

    Raises:
        ConfigError: the file does not exist, or a sweep needs another arch.
        KernelError: the content is wrong; the message names the file, and the line or instance.
    """
    path = Path(where)
    if path.is_dir():
        path = path / "pool.json"
    if not path.is_file():
        return _shipped(where)
    text = _text(path)
    try:
        if text.lstrip()[:1] in ("{", "["):
            return _json(str(path), text, arch, header.dtype)
        if _is_conf(text):
            return _conf(path, text, header, arch)
        return _strings(str(path), text)
    except KernelError as e:
        raise KernelError(f"{path}: {e}") from e


def of_instances(where: str, kind: Kind, instances: Iterable[AnyInstance], **more: Any) -> Source:
    """Return a source of CK Tile's instances, each once."""
    each = tuple(instances)
    once = distinct_instances(each)
    notes = more.pop("notes", ())
    if len(once) < len(each):
        notes = (*notes, (0, f"{len(each) - len(once)} instances repeat another one"))
    entries = tuple(Entry(get_instance_string(i), i.name, i.fields, i) for i in once)
    return Source(where, kind, entries, notes=notes, **more)


def filter_fields(source: Source) -> frozenset[str]:
    """Return the attributes that filters may use for kernels of this source."""
    return frozenset(name for entry in source.entries for name in entry.fields)


def _json(where: str, text: str, arch: HardwareProfile, dtype: str) -> Source:
    try:
        document = json.loads(text, object_pairs_hook=_no_repeats)
    except RecursionError as e:
        raise KernelError("not JSON: nested too deeply") from e
    except ValueError as e:
        raise KernelError(f"not JSON: {e}") from e
    if is_sweep(document):
        if backend(arch.backend).instance_of is None:
            remedy = "give arch=gfx942 or arch=gfx950"
            raise ConfigError(f"{where}: a sweep needs an arch with CK Tile kernels, got {arch.name}; {remedy}")
        gemm = is_gemm_sweep(document)
        return of_instances(
            where, "traits", expand_gemm_sweep(document, dtype, arch) if gemm else expand_sweep(document, arch)
        )
    if is_dispatcher_document(document):
        return of_instances(where, "dispatcher", instances_from_document(document))
    if isinstance(document, dict) and {"kernels", "hash"} <= set(document):
        return _pool(where, Pool.from_dict(document))
    raise KernelError("a JSON of no known format: neither trait_config, instances nor a pool's kernels")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:40]!r} occurs twice in one object")
        found[key] = value
    return found


def _is_conf(text: str) -> bool:
    """Return whether the first line that is not a comment belongs to the old profiler."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(";")), "")
    return "<" in first or re.fullmatch(r"[\d,\s]+", first) is not None


def _conf(path: Path, text: str, header: ConfHeader, arch: HardwareProfile) -> Source:
    rules = arch if backend(arch.backend).instance_of is not None else None
    converted = convert_conf(text, ConfHeader.of_file(path.name, header), rules)
    return of_instances(str(path), "conf", converted.instances, skipped=converted.skipped, notes=converted.notes)


def _strings(where: str, text: str) -> Source:
    found = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if line:
            try:
                found.append(parse_instance_string(line))
            except KernelError as e:
                raise KernelError(f"line {number}: {e}") from e
    if not found:
        raise KernelError("no kernels: the file is empty")
    return of_instances(where, "strings", found)


def _shipped(where: str) -> Source:
    try:
        target = Target.parse(where)
    except ConfigError as e:
        raise ConfigError(f"{where}: this is neither a file nor a target's name") from e
    return _pool(where, load_pool(target))


def _pool(where: str, pool: Pool) -> Source:
    instance_of = pool.backend.instance_of
    if instance_of is None:
        target = {"op": pool.op, "variant": pool.variant, "dtype": pool.dtype}
        fields = ({**kernel.to_dict(), **target, "name": name} for kernel, name in _named_kernels(pool))
        return Source(where, "pool", tuple(Entry(str(f["name"]), str(f["name"]), f, None) for f in fields))
    instances = (instance_of(pool.variant, pool.dtype, kernel) for kernel in pool.kernels)
    entries = (
        Entry(get_instance_string(instance), name, instance.fields, instance)
        for instance, name in zip(instances, pool.names, strict=True)
    )
    return Source(where, "pool", tuple(entries))


def _named_kernels(pool: Pool) -> Iterator[tuple[KernelBase, str]]:
    return zip(pool.kernels, pool.names, strict=True)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES >> 20} MiB; a file of instances is smaller")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise DataError(f"{path}: not a text file: {e.reason} at byte {e.start}") from e
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror}") from e
