"""The entry point: ``tilewise VERB [ACTION] [key=value ...]``.

A verb's module is imported only when the verb runs, so that ``tilewise select`` does not load the training libraries.
Errors are reported in one line.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tilewise
from tilewise.cli._console import output_mode, result_written
from tilewise.cli._request import Request, parse
from tilewise.cli._verbs import VERBS, keys_of
from tilewise.errors import PromotionRefusedError, TilewiseError, UnfinishedError, UsageError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["main", "reporting_errors"]


_USAGE = """\
usage: tilewise VERB [ACTION] [key=value ...]
       tilewise VERB -m key=a,b ...          one run for each combination (Hydra multirun)
       tilewise VERB --cfg [key=value ...]   print the configuration and stop
       tilewise VERB --help"""

_SETTINGS = """\
Settings are Hydra overrides of the files in conf/: group=option, or key=value with dots (model.num_leaves=31).
target=NAME chooses op, variant, dtype and arch at once; params=FILE starts from a composed file.
Quote braces, brackets and spaces for the shell: 'problem={M:64,N:64,K:64}' 'collect.devices=[0,1]'

--json         print one JSON document instead of prose; an error is {"error": ..., "status": ...}
--quiet, -q    print nothing; only the exit status is left
--cfg, -c      print the configuration and stop: job (default), hydra or all; --package KEY prints a part of it
--info, -i     print the files that it is composed of: defaults, defaults-tree, searchpath, plugins, config or all
TILEWISE_DEBUG=1 shows the traceback of an error."""

_COMPLETION = "tilewise completion SHELL   print the completion for bash, zsh or fish"

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_REFUSED, EXIT_UNFINISHED, EXIT_INTERRUPTED = 0, 1, 2, 3, 4, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    docs/configuration.md has the table of exit statuses.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    return reporting_errors(lambda: _run(words), as_json="--json" in words)


def reporting_errors(action: Callable[[], int | None], *, as_json: bool = False) -> int:
    """Run `action`, print an error as one line on stderr, and return the exit status.

    The status is the return value of `action`, 0 without one. TILEWISE_DEBUG=1 lets errors through.

    Args:
        action: the command.
        as_json: whether to print the error as JSON on stdout, too, unless `action` has printed a result there.
    """
    try:
        with _warnings_in_one_line():
            return action() or EXIT_OK
    except KeyboardInterrupt:
        print("tilewise: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails
        return EXIT_OK
    except Exception as error:
        if _is_debugging():
            raise
        kind = "refused" if isinstance(error, PromotionRefusedError) else "error"  # a refusal is a regular result
        print(f"tilewise: {kind}: {_one_line(error)}", file=sys.stderr)
        status = _exit_status(error)
        if as_json and not result_written():
            print(json.dumps({"error": _one_line(error), "status": status}))
        return status


def _is_debugging() -> bool:
    return os.environ.get("TILEWISE_DEBUG", "0") not in ("", "0")


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print warnings of this package without file and source line; those of libraries keep them."""
    full, package = warnings.formatwarning, Path(tilewise.__file__).parent

    def brief(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if _is_debugging() or not Path(filename).is_relative_to(package):
            return full(message, category, filename, lineno, line)
        return f"tilewise: {' '.join(str(message).split())}\n"

    warnings.formatwarning = brief
    try:
        yield
    finally:
        warnings.formatwarning = full


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_overview())
        return EXIT_OK if argv else EXIT_USAGE
    if argv[0] == "--version":
        print(f"tilewise {tilewise.__version__}")
        return EXIT_OK
    if argv[0] == "completion":
        from tilewise.cli._completion import complete

        sys.stdout.write(complete(argv[1:]))
        return EXIT_OK
    request = parse(argv)
    with output_mode(request.mode):
        _answer(request)
    return EXIT_OK


def _answer(request: Request) -> None:
    if "--help" in request.flags:
        print(_verb_help(request.verb))
    elif request.info or request.config not in ("", "job"):
        _print_by_hydra(request)
    elif "--multirun" in request.flags and not request.config:
        from tilewise.cli._multirun import multirun

        multirun(request.verb, request.overrides, _verb(request.verb))
    else:
        _single(request)


def _single(request: Request) -> None:
    from tilewise.cli._checks import check_request
    from tilewise.cli.compose import compose, part_of, to_text
    from tilewise.cli.project.own_ops import ANNOUNCING, announce

    known = request.verb not in ANNOUNCING
    cfg = compose(request.overrides if known else announce(request.verb, request.overrides))
    if request.config or request.package:
        print(to_text(part_of(cfg, request.package)), end="")
    else:
        check_request(request.verb, cfg)
        _verb(request.verb)(cfg)


def _print_by_hydra(request: Request) -> None:
    """Let Hydra print its own configuration, or the files of the composition."""
    from tilewise.cli._multirun import run_hydra
    from tilewise.cli.compose import clear_errors, expand

    shown = ["--info", request.info] if request.info else ["--cfg", request.config]
    package = ["--package", request.package] if request.package else []
    shown += ["--resolve"] if "--resolve" in request.flags else []
    with clear_errors():
        run_hydra(request.verb, [*shown, *package, *expand(request.overrides)], lambda _: None)


def _verb(name: str) -> Callable[[DictConfig], None]:
    run: Callable[[DictConfig], None] = importlib.import_module(f"tilewise.cli.{VERBS[name].package}.{name}").run
    return run


def _exit_status(error: Exception) -> int:
    if isinstance(error, PromotionRefusedError):
        return EXIT_REFUSED  # a regular result, which a pipeline may handle
    if isinstance(error, UnfinishedError):
        return EXIT_UNFINISHED  # the same command continues
    return EXIT_USAGE if isinstance(error, UsageError | FileNotFoundError | NotADirectoryError) else EXIT_ERROR


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, TilewiseError | OSError):
        return text
    return f"{type(error).__name__}: {text} (a fault of tilewise; TILEWISE_DEBUG=1 shows where)"


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = [f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items()]
    return "\n".join(
        [
            f"tilewise {tilewise.__version__}: {tilewise.__doc__}",
            "",
            _USAGE,
            "",
            "verbs:",
            *verbs,
            "",
            _COMPLETION,
            "",
            _SETTINGS,
        ]
    )


def _verb_help(name: str) -> str:
    from tilewise.cli.compose import group_options

    actions = [f"actions: {', '.join(VERBS[name].actions)}", ""] if VERBS[name].actions else []
    groups = [f"  {group:<10}  {', '.join(options)}" for group, options in group_options().items()]
    usage = _USAGE.replace("VERB", name).replace(" [ACTION]", " ACTION" if VERBS[name].actions else "")
    reads = f"reads: {', '.join(keys_of(name))}"
    return "\n".join([usage, "", _docstring(name), "", *actions, reads, "", "groups:", *groups, "", _SETTINGS])


def _docstring(name: str) -> str:
    """Return the docstring of a verb's module from its source, so that help imports no training library."""
    source = (Path(__file__).parent / VERBS[name].package / f"{name}.py").read_text()
    return ast.get_docstring(ast.parse(source)) or VERBS[name].summary


if __name__ == "__main__":
    raise SystemExit(main())
