"""Kernel instances: expand, list, count, filter, export, convert and compare them.

tilewise instances expand input=TRAITS.json arch=gfx950 [filter=EXPR] [output=FILE]
tilewise instances list|count [input=SOURCE] [filter=EXPR]
tilewise instances filter input=SOURCE filter="c.tile_n >= 128 and c.pipeline == 'compv5'" [output=FILE]
tilewise instances export input=SOURCE [filter=EXPR] [output=FILE.json]
tilewise instances convert input=FILE.conf [filter=EXPR] [output=FILE]
tilewise instances compare a=SOURCE b=SOURCE [filter=EXPR]

A SOURCE is a trait JSON, a dispatcher JSON, a .conf of the old profiler, a text file of instance strings, a model's
folder or its pool.json, or a target's name (its shipped pool; without input=, that of target=). FILE.json gets the
dispatcher's JSON, any other FILE an instance string a line. compare exits with 1 where the sets differ.
docs/instances.md tells more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewise.arch import load_arch
from tilewise.errors import ConfigError, TilewiseError
from tilewise.files import write_text
from tilewise.kernels.ck.conf import Header
from tilewise.kernels.ck.dispatcher_json import dumps
from tilewise.kernels.filters import parse_filter
from tilewise.kernels.sources import Source, compare, known_fields, read_source

if TYPE_CHECKING:
    from omegaconf import DictConfig

# What an action's input must be, where not anything will do.
_KINDS = {"expand": ("traits", "a trait JSON"), "convert": ("conf", "a .conf of the old profiler")}
ACTIONS = ("expand", "list", "count", "filter", "export", "convert", "compare")


def run(cfg: DictConfig) -> None:
    """Do ``cfg.action``.

    Raises:
        ConfigError: there is no such action, or a setting it needs is missing.
        KernelError: a source is wrong.
        TilewiseError: two compared sources differ.
    """
    if cfg.action not in ACTIONS:
        raise ConfigError(f"instances needs an action, one of {', '.join(ACTIONS)}; got {cfg.action!r}")
    if cfg.action == "compare":
        _compare(cfg)
        return
    if cfg.action in ("expand", "filter", "export", "convert") and not cfg.input:
        raise ConfigError(f"input: missing; instances {cfg.action} reads a file")
    if cfg.action == "filter" and not cfg.filter:
        raise ConfigError("filter: missing; give an expression, e.g. filter='c.tile_n >= 128'")
    source = _read(str(cfg.input or cfg.target), cfg)
    kind, what = _KINDS.get(cfg.action, (source.kind, ""))
    if source.kind != kind:
        raise ConfigError(f"{source.where}: instances {cfg.action} takes {what}, this is a source of {source.kind}")
    kept = _filtered(source, cfg)
    _report(source)
    if cfg.action == "count":
        print(len(kept.entries))
    elif cfg.action == "list":
        _print(e.text for e in kept.entries)
    else:
        _write(kept, cfg, len(source.entries))


def _read(where: str, cfg: DictConfig) -> Source:
    return read_source(where, Header(dtype=cfg.dtype.name), load_arch(cfg.arch.name))


def _filtered(source: Source, cfg: DictConfig) -> Source:
    if not cfg.filter:
        return source
    passes = parse_filter(str(cfg.filter), known_fields(source))
    return replace(source, entries=tuple(e for e in source.entries if passes(e.fields)))


def _report(source: Source) -> None:
    """What a reader should know of a source; not on standard output, which others read."""
    for number, reason in source.skipped:
        print(f"{source.where}:{number}: skipped: {reason}", file=sys.stderr)
    for number, remark in source.notes:
        print(f"{source.where}{f':{number}' if number else ''}: {remark}", file=sys.stderr)
    if source.kind == "conf":
        print(f"{source.where}: {len(source.entries)} instances, {len(source.skipped)} lines skipped", file=sys.stderr)


def _write(kept: Source, cfg: DictConfig, n_read: int) -> None:
    if not kept.entries:
        raise ConfigError(f"{kept.where}: none of {n_read} instances is left to write")
    as_json = str(cfg.output).endswith(".json") if cfg.output else cfg.action == "export"
    text = dumps(kept.instances) if as_json else "".join(f"{e.text}\n" for e in kept.entries)
    if not cfg.output:
        sys.stdout.write(text)
        return
    write_text(cfg.output, text)
    of = f" of {n_read}" if len(kept.entries) < n_read else ""
    print(f"{cfg.output}: {len(kept.entries)}{of} instances")


def _compare(cfg: DictConfig) -> None:
    if not (cfg.a and cfg.b):
        raise ConfigError("a and b: both sources are needed, e.g. a=old.conf b=new.json")
    a, b = (_read(str(where), cfg) for where in (cfg.a, cfg.b))
    for source in (a, b):
        _report(source)
    found = compare(_filtered(a, cfg), _filtered(b, cfg))
    _print(f"- {text}" for text in found.only_a)
    _print(f"+ {text}" for text in found.only_b)
    told = f"compared by {found.by}: {found.n_common} in both"
    if not found.equal:
        alone = f"{len(found.only_a)} only in a (-), {len(found.only_b)} only in b (+)"
        raise TilewiseError(f"{a.where} and {b.where} differ; {told}, {alone}")
    print(f"equal; {told}")


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
