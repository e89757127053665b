"""MLflow experiments: one for a target's pipeline, another for trials by people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise.registry._artifact_paths import ARTIFACTS, make_relative
from tilewise.registry._tracking import sqlite_path, translate_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow 3 shows the pages of model training, and not those of language models, without asking.
_TAGS = {"mlflow.experimentKind": "custom_model_development"}


def open_experiment(name: str) -> str:
    """Return the id of the experiment called `name`; create or restore it if necessary.

    Raises:
        AccessDeniedError: The server does not let the user do this.
        RegistryUnavailableError: The server does not answer any more.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    client = mlflow.MlflowClient()
    with translate_errors(f"experiment {name!r} cannot be opened"):
        experiment = client.get_experiment_by_name(name)
        try:
            if experiment is None:
                return _create_experiment(client, name)
            if experiment.lifecycle_stage != "active":
                client.restore_experiment(experiment.experiment_id)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process may have been faster
            if experiment is None or experiment.lifecycle_stage != "active":
                raise
        return str(experiment.experiment_id)


def _create_experiment(client: MlflowClient, name: str) -> str:
    """Create an experiment with its artefacts beside the SQLite file; a server decides itself."""
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite:"):
        return str(client.create_experiment(name, tags=_TAGS))
    database = sqlite_path(uri).absolute()
    created = str(client.create_experiment(name, str(database.parent / ARTIFACTS / name), _TAGS))
    make_relative(database)  # MLflow's client makes every path absolute
    return created
