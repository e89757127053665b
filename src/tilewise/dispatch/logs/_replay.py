"""Replaying logged decisions: finding the model that decided, and comparing its ranking with the logged one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.dispatch.sources import cache_folder, fetch_model_by_hash
from tilewise.errors import ArtefactError, DataError
from tilewise.model import TrainedModel, load_artefact

if TYPE_CHECKING:
    from tilewise.dispatch.logs._decision_log import DecisionLine


def same_ranking(logged: DecisionLine, replayed: DecisionLine) -> bool:
    """Return whether two descriptions of a decision rank the same kernels with equal predictions (to 1e-6)."""
    before, now = logged["ranking"], replayed["ranking"]
    return _names(before) == _names(now) and all(
        (x is None and y is None) or (x is not None and y is not None and math.isclose(x, y, rel_tol=1e-6))
        for (_, x), (_, y) in zip(before, now, strict=True)
    )


def find_deciding_model(line: DecisionLine, folder: str | Path, uri: str | None) -> TrainedModel | None:
    """Load the model that made a logged decision: from a folder, the local copies, or the registry.

    Args:
        line: of a decision log.
        folder: model folder to try first.
        uri: of the registry; see :func:`tilewise.registry.resolve_tracking_uri`.

    Returns:
        None if no model decided.

    Raises:
        DataError: no place has the model.
        RegistryUnavailableError: no folder has the model, and the registry is unavailable.
    """
    content_hash, target = line["content_hash"], line["target"]
    if content_hash is None:
        return None
    copies = (cache_folder() / "models").glob(f"*/{target}/{content_hash}")
    for place in (Path(folder), *copies):
        try:
            model = load_artefact(place)
        except ArtefactError:
            continue
        if model.content_hash == content_hash:
            return model
    fetched = fetch_model_by_hash(target, content_hash, uri=uri)
    if fetched is None:
        raise DataError(f"the model {content_hash[:12]} of {target} that decided is neither in {folder} nor registered")
    return fetched.model


def _names(ranking: Sequence[tuple[str, float | None]]) -> list[str]:
    return [name for name, _ in ranking]
