"""Parsing of a command line: verb, action, overrides, and the flags that every verb takes."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewise.cli._console import Mode
from tilewise.cli._verbs import VERBS, refuse_unread
from tilewise.errors import UsageError

CONFIGS = ("job", "hydra", "all")
INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
_SHORT = {"-h": "--help", "-m": "--multirun", "-c": "--cfg", "-p": "--package", "-i": "--info", "-q": "--quiet"}
_FLAGS = ("--help", "--multirun", "--json", "--quiet", "--resolve")
_OPTIONS = {"--cfg": CONFIGS, "--info": INFOS}


@dataclass(frozen=True)
class Request:
    """A parsed command line.

    Attributes:
        verb: a key of :data:`tilewise.cli._verbs.VERBS`.
        overrides: Hydra overrides, the action among them.
        flags: the flags that are set, by their long names.
        config: the configuration to print instead of running: job, hydra or all; "" for none.
        info: the part of Hydra's composition to print instead of running; "" for none.
        package: the part of the configuration to print; "" for all of it.
    """

    verb: str
    overrides: tuple[str, ...]
    flags: frozenset[str]
    config: str = ""
    info: str = ""
    package: str = ""

    @property
    def mode(self) -> Mode:
        """Return how the verb prints."""
        return "json" if "--json" in self.flags else "quiet" if "--quiet" in self.flags else "text"


def parse(argv: Sequence[str]) -> Request:
    """Parse a command line. ``--key value``, the form of ``mlflow run``, means ``key=value``.

    Raises:
        UsageError: the verb, the action or an option is unknown, or the verb does not read a key.
    """
    name, *words = argv
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        remedy = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(VERBS)}"
        raise UsageError(f"unknown verb {name!r}; {remedy}")
    overrides: list[str] = []
    flags: set[str] = set()
    options: dict[str, str] = {}
    actions: list[str] = []
    rest = _expanded(words)
    for word in rest:
        if word in _FLAGS:
            flags.add(word)
        elif word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            if f"--{key}" in (*_OPTIONS, "--package"):
                options[f"--{key}"] = value
            else:
                overrides.append(f"{key}={value if equals else next(rest, '')}")
        elif "=" in word or word.startswith("~"):
            overrides.append(word)
        else:
            actions.append(word)
    if {"--json", "--quiet"} <= flags:
        raise UsageError("--json and --quiet exclude each other; give one of them")
    overrides += _action(name, actions)
    overrides = [_renamed(name, override) for override in overrides]
    refuse_unread(name, [override.partition("=")[0].lstrip("+~").partition("@")[0] for override in overrides])
    shown = (options.get(option, "") for option in ("--cfg", "--info", "--package"))
    return Request(name, tuple(overrides), frozenset(flags), *shown)


def _expanded(words: Sequence[str]) -> Iterator[str]:
    """Yield the words with short flags spelt out, and the value of an option of Hydra's joined to it by ``=``."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        option, equals, value = _SHORT.get(word, word).partition("=")
        if option == "--package":
            yield f"{option}={value if equals or not rest else rest.popleft()}"
        elif option in _OPTIONS:
            known = _OPTIONS[option]
            if not equals:  # `--cfg` alone means `--cfg job`
                value = rest.popleft() if rest and rest[0] in known else known[0]
            if value not in known:
                raise UsageError(f"{option} must be one of {', '.join(known)}, got {value!r}")
            yield f"{option}={value}"
        else:
            yield _SHORT.get(word, word)


def _renamed(verb: str, override: str) -> str:
    """Return an override with the key's name in conf/, where the verb reads it under another name too."""
    key, equals, value = override.partition("=")
    return f"{VERBS[verb].also.get(key, key)}{equals}{value}"


def _action(name: str, words: Sequence[str]) -> list[str]:
    known = VERBS[name].actions
    if not words:
        return []
    if len(words) > 1 or words[0] not in known:
        expected = f"one of {', '.join(known)}, or key=value" if known else "key=value"
        raise UsageError(f"{name}: unexpected {words[-1]!r}; expected {expected}")
    return [f"action={words[0]}"]
