"""Completion of the command line in bash, zsh and fish: verbs, actions, groups, keys, their values, and files.

``tilewise completion SHELL`` prints a script, which asks ``tilewise completion query LINE`` at each key press.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tilewise.cli._verbs import VERBS, is_read_by
from tilewise.errors import UsageError

# bash breaks words at "=" and ":", so candidates begin after the last one.
_SCRIPTS = {
    "bash": r"""
_tilewise() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} before
    COMPREPLY=($(tilewise completion query "$line" 2>/dev/null))
    before=${line##*[[:space:]]}
    case $before in
        *=*) [[ $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${before%"${before##*=}"}"}") ;;
    esac
}
complete -o nospace -F _tilewise tilewise
""",
    "zsh": r"""
#compdef tilewise
_tilewise() {
    local -a found
    found=("${(@f)$(tilewise completion query "$LBUFFER" 2>/dev/null)}")
    compadd -Q -S '' -- $found
}
compdef _tilewise tilewise
""",
    "fish": r"""
complete -c tilewise -f -a '(tilewise completion query (commandline -cp | string collect) | string trim -r)'
""",
}
_FLAGS = ("--cfg ", "--help ", "--info ", "--json ", "--multirun ", "--package ", "--quiet ")


def complete(words: Sequence[str]) -> str:
    """Return the script of a shell, or the candidates for a line, one per line; a complete word ends in a space.

    Args:
        words: the shell's name; or ``query`` and the line up to the cursor.

    Raises:
        UsageError: the shell is unknown.
    """
    match words:
        case ["query", line]:
            return "".join(f"{candidate}\n" for candidate in sorted(candidates(line)))
        case [shell] if shell in _SCRIPTS:
            return _SCRIPTS[shell].lstrip("\n")
    raise UsageError(f"completion needs a shell, one of {', '.join(_SCRIPTS)}; got {' '.join(words)!r}")


def candidates(line: str) -> set[str]:
    """Return the words that may stand in place of the last one of `line`."""
    _, *words = re.split(r"\s+", line.lstrip()) or [""]
    if len(words) <= 1:
        return _beginning(words[-1] if words else "", [f"{verb} " for verb in (*VERBS, "completion")])
    verb, word = words[0], words[-1]
    if verb == "completion":
        return _beginning(word, [f"{shell} " for shell in _SCRIPTS])
    if verb not in VERBS:
        return set()
    if word.startswith("-"):
        return _beginning(word, _FLAGS)
    if "=" in word:
        return _beginning(word, _values(verb, *word.split("=", 1)))
    actions = [f"{action} " for action in VERBS[verb].actions] if len(words) == 2 else []
    return _beginning(word, [*actions, *_keys(verb, word)])


def _keys(verb: str, word: str) -> Iterator[str]:
    """Yield the keys and groups that `verb` reads, one level of dots at a time."""
    from omegaconf import OmegaConf

    from tilewise.cli.compose import compose, group_options

    parent = word.rpartition(".")[0]
    if not parent:
        yield from (f"{group}=" for group in group_options() if is_read_by(verb, group))
        yield "target="
    cfg = compose()
    node = OmegaConf.select(cfg, parent) if parent else cfg
    for name in map(str, node if OmegaConf.is_dict(node) else ()):
        key = f"{parent}.{name}".removeprefix(".")
        if is_read_by(verb, key) and key != "action":
            yield f"{key}{'.' if OmegaConf.is_dict(node[name]) else '='}"


def _values(verb: str, key: str, value: str) -> Iterator[str]:
    from omegaconf import OmegaConf

    from tilewise.cli.compose import compose, group_options

    options = group_options()
    if key in options:
        yield from (f"{key}={option} " for option in options[key])
        return
    if key == "target":
        yield from (f"{key}={name} " for name in _targets(options))
        return
    default = OmegaConf.select(compose(), key)
    if isinstance(default, bool):
        yield from (f"{key}={text} " for text in ("true", "false"))
    elif isinstance(default, int | float):
        yield f"{key}={default} "
    else:
        yield from (f"{key}={path}" for path in _files(value))


def _targets(options: dict[str, list[str]]) -> Iterator[str]:
    from tilewise.ops import OPS

    for op in options["op"]:
        for variant in OPS[op].variants:
            yield from (f"{op}_{variant}_{dtype}_{arch}" for dtype in options["dtype"] for arch in options["arch"])


def _files(start: str) -> Iterator[str]:
    folder = Path(start.rpartition("/")[0] or ("/" if start.startswith("/") else "."))
    prefix = start.rpartition("/")[0] + "/" if "/" in start else ""
    if folder.is_dir():
        yield from (f"{prefix}{path.name}{'/' if path.is_dir() else ' '}" for path in folder.iterdir())


def _beginning(word: str, words: Iterable[str]) -> set[str]:
    return {candidate for candidate in words if candidate.startswith(word)}
