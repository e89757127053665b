"""Expand, list, count, filter, export, convert and compare kernel instances.

tilewise instances expand input=TRAITS.json arch=gfx950 [filter=EXPR] [output=FILE]
tilewise instances list|count [input=SOURCE] [filter=EXPR]
tilewise instances filter input=SOURCE filter="c.tile_n >= 128 and c.pipeline == 'compv5'" [output=FILE]
tilewise instances export input=SOURCE [filter=EXPR] [output=FILE.json]
tilewise instances convert input=FILE.conf [filter=EXPR] [output=FILE]
tilewise instances compare a=SOURCE b=SOURCE [filter=EXPR]

A SOURCE is a trait JSON, a dispatcher JSON, a .conf of the old profiler, a text file of instance strings, a model's
folder or its pool.json, or a target's name (its shipped pool; without input=, that of target=). FILE.json is written as
a dispatcher JSON, FILE.conf as the Builder's strings, any other FILE as one instance string per line. compare exits
with 1 if the sets differ. See docs/instances.md.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewise.arch import load_arch
from tilewise.cli._console import write_out, write_result
from tilewise.errors import ConfigError, TilewiseError
from tilewise.files import write_text
from tilewise.kernels import Source, compare_sources, filter_fields, parse_filter, read_source
from tilewise.kernels.ck import ConfHeader, builder_string, dispatcher_json_text

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Actions that accept only one kind of source: the kind, and its name in errors.
_KINDS = {"expand": ("traits", "a trait JSON"), "convert": ("conf", "a .conf of the old profiler")}
ACTIONS = ("expand", "list", "count", "filter", "export", "convert", "compare")


def run(cfg: DictConfig) -> None:
    """Run ``cfg.action``.

    Raises:
        ConfigError: the action is unknown, or one of its settings is missing.
        KernelError: a source is invalid.
        TilewiseError: the compared sources differ.
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
    kind, kind_name = _KINDS.get(cfg.action, (source.kind, ""))
    if source.kind != kind:
        raise ConfigError(
            f"{source.where}: instances {cfg.action} takes {kind_name}; this is a source of kind {source.kind}"
        )
    selected = _filtered(source, cfg)
    _report(source)
    if cfg.action == "count":
        write_out(f"{len(selected.entries)}\n")
        write_result({"instances": len(selected.entries)})
    elif cfg.action == "list":
        _print(e.text for e in selected.entries)
        write_result([e.text for e in selected.entries])
    else:
        _write(selected, cfg, len(source.entries))


def _read(where: str, cfg: DictConfig) -> Source:
    return read_source(where, ConfHeader(dtype=cfg.dtype.name), load_arch(cfg.arch.name))


def _filtered(source: Source, cfg: DictConfig) -> Source:
    if not cfg.filter:
        return source
    passes = parse_filter(str(cfg.filter), filter_fields(source))
    return replace(source, entries=tuple(e for e in source.entries if passes(e.fields)))


def _report(source: Source) -> None:
    """Print skipped lines and notes of a source to stderr; stdout is for the instances."""
    for number, reason in source.skipped:
        print(f"{source.where}:{number}: skipped: {reason}", file=sys.stderr)
    for number, remark in source.notes:
        print(f"{source.where}{f':{number}' if number else ''}: {remark}", file=sys.stderr)
    if source.kind == "conf":
        print(f"{source.where}: {len(source.entries)} instances, {len(source.skipped)} lines skipped", file=sys.stderr)


def _write(selected: Source, cfg: DictConfig, n_read: int) -> None:
    if not selected.entries:
        raise ConfigError(f"{selected.where}: the filter matches none of {n_read} instances; nothing is written")
    as_json = str(cfg.output).endswith(".json") if cfg.output else cfg.action == "export"
    if as_json:
        text = dispatcher_json_text(selected.instances)
    elif str(cfg.output or "").endswith(".conf"):
        text = "".join(f"{builder_string(i)}\n" for i in selected.instances)
    else:
        text = "".join(f"{e.text}\n" for e in selected.entries)
    if not cfg.output:
        write_out(text)
        write_result([e.text for e in selected.entries], text if as_json else None)
        return
    write_text(cfg.output, text)
    of = f" of {n_read}" if len(selected.entries) < n_read else ""
    write_out(f"{cfg.output}: {len(selected.entries)}{of} instances\n")
    write_result({"output": str(cfg.output), "instances": len(selected.entries), "read": n_read})


def _compare(cfg: DictConfig) -> None:
    if not (cfg.a and cfg.b):
        raise ConfigError("a and b: both sources are needed, e.g. a=old.conf b=new.json")
    a, b = (_read(str(where), cfg) for where in (cfg.a, cfg.b))
    for source in (a, b):
        _report(source)
    found = compare_sources(_filtered(a, cfg), _filtered(b, cfg))
    _print(f"- {text}" for text in found.only_a)
    _print(f"+ {text}" for text in found.only_b)
    write_result(found)
    common = f"compared by {found.by}: {found.n_common} in both"
    if not found.equal:
        alone = f"{len(found.only_a)} only in a (-), {len(found.only_b)} only in b (+)"
        raise TilewiseError(f"{a.where} and {b.where} differ; {common}, {alone}")
    write_out(f"equal; {common}\n")


def _print(lines: Iterable[str]) -> None:
    write_out("".join(f"{line}\n" for line in lines))
