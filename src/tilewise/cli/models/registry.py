"""Show the registered models: versions, aliases, figures, gate decisions, and the history of production.

tilewise registry [list]
tilewise registry show [target=NAME] [version=N]                    everything about one version
tilewise registry diff [target=NAME] [a=production] [b=candidate]   two versions: parameters, data, pool, figures
tilewise registry check                                             is each production from the gate, with sound files?

Without version= it is the one in production; a= and b= are numbers or aliases. check exits with status 2 if a version
got into production past the gate, or if its files are not those that were published.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from tilewise.cli._console import plain_console, write_result
from tilewise.errors import ArtefactError, ConfigError, UnknownTargetError
from tilewise.registry import (
    CANDIDATE,
    DECISION_TAG,
    PREVIOUS,
    PRODUCTION,
    ROLLED_BACK_TAG,
    GateStanding,
    ModelDifference,
    Version,
    diff_models,
    find_by_alias,
    find_by_number,
    gate_standing,
    hide_password,
    is_missing_store,
    list_aliases,
    list_targets,
    list_versions,
    load_version,
    read_description,
    read_history,
    registry_reader,
    registry_session,
    resolve_tracking_uri,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

_SHOWN_NAMES = 8


def run(cfg: DictConfig) -> None:
    """List every registered model, or show ``cfg.version`` of ``cfg.target``, or compare ``cfg.a`` with ``cfg.b``.

    Raises:
        UnknownTargetError: the registry is empty, or has no such version.
        ConfigError: the version is neither a number nor an alias, or a production did not pass the gate.
        ArtefactError: the files of a version to compare are damaged.
    """
    uri = resolve_tracking_uri(cfg.tracking.uri)
    if is_missing_store(uri):
        raise UnknownTargetError(_nothing_at(uri))
    console = plain_console()
    with registry_reader(uri):
        names = list_targets()
        if not names:
            raise UnknownTargetError(_nothing_at(uri))
        if cfg.action == "show":
            version = _find(cfg.target, names, cfg.version or PRODUCTION)
            _show(console, version)
            write_result(_document(version) | {"description": read_description(version)})
        elif cfg.action == "check":
            _check(console, names)
        elif cfg.action != "diff":
            for name in names:
                _list(console, name)
            write_result({name: [_document(version) for version in list_versions(name)] for name in names})
        else:
            a, b = (_find(cfg.target, names, which) for which in (cfg.a or PRODUCTION, cfg.b or CANDIDATE))
    if cfg.action == "diff":
        with registry_session(uri):
            _diff(console, a, b)


def _list(console: Console, name: str) -> None:
    console.print(name, highlight=False)
    console.print(_table(name))
    production = find_by_alias(name, PRODUCTION)
    standing = None if production is None else gate_standing(production)
    if production is not None and standing is not None and not standing.passed:
        console.print(f"WARNING: {_past_the_gate(production, standing)}", soft_wrap=True, highlight=False)


def _document(version: Version) -> dict[str, object]:
    aliases = sorted(alias for alias, number in list_aliases(version.target).items() if number == version.number)
    return {**dataclasses.asdict(version), "aliases": aliases}


def _nothing_at(uri: str) -> str:
    return f"no model is registered at {hide_password(uri)} yet; tilewise promote registers one"


def _check(console: Console, targets: Sequence[str]) -> None:
    """Print the standing of each production with the gate.

    Raises:
        ConfigError: a production did not pass the gate, or its files are not sound.
    """
    faults = []
    for production in filter(None, (find_by_alias(name, PRODUCTION) for name in targets)):
        standing, fault = gate_standing(production), None
        if not standing.passed:
            fault = _past_the_gate(production, standing)
        else:
            try:
                load_version(production)
            except ArtefactError as e:
                fault = str(e)
        console.print(fault or f"{production}: {standing.reason}, its files are sound", soft_wrap=True, highlight=False)
        faults += [fault] if fault else []
    if faults:
        raise ConfigError(
            f"production must have passed the gate, with sound files, got {len(faults)} that did not: "
            f"{'; '.join(faults)}; put back a version that passed with 'tilewise rollback version=N'"
        )


def _past_the_gate(version: Version, standing: GateStanding) -> str:
    if standing.kind == "rolled back":
        return f"{version} is in production {standing.how}"
    return f"{version} is in production, but nothing shows that it passed the gate: {standing.reason}"


def _find(target: str, known: Sequence[str], which: object) -> Version:
    """Return a version by number or alias."""
    if target not in known:
        raise UnknownTargetError(f"{target} is not registered; known targets are {', '.join(known)}")
    text = str(which)
    if not text.isdigit() and text not in (CANDIDATE, PRODUCTION, PREVIOUS):
        raise ConfigError(f"{text!r} is not a version; give a number, production, candidate or previous")
    found = find_by_number(target, int(text)) if text.isdigit() else find_by_alias(target, text)
    if found is None:
        have = ", ".join(str(v.number) for v in list_versions(target))
        raise UnknownTargetError(f"{target} has no version {text}; it has {have}")
    return found


def _table(target: str) -> Table:
    named = list_aliases(target)
    table = Table()
    for column in ("#", "aliases", "content", "data", "code", "registered", "gate"):
        table.add_column(column, no_wrap=column not in ("aliases", "gate"))
    for version in reversed(list_versions(target)):
        aliases = "\n".join(sorted(alias for alias, number in named.items() if number == version.number))
        hashes = (version.content_hash[:8], *(version.tags.get(k, "")[:8] for k in ("data_hash", "git_revision")))
        table.add_row(str(version.number), aliases, *hashes, _date(version.created_ms), _decision(version.tags))
    return table


def _decision(tags: Mapping[str, str]) -> str:
    rolled_back = tags.get(ROLLED_BACK_TAG)
    return f"rolled back: {rolled_back}" if rolled_back else tags.get(DECISION_TAG, "").partition(":")[0]


def _date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")


def _show(console: Console, version: Version) -> None:
    def say(line: str) -> None:
        console.print(line, soft_wrap=True, highlight=False)

    named = [alias for alias, number in list_aliases(version.target).items() if number == version.number]
    say(f"{version}{': ' if named else ''}{', '.join(sorted(named))}; registered {_date(version.created_ms)}")
    console.print(Markdown(read_description(version)))
    say(f"run {version.run_id or 'unknown'}")
    for key, value in sorted(version.tags.items()):
        say(f"  {key}: {value}")
    log = [e for e in read_history(version.target) if version.number in (e.production, e.previous)]
    if log:
        say("in production:")
    for entry in log:
        if entry.production == version.number:
            say(f"  {entry.action}, instead of {entry.previous or 'nothing'}: {entry.reason}")
        else:
            say(f"  replaced by {entry.production or 'nothing'} ({entry.action}): {entry.reason}")


def _diff(console: Console, a: Version, b: Version) -> None:
    found = diff_models(load_version(a), load_version(b))
    console.print(f"{a} -> {b}", soft_wrap=True, highlight=False)
    write_result({"a": a.number, "b": b.number, **dataclasses.asdict(found)})
    if found.is_empty:
        console.print("nothing differs", highlight=False)
        return
    table = Table("", "")
    for number in (a.number, b.number):
        table.add_column(str(number), justify="right")
    for section in ("parameters", "data", "figures", "libraries"):
        changed: Mapping[str, tuple[object, object]] = getattr(found, section)
        for i, (name, values) in enumerate(changed.items()):
            table.add_row("" if i else section, name, *map(_value, values), end_section=i == len(changed) - 1)
    console.print(table)
    for line in _sets(found):
        console.print(line, soft_wrap=True, highlight=False)


def _sets(found: ModelDifference) -> list[str]:
    lines = []
    for noun, gone, new in (
        ("kernels", found.kernels_gone, found.kernels_new),
        ("features", found.features_gone, found.features_new),
    ):
        for change, names in (("gone", gone), ("new", new)):
            if names:
                more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
                lines.append(f"{len(names)} {noun} {change}: {', '.join(names[:_SHOWN_NAMES])}{more}")
    return lines


def _value(value: object) -> str:
    return "-" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)[:24]
