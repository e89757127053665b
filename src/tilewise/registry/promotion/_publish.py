"""The publication of a model folder: registered as it is, as text and JSON, once per content."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.errors import ArtefactError
from tilewise.model import KERNEL_NAME, QUANTITIES, SELFTEST, TrainedModel, load_artefact, write_files
from tilewise.ops import OPS
from tilewise.registry._packed_model import PACKED, pack
from tilewise.registry._registered_models import CANDIDATE
from tilewise.registry._tracking import translate_errors
from tilewise.registry._version_description import cv_figures, describe_version
from tilewise.registry._versions import (
    HASH_TAG,
    Version,
    create_version,
    delete_version,
    find_by_hash,
    load_version,
    set_alias,
)
from tilewise.registry.promotion._package_wheel import WHEELS, write_wheel
from tilewise.registry.training_runs import find_run, log_model_figures, open_experiment

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature


def publish(
    model_dir: str | Path,
    run_id: str | None = None,
    *,
    experiments: Sequence[str] = (),
    tags: Mapping[str, str] | None = None,
) -> Version:
    """Register the model in `model_dir`, unless it is registered, and point the alias ``candidate`` at it.

    Args:
        model_dir: A folder written by :func:`tilewise.model.write_artefact`.
        run_id: The training run to attach it to; None: the run that logged this content, else a new one. A run that
            has published another content gets no second one.
        experiments: The experiments in which to find that run; it is created in the first. None: the target's name.
        tags: Further tags of a new version.

    Returns:
        The version that already had this content, or a new one.

    Raises:
        ArtefactError: The folder holds no sound model.
        RegistryUnavailableError: The registry does not answer any more.
    """
    model = load_artefact(Path(model_dir))
    version = _stored_version(model) or _register(
        model, _Origin(run_id, tuple(experiments) or (model.target.name,), tags or {})
    )
    set_alias(version, CANDIDATE)
    return version


def open_run(version: Version, experiment: str) -> str:
    """Return the id of the run behind a version; create a run in `experiment` if that one was deleted."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        if version.run_id and mlflow.MlflowClient().get_run(version.run_id).info.lifecycle_stage == "active":
            return version.run_id
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    with mlflow.start_run(
        experiment_id=open_experiment(experiment), run_name=f"promote {version.target}", nested=True
    ) as run:
        mlflow.set_tags({"tilewise.target": version.target, "tilewise.kind": "promote"})
    return str(run.info.run_id)


def _stored_version(model: TrainedModel) -> Version | None:
    """Return the oldest version with this model's content and sound files in the registry."""
    return next((v for v in find_by_hash(model.target.name, model.content_hash) if _is_sound(v)), None)


def _is_sound(version: Version) -> bool:
    try:
        load_version(version)
    except ArtefactError:
        return False
    return True


@dataclasses.dataclass(frozen=True)
class _Origin:
    """The run of a model, or where to find or create it, and tags of its version."""

    run_id: str | None
    experiments: tuple[str, ...]
    tags: Mapping[str, str]

    def run(self, model: TrainedModel) -> str:
        """Return the id of the run, which is created if the registry has not seen the training."""
        found = self.run_id or find_run(model.content_hash, self.experiments)
        if found is None or not _is_free(found, model.content_hash):
            return _create_run(model, self.experiments[0])
        return found


