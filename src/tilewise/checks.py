"""Refusing a setting: the rule that it breaks, and what it got."""

from __future__ import annotations

from tilewise.errors import ConfigError


def require(rule: str, ok: bool, value: object) -> None:
    """Refuse a setting.

    Raises:
        ConfigError: not `ok`; says the rule and the value.
    """
    if not ok:
        raise ConfigError(f"{rule}, got {value!r}")


def is_whole(value: object) -> bool:
    """Whether `value` is an integer; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
