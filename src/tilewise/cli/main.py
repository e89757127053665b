"""``tilewise VERB [ACTION] [key=value ...]``: finds the verb, composes its configuration, reports errors in one line.

A verb's module is imported only when it runs: ``tilewise select`` must not pay for the training libraries.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tilewise
from tilewise.errors import PromotionRefusedError, TilewiseError, UnfinishedError, UsageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["VERBS", "Verb", "main", "reporting_errors"]


@dataclass(frozen=True)
class Verb:
    """One verb: what the overview says of it, and the second words it takes."""

    summary: str
    actions: tuple[str, ...] = ()


VERBS: dict[str, Verb] = {
    "collect": Verb("measure kernels on this machine's GPUs"),
    "plan": Verb("propose what to measure next, within a budget of seconds"),
    "ingest": Verb("import measurements that others made"),
    "data": Verb("check, merge and describe measurements", ("prepare", "merge", "describe")),
    "instances": Verb(
        "expand, list, filter, convert and compare sets of kernels",
        ("expand", "list", "count", "filter", "export", "convert", "compare"),
    ),
    "train": Verb("fit a target's model and log it to MLflow"),
    "evaluate": Verb("score a model on the holdout problems"),
    "compare": Verb("compare two models on the same problems"),
    "promote": Verb("let the gate decide whether a model replaces @production"),
    "rollback": Verb("put @previous back into @production"),
    "shadow": Verb("what dispatchers observed of two models; roll back by it", ("report", "rollback")),
    "registry": Verb("list the registered models, show or compare their versions", ("list", "show", "diff")),
    "select": Verb("pick the kernel for one problem"),
    "explain": Verb("tell why a kernel is selected, or was"),
    "cache": Verb("what dispatchers measured and were asked for", ("list", "merge", "prune", "problems", "export")),
    "validate": Verb("check a model on the hardware: training shapes, unseen shapes, gradients"),
    "search": Verb("look for configurations beyond the pool"),
}

_USAGE = """\
usage: tilewise VERB [ACTION] [key=value ...]
       tilewise VERB -m key=a,b ...    one run for each combination (Hydra multirun)
       tilewise VERB --cfg [key=value ...]   print the configuration and stop
       tilewise VERB --help"""

_SETTINGS = """\
Settings are Hydra overrides of the files in conf/: group=option, or key=value with dots (model.num_leaves=31).
Besides, target=NAME chooses op, variant, dtype and arch at once, params=FILE starts from a composed file.
TILEWISE_DEBUG=1 shows the traceback of an error."""

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_REFUSED, EXIT_UNFINISHED, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


@dataclass(frozen=True)
class _Request:
    """One command line, taken apart."""

    verb: str
    overrides: tuple[str, ...]
    multirun: bool = False
    show_config: bool = False
    help: bool = False


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status.

    0 done, 2 the caller's mistake, 3 the gate refused, 4 measuring stopped before it was done, 1 other errors.
    """
    return reporting_errors(lambda: _run(list(sys.argv[1:] if argv is None else argv)))


def reporting_errors(action: Callable[[], int | None]) -> int:
    """Do `action`; an error is one line on stderr. Returns the exit status, that of `action` if it has one."""
    try:
        return action() or EXIT_OK
    except KeyboardInterrupt:
        print("tilewise: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at exit would complain
        return EXIT_OK
    except Exception as error:
        if os.environ.get("TILEWISE_DEBUG", "0") not in ("", "0"):
            raise
        print(f"tilewise: error: {_one_line(error)}", file=sys.stderr)
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
        _multirun(request)
    else:
        _single(request)
    return EXIT_OK


def _parse(argv: Sequence[str]) -> _Request:
    """Take a command line apart; ``--key value`` is ``key=value``, as ``mlflow run`` hands parameters on."""
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


def _multirun(request: _Request) -> None:
    """One run for each combination, through Hydra's launcher and sweeper."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    from tilewise.arch import conf_dir
    from tilewise.cli.compose import clear_errors, compose

    params = [override for override in request.overrides if override.startswith("params=")]
    swept = [override for override in request.overrides if override not in params]

    def job(_: DictConfig) -> None:
        _verb(request.verb)(compose([*params, *HydraConfig.get().overrides.task]))

    sys.argv = [f"tilewise {request.verb}", "--multirun", *swept]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hand errors on to main() instead of printing them and leaving
    with clear_errors():
        hydra.main(version_base="1.3", config_path=str(conf_dir().resolve()), config_name="config")(job)()


def _verb(name: str) -> Callable[[DictConfig], None]:
    run: Callable[[DictConfig], None] = importlib.import_module(f"tilewise.cli.{name}").run
    return run


def _exit_status(error: Exception) -> int:
    if isinstance(error, PromotionRefusedError):
        return EXIT_REFUSED  # a result, which a pipeline may take as one
    if isinstance(error, UnfinishedError):
        return EXIT_UNFINISHED  # the same command goes on
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
    return "\n".join([usage, "", _docstring(name), "", *actions, "groups:", *groups, "", _SETTINGS])


def _docstring(name: str) -> str:
    """The docstring of a verb's module, read from its source: help should not import a training library."""
    spec = importlib.util.find_spec(f"tilewise.cli.{name}")
    source = Path(spec.origin).read_text() if spec and spec.origin else ""
    return ast.get_docstring(ast.parse(source)) or VERBS[name].summary


if __name__ == "__main__":
    raise SystemExit(main())
