"""The table of verbs: package, summary, actions and the configuration keys that each verb reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tilewise.errors import UsageError

_SETS = {"stages": "targets"}  # groups that set a key of another name
# Every verb accepts the parts of a target, even where it does not read all of them.
COMMON = ("op", "variant", "dtype", "arch", "target", "params", "experiment", "hydra")


@dataclass(frozen=True)
class Verb:
    """A verb of the command line.

    Attributes:
        package: the package below :mod:`tilewise.cli` that holds its module.
        summary: its line in the overview.
        reads: configuration keys that it reads in addition to :data:`COMMON`; a key stands for all keys below it.
        actions: second words of the command; empty where the verb takes none.
        also: other names of keys that it reads.
    """

    package: str
    summary: str
    reads: tuple[str, ...]
    actions: tuple[str, ...] = ()
    also: Mapping[str, str] = field(default_factory=dict)


VERBS: dict[str, Verb] = {
    "collect": Verb(
        "measuring",
        "measure kernels on this machine's GPUs",
        ("ck", "cluster", "collect", "data", "holdout", "input", "output", "seed"),
    ),
    "plan": Verb(
        "measuring",
        "propose the next measurements, within a budget of seconds",
        ("cluster", "collect", "data", "holdout", "model_dir", "output", "plan", "seed", "threads"),
    ),
    "ingest": Verb(
        "measuring",
        "import measurements of other tools, or any table of an op of your own",
        ("data", "hardware", "ingest", "input", "output"),
        also={name: f"ingest.{name}" for name in ("problem", "config", "latency", "unit", "flops", "bytes")},
    ),
    "data": Verb(
        "measuring",
        "check, merge, describe and publish measurements",
        ("chunk_rows", "data", "holdout", "input", "out", "output", "targets"),
        ("prepare", "merge", "describe", "export", "publish"),
    ),
    "instances": Verb(
        "measuring",
        "expand, list, filter, convert and compare sets of kernels",
        ("a", "b", "filter", "input", "output"),
        ("expand", "list", "count", "filter", "export", "convert", "compare"),
    ),
    "ck": Verb(
        "measuring",
        "build libraries of CK Tile's kernels from a checkout, and write their manifest",
        ("ck", "collect", "filter", "input", "output"),
        ("build", "link"),
    ),
    "train": Verb(
        "models",
        "fit a target's model and log it to MLflow",
        (
            "chunk_rows", "cluster", "data", "holdout", "model", "model_dir", "n_splits", "out", "register", "sample",
            "seed", "threads", "tracking", "tune", "tuned", "warm_start",
        ),
        also={"targets": "model.extra_labels"},
    ),
    "evaluate": Verb(
        "models",
        "score a model on the holdout problems",
        ("data", "holdout", "html", "model_dir", "out", "output", "reports", "slices"),
    ),
    "compare": Verb(
        "models",
        "compare two models on the same problems",
        ("a", "b", "compare", "data", "holdout", "output", "seed", "tracking"),
    ),
    "score": Verb(
        "models",
        "score selections for the holdout problems, whatever made them",
        ("data", "holdout", "predictions"),
    ),
    "promote": Verb(
        "models",
        "let the gate decide whether a model replaces @production",
        ("data", "gate", "holdout", "model_dir", "register", "reports", "run", "tracking"),
        ("production", "canary"),
    ),
    "rollback": Verb("models", "put @previous back into @production", ("reason", "tracking", "version")),
    "shadow": Verb(
        "models",
        "report the observations of two models by dispatchers, or roll back by them",
        ("compare", "gate", "input", "out", "tracking"),
        ("report", "rollback"),
    ),
    "drift": Verb(
        "models",
        "report how far requests have moved from the training data, and the measured regret",
        ("gate", "input", "model_dir", "out", "register", "reports", "tracking"),
    ),
    "registry": Verb(
        "models",
        "list the registered models, show or compare their versions",
        ("a", "b", "tracking", "version"),
        ("list", "show", "diff", "check"),
    ),
    "select": Verb(
        "runtime",
        "pick the kernel for one problem, or for each of a file",
        ("input", "kernels", "output", "problem", "problems", "tracking"),
        also={"model_dir": "input"},  # its default, models/TARGET, would hide the registry
    ),
    "explain": Verb(
        "runtime",
        "explain why a kernel is or was selected",
        ("data", "html", "input", "model_dir", "output", "problem", "tracking"),
    ),
    "cache": Verb(
        "runtime",
        "list, merge and export the measurements and requests of dispatchers",
        ("collect.kernel", "collect.run_id", "data", "input", "model_dir", "output"),
        ("list", "merge", "prune", "problems", "export"),
    ),
    "compile": Verb(
        "runtime",
        "compile a target's kernels ahead of their use, and carry them to other machines",
        ("collect", "holdout", "input", "model_dir", "output"),
    ),
    "validate": Verb(
        "measuring",
        "check a model on the hardware: training shapes, unseen shapes, gradients",
        (
            "a", "collect", "data", "gate.aims", "holdout", "input", "mode", "model_dir", "out", "output",
            "plan.requests", "problems", "reports", "seed", "tracking", "validate",
        ),
    ),
    "search": Verb(
        "measuring",
        "look for configurations beyond the pool",
        ("collect", "data", "holdout", "input", "model_dir", "output", "problem", "search"),
    ),
    "init": Verb("project", "lay out a project around an op of your own", ("input", "out")),
}  # fmt: skip


def refuse_unread(verb: str, keys: Iterable[str]) -> None:
    """Refuse a key that `verb` would ignore.

    Args:
        verb: a key of :data:`VERBS`.
        keys: dotted keys that the caller sets; a group counts as the key of its name. Keys that conf/ lacks pass:
            composing refuses them and proposes a similar key.

    Raises:
        UsageError: another verb reads the key, and this one does not.
    """
    for key in keys:
        if not is_read_by(verb, key) and any(is_read_by(other, key) for other in VERBS):
            raise UsageError(f"{verb} does not read {key!r}; it reads {', '.join(keys_of(verb))}")


def keys_of(verb: str) -> tuple[str, ...]:
    """Return the keys that `verb` reads, by all their names."""
    return tuple(sorted({*VERBS[verb].reads, *VERBS[verb].also}))


def is_read_by(verb: str, key: str) -> bool:
    """Return whether `verb` reads the dotted key, or keys below it."""
    return _covers(_read_by(verb), _SETS.get(key, key))


def _read_by(verb: str) -> tuple[str, ...]:
    return (*COMMON, *VERBS[verb].reads, *(("action",) if VERBS[verb].actions else ()))


def _covers(read: Iterable[str], key: str) -> bool:
    """Return whether `read` has the key, a key above it or a key below it."""
    return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in read)
