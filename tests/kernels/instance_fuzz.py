"""What every reader of instances promises of any bytes at all, checked on damaged files; the long run uses it too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from kernels.ck.lines import KINDS
from mutate import Damage, damaged
from tilewise.arch import load_arch
from tilewise.errors import ConfigError, KernelError, UsageError
from tilewise.kernels.ck.conf import Conversion, Header, convert
from tilewise.kernels.ck.dispatcher_json import dumps, from_document
from tilewise.kernels.ck.instance import get_instance_string, parse_instance_string
from tilewise.kernels.ck.kernel import CkKernel
from tilewise.kernels.filters import parse_filter
from tilewise.kernels.pool import Pool, dump_json
from tilewise.kernels.sources import Source, compare, known_fields, read_source

READERS = ("traits", "dispatcher", "conf", "strings", "pool", "filter")

LOOKED_AT = 500  # instances of a file, one by one; a sweep that lost its limits has thousands

_ARCH, _HEADER = load_arch("gfx950"), Header()
_SWEEP = {
    "variant": "bwd_weight",
    "trait_config": {
        "data_type": {"values": ["bf16"]},
        "tile_m": {"values": [64, 128]},
        "tile_n": {"values": [64]},
        "tile_k": {"values": [32]},
        "pipeline": {"values": ["compv3", "mem"]},
        "scheduler": {"values": ["intrawave"]},
        "double_smem_buffer": {"values": [False]},
        "store_immediate": {"values": [False]},
        "num_groups_to_merge": {"values": [1, 2]},
        "two_stage": {"values": [True]},
    },
}
_FILTER = "c.tile_n >= 128 and not (c.pipeline in ('compv3', 'mem') or c.tile_m * 2 % 3 == -1) or c.two_stage"


@cache
def sample(reader: str) -> bytes:
    """The file that is damaged."""
    instances = convert("\n".join(KINDS.values()), _HEADER).instances
    texts = {
        "traits": lambda: json.dumps(_SWEEP, indent=1),
        "dispatcher": lambda: dumps(instances),
        "conf": lambda: "# lines of every kind\n" + "".join(f"{line}\n" for line in KINDS.values()),
        "strings": lambda: "".join(f"{get_instance_string(i)}\n" for i in instances),
        "pool": lambda: dump_json(_pool()),
        "filter": lambda: _FILTER,
    }
    return texts[reader]().encode()


@cache
def whole(reader: str, folder: Path) -> Source:
    """The instances of the undamaged file."""
    return _read(sample(reader), folder)


def check(reader: str, damages: Sequence[Damage], folder: Path) -> str:
    """Damage a file, read it, and hold the reader to its promises; what came of it: "refused" or "read".

    Promised: no error but one that says what is wrong with which file; every instance stands once, and its text and its
    JSON give it back; a line of a ``.conf`` that became no instance is told with its number; a pool is read whole or
    not at all; a source equals itself.
    """
    content = damaged(sample(reader), damages)
    if reader == "filter":
        return _check_filter(content, folder)
    try:
        source = _read(content, folder)
    except UsageError as e:
        message = str(e)
        assert str(folder) in message, f"an error must name the file: {message}"
        return "refused"
    texts = [e.text for e in source.entries]
    assert len(set(texts)) == len(texts)
    assert compare(source, source).equal
    known = known_fields(source)
    assert all(set(e.fields) <= known for e in source.entries)
    for entry in source.entries[:LOOKED_AT]:
        assert entry.instance is not None
        assert parse_instance_string(entry.text) == entry.instance
    with suppress(KernelError):  # a matrix product, for which the format has no place
        some = source.instances[:LOOKED_AT]
        assert set(from_document(json.loads(dumps(some)))) == set(some)
    if source.kind == "conf":
        _check_lines(content, source)
    if source.kind == "pool":
        assert [e.name for e in source.entries] == [e.name for e in whole("pool", folder).entries]
    return "read"


def _check_lines(content: bytes, source: Source) -> None:
    """Each line is an instance, skipped with a reason, or a comment."""
    text = content.decode("utf-8-sig")
    done: Conversion = convert(text, _HEADER, _ARCH)
    assert done.skipped == source.skipped
    assert all(reason for _, reason in done.skipped)
    told = sorted([number for numbers in done.lines for number in numbers] + [number for number, _ in done.skipped])
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    assert told == [number for number, line in enumerate(lines, 1) if line and not line.startswith(";")]


def _check_filter(content: bytes, folder: Path) -> str:
    source = whole("dispatcher", folder)
    try:
        passes = parse_filter(content.decode(errors="replace"), known_fields(source))
        kept = [passes(entry.fields) for entry in source.entries if "tile_m" in entry.fields]
    except ConfigError as e:
        message = str(e)
        assert message.startswith("filter: "), message
        return "refused"
    assert set(kept) <= {True, False}
    return "read"


def _read(content: bytes, folder: Path) -> Source:
    path = folder / "input"
    path.write_bytes(content)
    return read_source(str(path), _HEADER, _ARCH)


def _pool() -> Pool:
    kernels = tuple(
        CkKernel(tile, 64, 64, pipeline, 2, double_smem_buffer=pipeline == "compv4")
        for tile in (16, 64, 128)
        for pipeline in ("compv3", "compv4")
    )
    return Pool("grouped_conv", "forward", "bf16", kernels)
