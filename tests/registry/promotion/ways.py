"""Helpers for tests of ways around the gate: models, changes by hand in MLflow, and questions to the registry."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow

from small_model import write_model
from synthetic import CONV
from tilewise.gate import Thresholds
from tilewise.model import load_artefact
from tilewise.ops import OPS, Target
from tilewise.registry import Version, list_aliases
from tilewise.registry.promotion import Promotion

TARGET = Target.parse(CONV)
KEY = list(OPS[TARGET.op].column_names())  # the columns that tell problems apart
SMALL = Thresholds(floor_mean=80, floor_p10=50, min_problems=5)  # tables of tests have eight holdout problems
REASON = "small tables of tests"
GOOD: dict[str, Any] = {"trees": 60}
BAD: dict[str, Any] = {"trees": 60, "sign": -1.0}
AS_BAD: dict[str, Any] = BAD | {"note": "as bad as the other"}

Promote = Callable[..., Promotion]


def by_hand(number: int, alias: str = "production") -> None:
    mlflow.MlflowClient().set_registered_model_alias(CONV, alias, str(number))


def production() -> int | None:
    return list_aliases(CONV).get("production")


def delete_history() -> None:
    mlflow.MlflowClient().delete_registered_model(f"{CONV}.history")


def replace_files(version: Version, tmp_path: Path, **model: Any) -> str:
    """Put another sound model in the place of a version's files; return its content hash."""
    uri = mlflow.MlflowClient().get_model_version_download_uri(CONV, str(version.number))
    stored = tmp_path / "store" / uri.removeprefix("file:")
    folder = next(stored.rglob("selftest.json")).parent
    shutil.rmtree(folder)
    return load_artefact(write_model(folder, **model)).content_hash
