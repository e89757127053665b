"""MLflow experiments: one for a target's pipeline, another for what people try."""

from __future__ import annotations

from tilewise.registry._tracking import sqlite_path, translate_errors

ARTIFACTS = "mlartifacts"
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
                return str(client.create_experiment(name, _artifact_location(name), _TAGS))
            if experiment.lifecycle_stage != "active":
                client.restore_experiment(experiment.experiment_id)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process may have been faster
            if experiment is None or experiment.lifecycle_stage != "active":
                raise
        return str(experiment.experiment_id)


def _artifact_location(experiment: str) -> str | None:
    """Return a folder beside the SQLite file; None lets a server decide."""
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite:"):
        return None
    return str((sqlite_path(uri).parent / ARTIFACTS / experiment).absolute())
