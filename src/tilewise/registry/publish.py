"""Registering a model folder: as it is, text and JSON, under its target's name, once per content."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tilewise
from tilewise.errors import ArtefactError
from tilewise.model.artefact import load_artefact
from tilewise.model.files import SELFTEST, write_files
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS
from tilewise.registry import versions
from tilewise.registry.describe import cv_figures, description
from tilewise.registry.tracking import experiment_id, guard
from tilewise.registry.versions import Version

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature


def publish(model_dir: str | Path, run_id: str | None = None, *, experiment: str | None = None) -> Version:
    """Register the model in `model_dir` and point the alias ``candidate`` at it; the same content is never twice.

    Args:
        model_dir: as :func:`tilewise.model.artefact.write_artefact` wrote it.
        run_id: the training run to attach it to; None: the run that logged this content, else a new one.
        experiment: where to look for that run, or make it; None: the experiment named after the target.

    Returns:
        The version: the one that already had this content, or a new one.

    Raises:
        ArtefactError: the folder holds no sound model.
        RegistryUnavailableError: the registry went away.
    """
    model = load_artefact(Path(model_dir))
    version = stored_version(model) or _register(model, run_id, experiment or model.target.name)
    versions.set_alias(version, versions.CANDIDATE)
    return version


def stored_version(model: TrainedModel) -> Version | None:
    """The oldest version with this model's content whose files the registry still has, unharmed."""
    return next((v for v in versions.by_hash(model.target.name, model.content_hash) if _is_sound(v)), None)


def _is_sound(version: Version) -> bool:
    try:
        versions.load(version)
    except ArtefactError:
        return False
    return True


def open_run(version: Version, experiment: str) -> str:
    """The run behind a version, to log to; a new one where that was deleted."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        if version.run_id and mlflow.MlflowClient().get_run(version.run_id).info.lifecycle_stage == "active":
            return version.run_id
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    with mlflow.start_run(
        experiment_id=experiment_id(experiment), run_name=f"promote {version.target}", nested=True
    ) as run:
        mlflow.set_tags({"tilewise.target": version.target, "tilewise.kind": "promote"})
    return str(run.info.run_id)


def _register(model: TrainedModel, run_id: str | None, experiment: str) -> Version:
    import mlflow

    name = model.target.name
    metrics = cv_figures(model)
    with guard(f"{name} cannot be published"):
        run_id = run_id or _run_of(model, experiment) or _new_run(model, metrics, experiment)
        with mlflow.start_run(run_id=run_id, nested=True), tempfile.TemporaryDirectory() as scratch:
            data = Path(scratch) / "model"  # the folder's name in the registry, whatever it is called here
            data.mkdir()
            write_files(data, model.files)  # and nothing else that may lie in the folder
            info = mlflow.pyfunc.log_model(
                name=name,
                loader_module="tilewise.registry.pyfunc",
                data_path=str(data),
                pip_requirements=[f"tilewise=={tilewise.__version__}", "numpy", "pandas"],
                signature=_signature(model),
                input_example=_input_example(model.files),
                metadata={versions.HASH_TAG: model.content_hash, "target": name},
            )
    made = versions.create(
        name, info.model_uri, run_id, info.model_id, tags=_tags(model), description=description(model)
    )
    first = stored_version(model) or made
    if first.number != made.number:  # somebody published the same files meanwhile
        versions.delete(made)
    return first


def _run_of(model: TrainedModel, experiment: str) -> str | None:
    import mlflow

    found = mlflow.MlflowClient().search_runs(
        [experiment_id(experiment)], f"tags.{versions.HASH_TAG} = '{model.content_hash}'", max_results=1
    )
    return str(found[0].info.run_id) if found else None


def _new_run(model: TrainedModel, metrics: dict[str, float], experiment: str) -> str:
    """A run for a model whose training this registry has not seen, e.g. because it is new."""
    import mlflow

    name = model.target.name
    tags = {**_tags(model), "tilewise.target": name, "tilewise.kind": "publish"}
    with mlflow.start_run(
        experiment_id=experiment_id(experiment), run_name=f"publish {name}", nested=True, tags=tags
    ) as run:
        parameters = model.manifest.get("parameters", {})
        mlflow.log_params({**parameters, "label": model.label, "pool_size": len(model.pool)})
        mlflow.log_metrics({f"cv/{k}": v for k, v in metrics.items()})
    return str(run.info.run_id)


def _tags(model: TrainedModel) -> dict[str, str]:
    tags = {versions.HASH_TAG: model.content_hash, "pool_hash": model.pool.hash, "label": model.label}
    return tags | {k: str(model.manifest[k]) for k in ("data_hash", "git_revision") if k in model.manifest}


def _signature(model: TrainedModel) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    inputs: list[Any] = [
        ColSpec(_kind(field), field.name, required=field.default is dataclasses.MISSING)
        for field in dataclasses.fields(OPS[model.target.op])
    ]
    outputs: list[Any] = [ColSpec("string", "kernel_name"), ColSpec("double", "predicted_tflops")]
    return ModelSignature(Schema(inputs), Schema(outputs))


def _kind(field: dataclasses.Field[Any]) -> str:
    return "string" if field.type in (str, "str") else "long"


def _input_example(files: Mapping[str, bytes]) -> pd.DataFrame | None:
    """The first problem that the model tests itself with."""
    import pandas as pd

    tested = json.loads(files[SELFTEST])["problems"]
    return pd.DataFrame([tested[0]["problem"]]) if tested else None
