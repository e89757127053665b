"""What a user may force or forbid: one frozen object, from keyword arguments and ``TILEWISE_*`` variables.

docs/dispatching.md has the table. A keyword argument beats the variable; what neither says is the default below.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Self

from tilewise.errors import ConfigError

_PREFIX = "TILEWISE_"


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return read


def _patterns(text: str) -> tuple[str, ...]:
    return tuple(p for p in (part.strip() for part in text.split(",")) if p)


def _number(kind: Callable[[str], Any], what: str, least: float, most: float = float("inf")) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(what) from None
        if not least <= value <= most:
            raise ValueError(what)
        return value

    return read


def _switch(default: Any, read: Callable[[str], Any]) -> Any:
    """A field whose variable is `read` from text; a ValueError says what it must be."""
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True)
class Switches:
    """What is forced or forbidden.

    Attributes:
        model: ``auto``; ``require``: only a model decides, without one loading fails; ``off``: no model is asked.
        kernel: patterns (``*`` and ``?``) of configurations or names: only kernels that match one may be selected.
        forbid: patterns: kernels that match one are never selected.
        measure: when problems are measured on the spot: ``off``; ``missing``: where no model serves; ``far``: also
            far from all that the model learnt from; ``unsure``: also where several kernels are too close to call;
            ``always``.
        measure_top: so many of the best ranked are measured at most; 0: as many as trust asks for, or all.
        simulate: a recorded table that answers in place of a GPU.
        network: ``on``: ask the registry at load; ``later``: begin with the local copy, ask in the background; ``off``.
        refresh_s: seconds between looks for a new model; 0: only when :meth:`Dispatcher.refresh` is called.
        journal: file to which decisions are written; "": none.
        journal_share: of the decisions that are written.
        journal_mb: size at which the journal is rotated; one older file is kept.
        record: file that lists the problems asked for, to be tuned offline; nothing is measured then.
        decisions: problems whose decision is kept in memory.
        shadow: a second model whose picks are timed beside those that are launched: an alias, a version's number, or a
            model's folder; ``off``: none. See :mod:`tilewise.dispatch.shadow`.
        shadow_budget: share of the GPU's time that this may take.
        shadow_journal: file to which the observations are written; "": ``shadow.jsonl`` in the cache.

    Raises:
        ConfigError: a value is out of its range; names the switch.
    """

    model: str = _switch("auto", _one_of("auto", "require", "off"))
    kernel: tuple[str, ...] = _switch((), _patterns)
    forbid: tuple[str, ...] = _switch((), _patterns)
    measure: str = _switch("missing", _one_of("off", "missing", "far", "unsure", "always"))
    measure_top: int = _switch(0, _number(int, "a whole number of at least 0", 0))
    simulate: str = _switch("", str)
    network: str = _switch("on", _one_of("on", "later", "off"))
    refresh_s: float = _switch(0.0, _number(float, "a number of seconds, 0 or more", 0))
    journal: str = _switch("", str)
    journal_share: float = _switch(1.0, _number(float, "a share between 0 and 1", 0, 1))
    journal_mb: float = _switch(16.0, _number(float, "a number of megabytes above 0", 1e-3))
    record: str = _switch("", str)
    decisions: int = _switch(65536, _number(int, "a whole number of at least 2", 2))
    shadow: str = _switch("off", str)
    shadow_budget: float = _switch(0.005, _number(float, "a share between 0 and 1", 0, 1))
    shadow_journal: str = _switch("", str)

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            object.__setattr__(self, f.name, _read(f, text, f.name))

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None, **given: Any) -> Self:
        """From ``TILEWISE_<NAME>`` variables; `given` values that are not None beat them.

        Raises:
            ConfigError: a value is out of its range, or there is no such switch; names the variable or switch.
        """
        environment = os.environ if environment is None else environment
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(given) - set(fields))
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no switch; known are {', '.join(fields)}")
        chosen = {name: value for name, value in given.items() if value is not None}
        for name, f in fields.items():
            variable = _PREFIX + name.upper()
            text = environment.get(variable, "")
            if text and name not in chosen:
                chosen[name] = _read(f, text, variable)
        return cls(**chosen)

    def but(self, **given: Any) -> Self:
        """The same with other values.

        Raises:
            ConfigError: a value is out of its range; names the switch.
        """
        return dataclasses.replace(self, **given)

    def allows(self, config: str, name: str) -> bool:
        """Whether a kernel with this configuration and name may be selected."""
        if self.kernel and not _matches(self.kernel, config, name):
            return False
        return not _matches(self.forbid, config, name)


def _read(f: dataclasses.Field[Any], text: str, called: str) -> Any:
    try:
        return f.metadata["read"](text)
    except ValueError as e:
        raise ConfigError(f"{called}={text}: must be {e}") from None


def _matches(patterns: tuple[str, ...], config: str, name: str) -> bool:
    return any(fnmatchcase(config, p) or fnmatchcase(name, p) for p in patterns)
