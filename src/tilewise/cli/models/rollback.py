"""Put an earlier model back into @production.

tilewise rollback [reason='slower on depthwise layers'] [version=N] [target=NAME]

Without version= it is the one with alias previous. The replaced model is not promoted again automatically, and both
versions keep the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise.cli._console import plain_console, write_result
from tilewise.registry import connect, roll_back

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Roll ``cfg.target`` back."""
    connect(cfg.tracking.uri)
    now, before = roll_back(cfg.target, cfg.version, reason=cfg.reason)
    plain_console().print(
        f"{now} is in production again, instead of version {before.number}", soft_wrap=True, highlight=False
    )
    write_result({"target": now.target, "production": now.number, "instead_of": before.number, "reason": cfg.reason})
