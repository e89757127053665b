"""Guarantees of every reader of instances for any bytes, checked on damaged files; the long run uses them too."""

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
from tilewise.kernels import Pool, Source, compare_sources, filter_fields, parse_filter, pool_json, read_source
from tilewise.kernels.ck import (
    CkKernel,
    ConfHeader,
    convert_conf,
    dispatcher_json_text,
    get_instance_string,
    parse_instance_string,
)
from tilewise.kernels.ck._conf import Conversion
from tilewise.kernels.ck._dispatcher_json import instances_from_document

READERS = ("traits", "dispatcher", "conf", "strings", "pool", "filter")

LOOKED_AT = 500  # instances of a file, one by one; a sweep that lost its limits has thousands

_ARCH, _HEADER = load_arch("gfx950"), ConfHeader()
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
    """Return the file to damage."""
    instances = convert_conf("\n".join(KINDS.values()), _HEADER).instances
    texts = {
        "traits": lambda: json.dumps(_SWEEP, indent=1),
        "dispatcher": lambda: dispatcher_json_text(instances),
        "conf": lambda: "# lines of every kind\n" + "".join(f"{line}\n" for line in KINDS.values()),
        "strings": lambda: "".join(f"{get_instance_string(i)}\n" for i in instances),
        "pool": lambda: pool_json(_pool()),
        "filter": lambda: _FILTER,
    }
    return texts[reader]().encode()


@cache
def whole(reader: str, folder: Path) -> Source:
    """Return the instances of the undamaged file."""
    return _read(sample(reader), folder)


def check(reader: str, damages: Sequence[Damage], folder: Path) -> str:
    """Check the guarantees of a reader on the damaged file; see :func:`read`."""
    return read(reader, damaged(sample(reader), damages), folder)


def read(reader: str, content: bytes, folder: Path) -> str:
    """Check the guarantees of a reader on any content; return "refused" or "read".

    Errors name the file and the fault. Every instance occurs once, and its text and JSON restore it. A line of a
    ``.conf`` that gives no instance is reported with its number. A pool is read whole or not at all. A source equals
    itself.
    """
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
    assert compare_sources(source, source).equal
    known = filter_fields(source)
    assert all(set(e.fields) <= known for e in source.entries)
    for entry in source.entries[:LOOKED_AT]:
        assert entry.instance is not None
        assert parse_instance_string(entry.text) == entry.instance
    with suppress(KernelError):  # a matrix product, for which the format has no place
        some = source.instances[:LOOKED_AT]
        assert set(instances_from_document(json.loads(dispatcher_json_text(some)))) == set(some)
    if source.kind == "conf":
        _check_lines(content, source)
    if source.kind == "pool":
        assert [e.name for e in source.entries] == [e.name for e in whole("pool", folder).entries]
    return "read"


def _check_lines(content: bytes, source: Source) -> None:
    """Check that each line is an instance, is skipped with a reason, or is a comment."""
    text = content.decode("utf-8-sig")
    done: Conversion = convert_conf(text, _HEADER, _ARCH)
    assert done.skipped == source.skipped
    assert all(reason for _, reason in done.skipped)
    reported = sorted([number for numbers in done.lines for number in numbers] + [number for number, _ in done.skipped])
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    assert reported == [number for number, line in enumerate(lines, 1) if line and not line.startswith(";")]


def _check_filter(content: bytes, folder: Path) -> str:
    source = whole("dispatcher", folder)
    try:
        passes = parse_filter(content.decode(errors="replace"), filter_fields(source))
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