def _register(model: TrainedModel, origin: _Origin) -> Version:
    import mlflow

    name = model.target.name
    metrics = cv_figures(model)
    with translate_errors(f"{name} cannot be published"):
        run_id = origin.run(model)
        trees = model.manifest.get("parameters", {}).get("n_estimators", 1)
        with mlflow.start_run(run_id=run_id, nested=True), tempfile.TemporaryDirectory() as scratch:
            data = Path(scratch) / "model"  # the folder's name in the registry, independent of its name on disk
            data.mkdir()
            _log_content(run_id, model.content_hash)
            write_files(data, model.files)  # other files in the folder are not published
            beside = Path(scratch) / "beside"
            package = write_wheel(beside / WHEELS)
            (beside / PACKED).write_bytes(pack(model.files))
            info = mlflow.pyfunc.log_model(
                name=name,
                loader_module="tilewise.registry.pyfunc",
                data_path=str(data),
                pip_requirements=[*package, "numpy", "pandas"],
                signature=_signature(model),
                input_example=_input_example(model.files),
                metadata={HASH_TAG: model.content_hash, "target": name},
                step=int(trees),  # MLflow adds the run's figures of this step, those of step 0 without their data set
            )
            trained = (name, str(model.manifest.get("data_hash", "unknown")))
            log_model_figures(run_id, info.model_id, trained, {f"cv/{k}": v for k, v in metrics.items()})
            mlflow.MlflowClient().log_model_artifacts(info.model_id, str(beside))
    created = create_version(
        name,
        info.model_uri,
        run_id,
        info.model_id,
        tags={**_tags(model), **origin.tags},
        description=describe_version(model),
    )
    first = _stored_version(model) or created
    if first.number != created.number:  # another process published the same files meanwhile
        delete_version(created)
    return first


def _is_free(run_id: str, content_hash: str) -> bool:
    """Return whether a run has published no other content: its parameter is the witness of a version's files."""
    import mlflow

    return mlflow.MlflowClient().get_run(run_id).data.params.get(HASH_TAG, content_hash) == content_hash


def _log_content(run_id: str, content_hash: str) -> None:
    """Log the content hash as a parameter, which MLflow does not let change."""
    import mlflow

    mlflow.MlflowClient().log_param(run_id, HASH_TAG, content_hash)  # again with the same value: no change


def _create_run(model: TrainedModel, experiment: str) -> str:
    """Create a run for a model whose training this registry has not seen, for example because it is new."""
    import mlflow

    name = model.target.name
    of_model = {f"tilewise.{key}": value for key, value in _tags(model).items()}
    tags = {**of_model, "tilewise.target": name, "tilewise.kind": "publish"}
    with mlflow.start_run(
        experiment_id=open_experiment(experiment), run_name=f"publish {name}", nested=True, tags=tags
    ) as run:
        parameters = model.manifest.get("parameters", {})
        mlflow.log_params({**parameters, "label": model.label, "pool_size": len(model.pool)})
    return str(run.info.run_id)


def _tags(model: TrainedModel) -> dict[str, str]:
    tags = {HASH_TAG: model.content_hash, "pool_hash": model.pool.hash, "label": model.label}
    return tags | {k: str(model.manifest[k]) for k in ("data_hash", "git_revision") if k in model.manifest}


def _signature(model: TrainedModel) -> ModelSignature:
    """Return the columns that MLflow checks before the model sees them.

    An optional dimension has no type: a row that omits it makes the column one of floats and NaN, which MLflow refuses
    for a whole number. :class:`~tilewise.registry.pyfunc.KernelSelector` checks the values.
    """
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema, TensorSpec
    from mlflow.types.schema import AnyType

    inputs: list[ColSpec | TensorSpec] = [
        ColSpec(_column_type(field.type), field.name)
        if field.default is dataclasses.MISSING
        else ColSpec(AnyType(), field.name, required=False)  # type: ignore[no-untyped-call]  # MLflow has no types
        for field in dataclasses.fields(OPS[model.target.op])
    ]
    inputs += [ColSpec(AnyType(), name, required=False) for name in ("dtype", KERNEL_NAME)]  # type: ignore[no-untyped-call]
    outputs: list[ColSpec | TensorSpec] = [
        ColSpec("string", KERNEL_NAME),
        *(ColSpec("double", f"predicted_{name}") for name in QUANTITIES),
    ]
    return ModelSignature(Schema(inputs), Schema(outputs))


def _column_type(annotation: object) -> str:
    return "string" if annotation in (str, "str") else "long"


def _input_example(files: Mapping[str, bytes]) -> pd.DataFrame | None:
    """Return the first problem of the model's self-test."""
    import pandas as pd

    tested = json.loads(files[SELFTEST])["problems"]
    return pd.DataFrame([tested[0]["problem"]]) if tested else None
