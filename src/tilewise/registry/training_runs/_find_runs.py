"""The runs that trained a model, found by its content, and the models that they logged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tilewise.errors import ConfigError
from tilewise.registry._tracking import translate_errors

CONTENT_TAG = "tilewise.content_hash"
MODEL_FILES = "model_files"  # folder of the model among a run's artefacts


def find_run(content_hash: str, experiments: Sequence[str]) -> str | None:
    """Return the id of the first run that trained this content; None without one.

    Args:
        content_hash: See :attr:`tilewise.model.TrainedModel.content_hash`.
        experiments: Names of experiments; missing ones are left out.
    """
    import mlflow

    client = mlflow.MlflowClient()
    known = [found for found in map(client.get_experiment_by_name, experiments) if found is not None]
    ids = [str(found.experiment_id) for found in known if found.lifecycle_stage == "active"]
    if not ids:
        return None
    runs = client.search_runs(
        ids, f"tags.`{CONTENT_TAG}` = '{content_hash}'", max_results=1, order_by=["attributes.start_time ASC"]
    )
    return str(runs[0].info.run_id) if runs else None


def fetch_logged_model(run_id: str, folder: Path) -> Path:
    """Fetch the model that a training logged, and return its folder, which is not checked yet.

    Args:
        run_id: The run's id.
        folder: An empty folder to write to.

    Raises:
        ConfigError: There is no such run, or it logged no model.
        RegistryUnavailableError: The server does not answer.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    if not re.fullmatch(r"[0-9a-f]{32}", run_id):
        raise ConfigError(f"run must be the id of an MLflow run, 32 hexadecimal digits, got {run_id!r:.60}")
    client = mlflow.MlflowClient()
    with translate_errors(f"the model of run {run_id} cannot be fetched"):
        try:
            is_logged = bool(client.list_artifacts(run_id, MODEL_FILES))
        except MlflowException as e:
            if e.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            raise ConfigError(
                f"there is no run {run_id} at {mlflow.get_tracking_uri()}; copy its id from MLflow"
            ) from e
        if not is_logged:
            raise ConfigError(f"run {run_id} logged no model: it is not a training, or it did not finish")
        return Path(client.download_artifacts(run_id, MODEL_FILES, str(folder)))
