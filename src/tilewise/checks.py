"""Checks of settings, with one form of error message: the rule and the value."""

from __future__ import annotations

from pathlib import PurePath

from tilewise.errors import ConfigError

# Endings that promise a format. Other endings are part of a name, as in runs.2026-01.
_FORMATS = (".parquet", ".json", ".jsonl", ".csv", ".tsv", ".yaml", ".yml", ".txt", ".md", ".html", ".xlsx", ".pickle")


def require(rule: str, ok: bool, value: object) -> None:
    """Raise unless the setting `value` obeys its rule.

    Args:
        rule: The rule as a sentence with the setting's name, e.g. "n_splits must be a whole number of 2 or more".
        ok: True if the value obeys the rule.
        value: The value for the message.

    Raises:
        ConfigError: `ok` is False.
    """
    if not ok:
        raise ConfigError(f"{rule}, got {value!r}")


def is_whole(value: object) -> bool:
    """Return whether `value` is an integer. True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def require_format(output: str | PurePath, ending: str) -> None:
    """Raise if a file's name promises another format than the one that is written to it.

    Args:
        output: The file to write.
        ending: The ending of the format that is written, e.g. ``.parquet``.

    Raises:
        ConfigError: The name has the ending of another format.
    """
    stated = PurePath(output).suffix.lower()
    require(
        f"output: the file is written as {ending[1:]}, so its name must not promise another format; "
        f"use output={PurePath(output).with_suffix(ending).name}",
        stated == ending or stated not in _FORMATS,
        str(output),
    )
