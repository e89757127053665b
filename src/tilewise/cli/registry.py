"""Show the registered models: their versions, aliases, figures and gate decisions.

tilewise registry
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tilewise.errors import UnknownTargetError
from tilewise.registry import versions
from tilewise.registry.tracking import connect, is_missing, resolve_uri, shown

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """List every registered model.

    Raises:
        UnknownTargetError: nothing was ever registered there.
    """
    uri = resolve_uri(cfg.tracking.uri)
    names = [] if is_missing(uri) else _targets(uri)
    if not names:
        raise UnknownTargetError(f"no model is registered at {shown(uri)} yet; tilewise train registers one")
    console = Console()
    for name in names:
        console.print(name, highlight=False)
        console.print(_table(name))


def _targets(uri: str) -> list[str]:
    connect(uri)
    return versions.targets()


def _table(target: str) -> Table:
    named = versions.aliases(target)
    table = Table()
    for column in ("#", "aliases", "content", "data", "code", "registered", "gate"):
        table.add_column(column, no_wrap=column not in ("aliases", "gate"))
    for version in reversed(versions.versions(target)):
        aliases = "\n".join(sorted(alias for alias, number in named.items() if number == version.number))
        made = datetime.fromtimestamp(version.created_ms / 1000, UTC).strftime("%Y-%m-%d")
        hashes = (version.content_hash[:8], *(version.tags.get(k, "")[:8] for k in ("data_hash", "git_revision")))
        table.add_row(str(version.number), aliases, *hashes, made, _decision(version.tags))
    return table


def _decision(tags: Mapping[str, str]) -> str:
    rolled_back = tags.get(versions.ROLLED_BACK_TAG)
    return f"rolled back: {rolled_back}" if rolled_back else tags.get(versions.DECISION_TAG, "").partition(":")[0]
