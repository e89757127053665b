"""Checks of a request before its verb is imported: a mistake is answered at once, not after seconds of imports.

The verbs and the packages below them repeat the checks that they depend on; here only the moment is earlier, and a
missing file has one message and one exit status wherever it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tilewise.checks import require
from tilewise.errors import ConfigError, DataError
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

# Keys that name files or folders to read, by verb and action. A registered model (models:/...) is not a file.
_FILES: Mapping[str, tuple[str, ...]] = {
    "collect": ("input", "collect.simulate", "collect.like", "collect.libraries"),
    "plan": ("data", "plan.requests"),
    "ingest": ("input",),
    "data prepare": ("input|data",),
    "data merge": ("input",),
    "data describe": ("input|data",),
    "data export": ("input|data",),
    "data publish": ("input|data",),
    "train": ("data", "warm_start"),
    "evaluate": ("model_dir", "data"),
    "compare": ("a", "b", "data"),
    "score": ("predictions", "data"),
    "promote": ("model_dir", "data", "gate.shadow"),
    "shadow": ("input",),
    "explain": ("input",),
    "select": ("input", "problems"),
    "cache merge": ("input",),
    "cache prune": ("input",),
    "cache problems": ("input",),
    "cache export": ("input",),
    "validate": ("input", "problems", "plan.requests", "collect.simulate"),
    "search": ("model_dir", "input", "collect.simulate"),
}
_REMEDIES = {"model_dir": "; `tilewise train` writes one, or give another model_dir"}
_READS_PROBLEM = ("select", "explain")
_READS_MODEL_SETTINGS = ("train",)
_READS_LIMITS = ("promote", "shadow rollback")


def check_request(verb: str, cfg: DictConfig) -> None:
    """Check the settings and files of `verb`, as far as that needs no library that takes long to import.

    Raises:
        ConfigError: a setting is out of its range.
        DataError: a file or folder to read is missing.
        ProblemError: the problem is impossible.
    """
    command = f"{verb} {cfg.action}" if cfg.action else verb
    if command in _READS_PROBLEM and cfg.problem is not None and not cfg.input:  # input= may be of another target
        _check_problem(cfg)
    if command in _READS_MODEL_SETTINGS:
        from omegaconf import OmegaConf

        from tilewise.train import settings_from_config

        settings_from_config(cast("dict[str, object]", OmegaConf.to_container(cfg, resolve=True)))
        n = cfg.sample.problems
        require("sample.problems must be a whole number of at least 1, or null", n is None or n >= 1, n)
    require("seed must be a whole number of at least 0", cfg.seed >= 0, cfg.seed)
    if command in _READS_LIMITS:
        from tilewise.gate import Thresholds

        Thresholds.from_config(cfg.gate, Target.parse(cfg.target))
    for key, path in _named_files(_files_of(command, cfg), cfg):
        if not path.startswith("models:/") and not Path(path).exists():
            raise DataError(f"{key}={path}: no such file or folder{_REMEDIES.get(key, '')}")


def _files_of(command: str, cfg: DictConfig) -> tuple[str, ...]:
    """Return the keys that name files; predictions that state their efficiency are compared without measurements."""
    if command == "compare" and {Path(str(where)).suffix for where in (cfg.a, cfg.b)} & {".csv", ".parquet"}:
        return ("a", "b")
    return _FILES.get(command, ())


def _check_problem(cfg: DictConfig) -> None:
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(cfg.problem, resolve=True) if OmegaConf.is_dict(cfg.problem) else None
    if not isinstance(values, dict):
        raise ConfigError(f"problem must be a mapping of dimensions such as '{{N:32,C:256}}', got {cfg.problem!r}")
    Target.parse(cfg.target).problem(cast("dict[str, int | str]", values))


def _named_files(keys: tuple[str, ...], cfg: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield key and path of each file that the request names; of ``a|b``, the first that is set."""
    from omegaconf import OmegaConf

    for alternatives in keys:
        for key in alternatives.split("|"):
            value = OmegaConf.select(cfg, key)
            if value is not None:
                paths = list(value) if OmegaConf.is_list(value) else [value]
                yield from ((key, str(path)) for path in paths)
                break
