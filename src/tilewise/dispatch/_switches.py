"""Switches: the settings of a dispatcher, read from keyword arguments and ``TILEWISE_*`` variables.

A keyword argument overrides the variable, and the variable overrides the default. docs/dispatching.md lists them all.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self

from tilewise.errors import ConfigError

_PREFIX = "TILEWISE_"
_MAX_S = threading.TIMEOUT_MAX  # 292 years on Linux; a thread that waits longer ends with an OverflowError
_MAX_MB = 1e9
_SECONDS = f"a number of seconds, 0 or more, at most {_MAX_S:.0f}"
_MEGABYTES = f"a number of megabytes above 0, at most {_MAX_MB:g}"

Value = str | int | float | tuple[str, ...]
Parser = Callable[[str], Value]


def _one_of(*choices: str) -> Parser:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(p for p in (part.strip() for part in text.split(",")) if p)


def _number(kind: type[int] | type[float], rule: str, least: float, most: float = float("inf")) -> Parser:
    def parse(text: str) -> int | float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(rule) from None
        if not least <= value <= most:
            raise ValueError(rule)
        return value

    return parse


def _address(text: str) -> str:
    if text and not text.startswith(("http://", "https://")):
        raise ValueError("an address such as https://relay.example.org:5050")
    return text


def _switch(default: Value, parse: Parser) -> Any:
    """Return a dataclass field parsed from text; a ValueError of `parse` states the rule that the text breaks."""
    return field(default=default, metadata={"parse": parse})


@dataclass(frozen=True)
class Switches:
    """The settings of a dispatcher.

    Attributes:
        model: ``auto``; ``require``: only a model may decide, and loading fails without one; ``off``: no model decides.
        kernel: patterns (``*`` and ``?``) of configurations or names: only kernels that match one may be selected.
        forbid: patterns: kernels that match one are never selected.
        vendor: whether the calls that PyTorch makes by itself (cuDNN, cuBLAS) may be selected: ``on``; ``off``: never;
            ``only``: nothing else may.
        measure: when to measure a problem on the spot: ``off``; ``missing``: without a model; ``far``: also far from
            the training set; ``unsure``: also where several kernels are too close to call; ``always``.
        measure_top: number of best ranked kernels to measure at most; 0: as many as the confidence asks for, or all.
        simulate: replay table that answers in place of a GPU.
        network: ``on``: ask the registry at load; ``later``: start with the local copy and ask in the background;
            ``off``: use the local copy only.
        refresh_s: seconds between checks for a new model; 0: only when :meth:`Dispatcher.refresh` is called.
        push: address of a relay that announces moves of aliases (docs/fleet.md); "": none. `refresh_s` stays the
            fall-back while the relay is away.
        canary: share of the hosts that a canary serves, where the registry has one (docs/fleet.md).
        canary_key: decides together with the target whether this process belongs to that share; "": the host's name.
        journal: file of the decision log; "": no log.
        journal_share: share of the decisions that are logged.
        journal_mb: size at which the decision log is rotated; one older file is kept.
        record: file of the request log, for tuning offline; while requests are logged, problems are not measured.
        decisions: number of problems whose decision is kept in memory.
        shadow: a second model whose kernels are timed beside the launched ones: an alias, a version's number, or a
            model's folder; ``off``: none. See :mod:`tilewise.dispatch.shadowing`.
        shadow_budget: share of the GPU's time that shadowing may take.
        shadow_journal: file of the shadow's observations; "": ``shadow.jsonl`` in the cache.

    Raises:
        ConfigError: a value is out of its range; names the switch.
    """

    model: str = _switch("auto", _one_of("auto", "require", "off"))
    kernel: tuple[str, ...] = _switch((), _patterns)
    forbid: tuple[str, ...] = _switch((), _patterns)
    vendor: str = _switch("on", _one_of("on", "off", "only"))
    measure: str = _switch("missing", _one_of("off", "missing", "far", "unsure", "always"))
    measure_top: int = _switch(0, _number(int, "a whole number of at least 0", 0))
    simulate: str = _switch("", str)
    network: str = _switch("on", _one_of("on", "later", "off"))
    refresh_s: float = _switch(0.0, _number(float, _SECONDS, 0, _MAX_S))
    push: str = _switch("", _address)
    canary: float = _switch(0.0, _number(float, "a share between 0 and 1", 0, 1))
    canary_key: str = _switch("", str)
    journal: str = _switch("", str)
    journal_share: float = _switch(1.0, _number(float, "a share between 0 and 1", 0, 1))
    journal_mb: float = _switch(16.0, _number(float, _MEGABYTES, 1e-3, _MAX_MB))
    record: str = _switch("", str)
    decisions: int = _switch(65536, _number(int, "a whole number of at least 2", 2))
    shadow: str = _switch("off", str)
    shadow_budget: float = _switch(0.005, _number(float, "a share between 0 and 1", 0, 1))
    shadow_journal: str = _switch("", str)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            object.__setattr__(self, f.name, _parse(f, text, f.name))

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **values: object) -> Self:
        """Read ``TILEWISE_<NAME>`` variables; keyword values other than None override them.

        Args:
            environment: the variables; None for those of this process.
            values: switches by name.

        Raises:
            ConfigError: a value is out of its range, or a switch is unknown; names the variable or switch.
        """
        environment = os.environ if environment is None else environment
        chosen = _known(values)
        for f in dataclasses.fields(cls):
            variable = _PREFIX + f.name.upper()
            text = environment.get(variable, "")
            if text and f.name not in chosen:
                chosen[f.name] = _parse(f, text, variable)
        return cls(**chosen)

    def but(self, **values: object) -> Self:
        """Return a copy with other values; values of None change nothing.

        Raises:
            ConfigError: a value is out of its range, or a switch is unknown; names the switch.
        """
        return dataclasses.replace(self, **_known(values))

    def allows(self, config: str, name: str, in_pytorch: bool = False) -> bool:
        """Return whether a kernel may be selected.

        Args:
            config: its configuration.
            name: its name.
            in_pytorch: whether PyTorch makes such calls by itself (:attr:`tilewise.kernels.Backend.in_pytorch`).
        """
        if self.vendor == ("off" if in_pytorch else "only"):
            return False
        if self.kernel and not _matches(self.kernel, config, name):
            return False
        return not _matches(self.forbid, config, name)


def _known(values: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are not None.

    Raises:
        ConfigError: a switch is unknown.
    """
    names = [f.name for f in dataclasses.fields(Switches)]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ConfigError(f"unknown switch {unknown[0]!r}; known are {', '.join(names)}")
    return {name: value for name, value in values.items() if value is not None}


def _parse(f: dataclasses.Field[Any], text: str, label: str) -> Value:
    parse: Parser = f.metadata["parse"]
    try:
        return parse(text)
    except ValueError as e:
        raise ConfigError(f"{label}={text}: must be {e}") from None


def _matches(patterns: tuple[str, ...], config: str, name: str) -> bool:
    return any(fnmatchcase(config, p) or fnmatchcase(name, p) for p in patterns)
