"""The entry point: ``tilewise VERB [ACTION] [key=value ...]``.

A verb's module is imported only when the verb runs, so that ``tilewise select`` does not load the training libraries.
Errors are reported in one line.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tilewise
from tilewise.cli._verbs import VERBS, refuse_unread
from tilewise.errors import PromotionRefusedError, TilewiseError, UnfinishedError, UsageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["main", "reporting_errors"]


_USAGE = """\
usage: tilewise VERB [ACTION] [key=value ...]
       tilewise VERB -m key=a,b ...    one run for each combination (Hydra multirun)
       tilewise VERB --cfg [key=value ...]   print the configuration and stop
       tilewise VERB --help"""

_SETTINGS = """\
Settings are Hydra overrides of the files in conf/: group=option, or key=value with dots (model.num_leaves=31).
target=NAME chooses op, variant, dtype and arch at once; params=FILE starts from a composed file.
TILEWISE_DEBUG=1 shows the traceback of an error."""

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_REFUSED, EXIT_UNFINISHED, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


@dataclass(frozen=True)
class _Request:
    """A parsed command line."""

    verb: str
    overrides: tuple[str, ...]
    multirun: bool = False
    show_config: bool = False
    help: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    0: done. 1: another error. 2: a mistake of the caller. 3: the gate refused. 4: measuring stopped before its end.
    """
    return reporting_errors(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def reporting_errors(action: Callable[[], int | None]) -> int:
    """Run `action`, print an error as one line on stderr, and return the exit status.

    The status is the return value of `action`, 0 without one. TILEWISE_DEBUG=1 lets errors through.
    """
    try:
        return action() or EXIT_OK
    except KeyboardInterrupt:
        print("tilewise: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails
        return EXIT_OK
    except Exception as error:
        if os.environ.get("TILEWISE_DEBUG", "0") not in ("", "0"):
            raise
        kind = "refused" if isinstance(error, PromotionRefusedError) else "error"  # a refusal is a regular result
        print(f"tilewise: {kind}: {_one_line(error)}", file=sys.stderr)
        return _exit_status(error)


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return EXIT_OK if argv else EXIT_USAGE
    if argv[0] == "--version":
        print(f"tilewise {tilewise.__version__}")
        return EXIT_OK
    request = _parse(argv)
    if request.help:
        print(_verb_help(request.verb))
    elif request.multirun:
        from tilewise.cli._multirun import multirun

        multirun(request.verb, request.overrides, _verb(request.verb))
    else:
        _single(request)
    return EXIT_OK


def _parse(argv: Sequence[str]) -> _Request:
    """Parse a command line. ``--key value``, the form of ``mlflow run``, means ``key=value``."""
    name, *words = argv
    if name not in VERBS:
        raise UsageError(f"unknown verb {name!r}; known are {', '.join(VERBS)}")
    overrides: list[str] = []
    flags: set[str] = set()
    actions: list[str] = []
    rest = iter(words)
    for word in rest:
        if word in ("-h", "--help", "-m", "--multirun", "--cfg"):
            flags.add({"-h": "--help", "-m": "--multirun"}.get(word, word))
        elif word.startswith("--"):
            key, equals, value = word[2:].partition("=")
            overrides.append(f"{key}={value if equals else next(rest, '')}")
        elif "=" in word or word.startswith("~"):
            overrides.append(word)
        else:
            actions.append(word)
    overrides += _action(name, actions)
    refuse_unread(name, [override.partition("=")[0].lstrip("+~").partition("@")[0] for override in overrides])
    return _Request(name, tuple(overrides), "--multirun" in flags, "--cfg" in flags, "--help" in flags)


def _action(name: str, words: Sequence[str]) -> list[str]:
    known = VERBS[name].actions
    if not words:
        return []
    if len(words) > 1 or words[0] not in known:
        expected = f"one of {', '.join(known)}, or key=value" if known else "key=value"
        raise UsageError(f"{name}: unexpected {words[-1]!r}; expected {expected}")
    return [f"action={words[0]}"]


def _single(request: _Request) -> None:
    from tilewise.cli.compose import compose, to_text

    cfg = compose(request.overrides)
    if request.show_config:
        print(to_text(cfg), end="")
    else:
        _verb(request.verb)(cfg)


def _verb(name: str) -> Callable[[DictConfig], None]:
    run: Callable[[DictConfig], None] = importlib.import_module(f"tilewise.cli.{VERBS[name].package}.{name}").run
    return run


def _exit_status(error: Exception) -> int:
    if isinstance(error, PromotionRefusedError):
        return EXIT_REFUSED  # a regular result, which a pipeline may handle
    if isinstance(error, UnfinishedError):
        return EXIT_UNFINISHED  # the same command continues
    return EXIT_USAGE if isinstance(error, UsageError) else EXIT_ERROR


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TilewiseError | OSError):
        return text
    return f"{type(error).__name__}: {text} (a fault of tilewise; TILEWISE_DEBUG=1 shows where)"


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = [f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [f"tilewise {tilewise.__version__}: {tilewise.__doc__}", "", _USAGE, "", "verbs:", *verbs, "", _SETTINGS]
    )


def _verb_help(name: str) -> str:
    from tilewise.cli.compose import group_options

    actions = [f"actions: {', '.join(VERBS[name].actions)}", ""] if VERBS[name].actions else []
    groups = [f"  {group:<10}  {', '.join(options)}" for group, options in group_options().items()]
    usage = _USAGE.replace("VERB", name).replace(" [ACTION]", " ACTION" if VERBS[name].actions else "")
    reads = f"reads: {', '.join(VERBS[name].reads)}"
    return "\n".join([usage, "", _docstring(name), "", *actions, reads, "", "groups:", *groups, "", _SETTINGS])


def _docstring(name: str) -> str:
    """Return the docstring of a verb's module from its source, so that help imports no training library."""
    source = (Path(__file__).parent / VERBS[name].package / f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(source)) or VERBS[name].summary


if __name__ == "__main__":
    raise SystemExit(main())
