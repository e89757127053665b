"""MLflow's registry: model versions, aliases, the history of ``@production``, rollback.

Takes target names, versions and models; gives versions, models and history entries. Training runs are in
``registry.training_runs``, decisions in ``registry.promotion``. Importing it loads neither mlflow nor pandas; the
dispatcher (``dispatch.sources``) uses the connection and versions only. Also used by ``cli`` and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.registry._gate_standing import GateStanding as GateStanding
    from tilewise.registry._gate_standing import gate_standing as gate_standing
    from tilewise.registry._gate_standing import is_canary as is_canary
    from tilewise.registry._history import HistoryEntry as HistoryEntry
    from tilewise.registry._history import commit_change as commit_change
    from tilewise.registry._history import last_production as last_production
    from tilewise.registry._history import read_history as read_history
    from tilewise.registry._history import settle_history as settle_history
    from tilewise.registry._registered_models import CANARY as CANARY
    from tilewise.registry._registered_models import CANDIDATE as CANDIDATE
    from tilewise.registry._registered_models import PREVIOUS as PREVIOUS
    from tilewise.registry._registered_models import PRODUCTION as PRODUCTION
    from tilewise.registry._registered_models import list_aliases as list_aliases
    from tilewise.registry._registered_models import list_histories as list_histories
    from tilewise.registry._registered_models import list_targets as list_targets
    from tilewise.registry._rollback import roll_back as roll_back
    from tilewise.registry._tracking import connect as connect
    from tilewise.registry._tracking import hide_password as hide_password
    from tilewise.registry._tracking import holds_registry as holds_registry
    from tilewise.registry._tracking import is_missing_store as is_missing_store
    from tilewise.registry._tracking import prepare_reader as prepare_reader
    from tilewise.registry._tracking import registry_reader as registry_reader
    from tilewise.registry._tracking import registry_session as registry_session
    from tilewise.registry._tracking import resolve_tracking_uri as resolve_tracking_uri
    from tilewise.registry._version_diff import ModelDifference as ModelDifference
    from tilewise.registry._version_diff import diff_models as diff_models
    from tilewise.registry._versions import DECISION_TAG as DECISION_TAG
    from tilewise.registry._versions import ROLLED_BACK_TAG as ROLLED_BACK_TAG
    from tilewise.registry._versions import Version as Version
    from tilewise.registry._versions import download_version as download_version
    from tilewise.registry._versions import find_by_alias as find_by_alias
    from tilewise.registry._versions import find_by_hash as find_by_hash
    from tilewise.registry._versions import find_by_number as find_by_number
    from tilewise.registry._versions import has_files as has_files
    from tilewise.registry._versions import list_versions as list_versions
    from tilewise.registry._versions import load_downloaded as load_downloaded
    from tilewise.registry._versions import load_version as load_version
    from tilewise.registry._versions import read_description as read_description
    from tilewise.registry._versions import set_alias as set_alias

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_gate_standing": (
            "GateStanding",
            "gate_standing",
            "is_canary",
        ),
        "_history": (
            "HistoryEntry",
            "commit_change",
            "last_production",
            "read_history",
            "settle_history",
        ),
        "_registered_models": (
            "CANARY",
            "CANDIDATE",
            "PREVIOUS",
            "PRODUCTION",
            "list_aliases",
            "list_histories",
            "list_targets",
        ),
        "_rollback": ("roll_back",),
        "_tracking": (
            "connect",
            "hide_password",
            "holds_registry",
            "is_missing_store",
            "prepare_reader",
            "registry_reader",
            "registry_session",
            "resolve_tracking_uri",
        ),
        "_version_diff": (
            "ModelDifference",
            "diff_models",
        ),
        "_versions": (
            "DECISION_TAG",
            "ROLLED_BACK_TAG",
            "Version",
            "download_version",
            "find_by_alias",
            "find_by_hash",
            "find_by_number",
            "has_files",
            "list_versions",
            "load_downloaded",
            "load_version",
            "read_description",
            "set_alias",
        ),
    },
)
