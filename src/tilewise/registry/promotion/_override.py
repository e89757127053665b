"""Overrides: rules of the gate that a person insists on waiving, with a reason that everybody sees."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tilewise.checks import require
from tilewise.errors import ConfigError, UsageError
from tilewise.gate import Thresholds
from tilewise.ops import Target

SWITCH = "TILEWISE_GATE_OVERRIDE"  # "off" forbids overrides on a machine, whatever the caller sets
MAX_REASON = 300  # characters, so that tags hold it in full


@dataclass(frozen=True)
class Override:
    """The rules that may be waived.

    Attributes:
        reason: The reason in words, kept with the version; "" waives nothing.
        holdout: Judge on other problems than those that production was judged on.
        production: Apply the floors of a first model if production cannot be judged against.
        allowed: False forbids every override.

    Raises:
        ConfigError: A value is of the wrong kind, or the reason is too long.
    """

    reason: str = ""
    holdout: bool = False
    production: bool = False
    allowed: bool = True

    def __post_init__(self) -> None:
        is_text = isinstance(self.reason, str) and len(self.reason) <= MAX_REASON
        require(f"gate: override.reason must be a text of at most {MAX_REASON} characters", is_text, self.reason)
        for name in ("holdout", "production", "allowed"):
            value = getattr(self, name)
            require(f"gate: override.{name} must be true or false", isinstance(value, bool), value)

    @classmethod
    def from_config(cls, gate: Mapping[str, Any], *, allowed: bool = True) -> Self:
        """Read the override from the ``gate`` section of the configuration.

        Args:
            gate: The section.
            allowed: False forbids overrides in spite of the section.

        Raises:
            ConfigError: A value is of the wrong kind.
        """
        values = {str(key): value for key, value in (gate.get("override") or {}).items()}
        return cls(**values | {"allowed": values.get("allowed", True) if allowed else False})

    def waive(self, rule: str, setting: str, error: type[UsageError], *, requested: bool = True) -> None:
        """Return if the rule may be waived.

        Args:
            rule: The broken rule with the value and the remedy, in words.
            setting: The setting that waives it, in words.
            error: The class of the error.
            requested: True if that setting is set.

        Raises:
            UsageError: The rule holds, as an `error`.
        """
        if not self.allowed or os.environ.get(SWITCH, "on").strip().lower() not in ("", "on"):
            raise error(f"{rule}; overrides are forbidden here (gate.override.allowed, {SWITCH})")
        if not (requested and self.reason.strip()):
            raise error(f"{rule}; to insist, set {setting} and gate.override.reason='...', which everybody will see")


def waived_limits(thresholds: Thresholds, target: Target, override: Override) -> list[str]:
    """Return the limits that are weaker than the shipped ones, in words.

    Raises:
        ConfigError: There are some, and no override waives the shipped ones.
    """
    weaker = thresholds.weaker_than(Thresholds.shipped(target))
    waived = [f"gate.{name} is {_text(value)} instead of {_text(shipped)}" for name, (value, shipped) in weaker.items()]
    if waived:
        rule = f"the gate's limits must not be weaker than the shipped ones: {', '.join(waived)}"
        override.waive(rule, "them", ConfigError)
    return waived


def _text(value: float | None) -> str:
    return "null" if value is None else f"{value:g}"
