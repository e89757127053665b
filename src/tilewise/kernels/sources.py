"""Where sets of kernels come from: files of every format, pools, targets; one way to read them all.

The format is recognised from the content: trait JSON, dispatcher JSON, a pool's JSON, old ``.conf`` lines, or canonical
instance strings, one a line. A model's folder stands for its pool, a target's name for the pool that is shipped for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tilewise.arch import HardwareProfile
from tilewise.errors import ConfigError, DataError, KernelError
from tilewise.kernels.ck import dispatcher_json, traits
from tilewise.kernels.ck.conf import Header, convert
from tilewise.kernels.ck.instance import (
    AnyInstance,
    Instance,
    distinct,
    get_instance_string,
    parse_instance_string,
)
from tilewise.kernels.ck.kernel import CkKernel
from tilewise.kernels.pool import Pool, load_pool
from tilewise.ops import Target

Kind = Literal["traits", "dispatcher", "conf", "strings", "pool"]

MAX_BYTES = 64 << 20  # hundreds of thousands of instances; more is no file of them


@dataclass(frozen=True)
class Entry:
    """One kernel of a source.

    Attributes:
        text: its canonical string.
        name: its kernel name, which may say less.
        fields: what a filter may ask for.
        instance: CK Tile's instance; None for a kernel of another backend.
    """

    text: str
    name: str
    fields: Mapping[str, Any]
    instance: AnyInstance | None


@dataclass(frozen=True)
class Source:
    """The kernels of a file.

    Attributes:
        where: the file, for messages.
        kind: its format. A pool knows no more than names tell.
        entries: each kernel once.
        skipped: (line number, reason) of what could not be used.
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
            raise KernelError(f"{self.where}: these kernels are not CK Tile's, so they have no such form")
        return tuple(found)


@dataclass(frozen=True)
class Comparison:
    """What two sources do not have in common.

    Attributes:
        by: whether whole instances were compared or, where a source is a pool, names.
        n_common: how many are in both.
        only_a, only_b: texts that one of them has alone, sorted.
    """

    by: Literal["instance", "name"]
    n_common: int
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def equal(self) -> bool:
        """Whether both are the same set."""
        return not (self.only_a or self.only_b)


def compare(a: Source, b: Source) -> Comparison:
    """The differences of two sources as sets; order and ids do not matter."""
    by: Literal["instance", "name"] = "name" if "pool" in (a.kind, b.kind) else "instance"
    left, right = ({e.name if by == "name" else e.text for e in s.entries} for s in (a, b))
    return Comparison(by, len(left & right), tuple(sorted(left - right)), tuple(sorted(right - left)))


def read_source(where: str, header: Header, arch: HardwareProfile) -> Source:
    """Read a source.

    Args:
        where: a file, a model's folder, or a target's name.
        header: type, dimensions and layout of ``.conf`` lines that do not tell them.
        arch: whose rules expand a sweep, and which lines of a ``.conf`` break them. Where its kernels are not CK
            Tile's, only what holds for every arch is asked of a ``.conf``.

    Raises:
        ConfigError: there is no such file, or a sweep needs another arch.
        KernelError: the content is wrong; names file, and line or instance.
    """
    path = Path(where)
    if path.is_dir():
        path = path / "pool.json"
    if not path.is_file():
        return _shipped(where)
    text = _text(path)
    try:
        if text.lstrip()[:1] in ("{", "["):
            return _json(str(path), text, arch)
        if _is_conf(text):
            return _conf(path, text, header, arch)
        return _strings(str(path), text)
    except KernelError as e:
        raise KernelError(f"{path}: {e}") from e


def of_instances(where: str, kind: Kind, instances: Iterable[AnyInstance], **more: Any) -> Source:
    """A source of CK Tile's instances, each once."""
    each = tuple(instances)
    once = distinct(each)
    notes = more.pop("notes", ())
    if len(once) < len(each):
        notes = (*notes, (0, f"{len(each) - len(once)} instances repeat another one"))
    entries = tuple(Entry(get_instance_string(i), i.name, i.fields, i) for i in once)
    return Source(where, kind, entries, notes=notes, **more)


def known_fields(source: Source) -> frozenset[str]:
    """What filters may ask kernels of this source for."""
    return frozenset(name for entry in source.entries for name in entry.fields)


def _json(where: str, text: str, arch: HardwareProfile) -> Source:
    try:
        document = json.loads(text, object_pairs_hook=_no_repeats)
    except RecursionError as e:
        raise KernelError("not JSON that can be read: nested too deeply") from e
    except ValueError as e:
        raise KernelError(f"not JSON: {e}") from e
    if traits.is_traits(document):
        if arch.backend != "ck_tile":
            remedy = "give arch=gfx942 or arch=gfx950"
            raise ConfigError(f"{where}: a sweep needs an arch with kernels of CK Tile, got {arch.name}; {remedy}")
        return of_instances(where, "traits", traits.expand(document, arch))
    if dispatcher_json.is_dispatcher(document):
        return of_instances(where, "dispatcher", dispatcher_json.from_document(document))
    if isinstance(document, dict) and {"kernels", "hash"} <= set(document):
        return _pool(where, Pool.from_dict(document))
    raise KernelError("a JSON of no known format: neither trait_config, instances nor a pool's kernels")


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"key {key[:40]!r} stands twice in one object")
        found[key] = value
    return found


def _is_conf(text: str) -> bool:
    """Whether the first line that is no comment is one of the old profiler."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    first = next((line for line in lines if line and not line.startswith(";")), "")
    return "<" in first or re.fullmatch(r"[\d,\s]+", first) is not None


def _conf(path: Path, text: str, header: Header, arch: HardwareProfile) -> Source:
    rules = arch if arch.backend == "ck_tile" else None
    converted = convert(text, Header.of_file(path.name, header), rules)
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
        raise ConfigError(f"{where}: no such file, and no target's name either") from e
    return _pool(where, load_pool(target))


def _pool(where: str, pool: Pool) -> Source:
    as_entry: Callable[[Any, str], Entry] = _ck_entry(pool) if pool.backend.name == "ck_tile" else _other_entry(pool)
    return Source(where, "pool", tuple(map(as_entry, pool.kernels, pool.names)))


def _ck_entry(pool: Pool) -> Callable[[CkKernel, str], Entry]:
    def entry(kernel: CkKernel, name: str) -> Entry:
        instance = Instance(pool.variant, pool.dtype, kernel)
        return Entry(get_instance_string(instance), name, instance.fields, instance)

    return entry


def _other_entry(pool: Pool) -> Callable[[Any, str], Entry]:
    target = {"op": pool.op, "variant": pool.variant, "dtype": pool.dtype}
    return lambda kernel, name: Entry(name, name, {**kernel.to_dict(), **target, "name": name}, None)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise DataError(f"{path}: larger than {MAX_BYTES >> 20} MiB; this is no file of instances")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as e:
        raise DataError(f"{path}: not a text file: {e.reason} at byte {e.start}") from e
    except OSError as e:
        raise DataError(f"{path}: cannot be read: {e.strerror}") from e
