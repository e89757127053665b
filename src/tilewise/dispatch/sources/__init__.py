"""Sources of a dispatcher's models: the registry, the last good local copy of it, and the shipped pools.

Takes a target and an alias; gives a loaded model or pool. Only fetching imports the registry: members load lazily, so
that selecting from a folder does not. Used by the dispatcher, its logs, shadowing and the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.dispatch.sources._cache_folders import MEASURED_FOLDER as MEASURED_FOLDER
    from tilewise.dispatch.sources._cache_folders import cache_folder as cache_folder
    from tilewise.dispatch.sources._cache_folders import compiled_folder as compiled_folder
    from tilewise.dispatch.sources._model_source import FetchedModel as FetchedModel
    from tilewise.dispatch.sources._model_source import fetch_model as fetch_model
    from tilewise.dispatch.sources._model_source import fetch_model_by_hash as fetch_model_by_hash
    from tilewise.dispatch.sources._origin import Origin as Origin
    from tilewise.dispatch.sources._origin import parse_target as parse_target
    from tilewise.dispatch.sources._origin import pool_without_model as pool_without_model
    from tilewise.dispatch.sources._origin import target_or_name as target_or_name

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_cache_folders": (
            "MEASURED_FOLDER",
            "cache_folder",
            "compiled_folder",
        ),
        "_model_source": (
            "FetchedModel",
            "fetch_model",
            "fetch_model_by_hash",
        ),
        "_origin": (
            "Origin",
            "parse_target",
            "pool_without_model",
            "target_or_name",
        ),
    },
)
