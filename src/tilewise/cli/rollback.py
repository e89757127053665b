"""Put an earlier model back into @production.

tilewise rollback [reason='slower on depthwise layers'] [version=N] [target=NAME]

Without version= it is the one with alias previous. The model it replaces is not promoted again by itself; both
versions keep the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.registry.rollback import rollback
from tilewise.registry.tracking import connect

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Roll ``cfg.target`` back."""
    connect(cfg.tracking.uri)
    now, before = rollback(cfg.target, cfg.version, reason=cfg.reason)
    Console().print(
        f"{now} is in production again, instead of version {before.number}", soft_wrap=True, highlight=False
    )
