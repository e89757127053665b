"""Show the registered models: versions, aliases, figures, gate decisions, and the history of production.

tilewise registry [list]
tilewise registry show [target=NAME] [version=N]                    everything about one version
tilewise registry diff [target=NAME] [a=production] [b=candidate]   two versions: parameters, data, pool, figures
tilewise registry check                                             is each production from the gate, with sound files?

Without version= it is the one in production; a= and b= are numbers or aliases. check exits with status 2 if a version
got into production past the gate, if its files are not those that were published, if production was removed, or if an
alias was moved by hand. Models that are not of tilewise are left out.
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
from tilewise.ops import Target
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
    last_production,
    list_aliases,
    list_histories,
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
_PUT_BACK = "put back a version that passed with 'tilewise rollback version=N'"


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
        names = _checked_targets() if cfg.action == "check" else list_targets()
        if not names:
            raise UnknownTargetError(_nothing_at(uri))
        if cfg.action == "show":
            version = _find(cfg.target, names, cfg.version, PRODUCTION)
            _show(console, version)
            write_result(_document(version) | {"description": read_description(version)})
        elif cfg.action == "check":
            _check(console, names)
        elif cfg.action != "diff":
            for name in names:
                _list(console, name)
            write_result({name: [_document(version) for version in list_versions(name)] for name in names})
        else:
            a, b = (_find(cfg.target, names, *which) for which in ((cfg.a, PRODUCTION), (cfg.b, CANDIDATE)))
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


def _checked_targets() -> list[str]:
    """Return the registered models, and the targets whose model was deleted while their history is left."""
    return sorted({*list_targets(), *list_histories()})


def _check(console: Console, targets: Sequence[str]) -> None:
    """Print the standing of each production with the gate.

    Raises:
        ConfigError: a production did not pass the gate, its files are not sound, it is missing, or an alias was moved.
    """
    faults = []
    for name in targets:
        state, found = _state(name)
        for line in found or [state]:
            console.print(line, soft_wrap=True, highlight=False)
        faults += found
    if faults:
        raise ConfigError(
            "production must have passed the gate, with sound files, and the aliases must be those of the history, "
            f"got {len(faults)} faults: {'; '.join(faults)}"
        )


def _state(target: str) -> tuple[str, list[str]]:
    """Return in words the state of a target's production, and everything that is wrong with its aliases."""
    if not _is_own(target):
        return f"{target}: not a model of tilewise, so it is not checked", []
    production = find_by_alias(target, PRODUCTION)
    if production is None:
        last = last_production(target)
        missing = f"{target}: the alias production is missing, and version {last} was in production last"
        remedy = "set it in MLflow to a sound version again"
        return f"{target}: nothing is in production yet", [] if last is None else [f"{missing}; {remedy}"]
    standing = gate_standing(production)
    faults = _moved_aliases(target)
    if not standing.passed:
        return "", [f"{_past_the_gate(production, standing)}; {_PUT_BACK}", *faults]
    try:
        load_version(production)
    except ArtefactError as e:
        faults.insert(0, f"{e}; {_PUT_BACK}")
    return f"{production}: {standing.reason}, its files are sound", faults


def _is_own(target: str) -> bool:
    """Return whether a registered model is of tilewise: other teams may use the same server, and the same alias."""
    try:
        Target.parse(target)
    except ConfigError:  # or of an op that is not known here
        return bool(read_history(target)) or any(version.content_hash for version in list_versions(target))
    return True


def _moved_aliases(target: str) -> list[str]:
    """Return in words the aliases that name other versions than the last entry of the history."""
    history = read_history(target)
    if not history or not history[-1].applied:  # the history is lost, or an alias is about to be moved
        return []
    named, recorded = list_aliases(target), history[-1].aliases
    if recorded[PRODUCTION] is None:  # a removal was noticed; setting the alias by hand is the remedy
        del recorded[PRODUCTION]
    moved = [
        f"{target}: the alias {alias} was moved by hand: it names version {named[alias]}, by the history it is "
        f"{number or 'not set'}; set it in MLflow as it was, or let 'tilewise promote' or 'tilewise rollback' record it"
        for alias, number in recorded.items()
        if alias in named and named[alias] != number
    ]
    return moved if moved and read_history(target) == history else []  # else another process has just moved them


def _past_the_gate(version: Version, standing: GateStanding) -> str:
    if standing.kind == "rolled back":
        return f"{version} is in production {standing.how}"
    return f"{version} is in production, but nothing shows that it passed the gate: {standing.reason}"


def _find(target: str, known: Sequence[str], which: object, default: str) -> Version:
    """Return a version by number or alias; without `which`, the one with the alias `default`."""
    if target not in known:
        raise UnknownTargetError(f"{target} is not registered; known targets are {', '.join(known)}")
    text = default if which is None else str(which)
    if not text.isdecimal() and text not in (CANDIDATE, PRODUCTION, PREVIOUS):
        raise ConfigError(f"{text!r} is not a version; give a number, production, candidate or previous")
    found = find_by_number(target, int(text)) if text.isdecimal() else find_by_alias(target, text)
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
