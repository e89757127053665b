"""MLflow experiments: one for a target's pipeline, another for trials by people."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tilewise.registry._artifact_paths import ARTIFACTS, make_relative
from tilewise.registry._tracking import sqlite_path, translate_errors
from tilewise.registry._write_conflicts import retry_on_conflict
from tilewise.registry.training_runs._experiment_view import CHARTS, VIEW_TAG, view_link, view_state

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment

_NOTE_TAG = "mlflow.note.content"
# The first releases of MLflow 3 show the pages of model training, and not those of language models, by this tag; later
# ones by a parameter of the address, which the view's link has.
_TAGS = {"mlflow.experimentKind": "custom_model_development", VIEW_TAG: view_state()}


def open_experiment(name: str) -> str:
    """Return the id of the experiment called `name`; create or restore it, and give it tilewise's view, if necessary.

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
                experiment = client.get_experiment(_create_experiment(client, name))
            if experiment.lifecycle_stage != "active":
                client.restore_experiment(experiment.experiment_id)
        except MlflowException:
            experiment = client.get_experiment_by_name(name)  # another process may have been faster
            if experiment is None or experiment.lifecycle_stage != "active":
                raise
        return _with_view(client, experiment)


def _with_view(client: MlflowClient, experiment: Experiment) -> str:
    """Write the tags that the pages read, where they differ or are missing; return the experiment's id."""
    number = str(experiment.experiment_id)
    table = view_link(number)
    note = f"Mean, P10, worst problem and gate of the trainings: [table]({table}), [charts]({table}&{CHARTS})."
    wanted = _TAGS if _NOTE_TAG in experiment.tags else {**_TAGS, _NOTE_TAG: note}
    for key, value in wanted.items():
        if experiment.tags.get(key) != value:
            retry_on_conflict(partial(client.set_experiment_tag, number, key, value))
    return number


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
