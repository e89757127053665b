"""Put an earlier model back into @production.

tilewise rollback [reason='slower on depthwise layers'] [version=N] [target=NAME]

Without version= it is the one with alias previous. The replaced model is not promoted again automatically, and both
versions keep the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise.checks import require
from tilewise.cli._console import plain_console, write_result
from tilewise.registry import connect, roll_back

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Roll ``cfg.target`` back.

    Raises:
        ConfigError: the version is no number, or cannot be put back.
    """
    number = _number(cfg.version)
    connect(cfg.tracking.uri)
    now, before = roll_back(cfg.target, number, reason=cfg.reason)
    plain_console().print(
        f"{now} is in production again, instead of version {before.number}", soft_wrap=True, highlight=False
    )
    write_result({"target": now.target, "production": now.number, "instead_of": before.number, "reason": cfg.reason})


def _number(version: object) -> int | None:
    """Return the number of the version to put back; None: the one with alias previous."""
    if version is None:
        return None
    text = str(version)
    rule = "version must be the number of a version, a whole number of 1 or more; without it, previous is put back"
    require(rule, text.isdecimal() and int(text) > 0, version)
    return int(text)
