"""MLflow experiments, one per target, and the run that a training logs to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewise.registry._artifact_paths import ARTIFACTS, make_relative
from tilewise.registry._tracking import sqlite_path, translate_errors

if TYPE_CHECKING:
    from mlflow import MlflowClient


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


@contextmanager
def open_training_run(experiment: str, target: str) -> Iterator[str]:
    """Activate the run that a training logs to, and yield its id.

    It is the run of ``mlflow run`` if there is one and this process has not used it yet, else a new run in
    `experiment`. A second target of the same process (Hydra multirun) gets its own run, since a run's parameters cannot
    change.
    """
    import mlflow

    given = os.environ.pop("MLFLOW_RUN_ID", None) if mlflow.active_run() is None else None
    if given and _exists(given):
        with mlflow.start_run(run_id=given):
            yield given
    else:
        with mlflow.start_run(
            experiment_id=open_experiment(experiment), run_name=f"train {target}", nested=True
        ) as run:
            yield run.info.run_id


def _exists(run_id: str) -> bool:
    """Return whether the server in use has the run: ``mlflow run`` may have been pointed at another server."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        mlflow.MlflowClient().get_run(run_id)
    except MlflowException as e:
        if e.error_code == "RESOURCE_DOES_NOT_EXIST":
            return False
        raise
    return True


def _create_experiment(client: MlflowClient, name: str) -> str:
    """Create an experiment with its artefacts beside the SQLite file; a server decides itself."""
    import mlflow

    uri = mlflow.get_tracking_uri()
    if not uri.startswith("sqlite:"):
        return str(client.create_experiment(name))
    database = sqlite_path(uri).absolute()
    created = str(client.create_experiment(name, artifact_location=str(database.parent / ARTIFACTS / name)))
    make_relative(database)  # MLflow's client makes every path absolute
    return created
