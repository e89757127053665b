"""Measurements as MLflow data sets: a name and a digest on the run, so runs on the same data can be found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.data import measurement_columns
from tilewise.registry._write_conflicts import retry_on_conflict
from tilewise.registry.training_runs._metrics import finite

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    from tilewise.kernels import Pool

DIGEST_LENGTH = 32  # MLflow takes 36 characters at most
_TYPES = {"str": "string", "int": "long", "float": "double", "bool": "boolean"}  # MLflow's names


@dataclass(frozen=True)
class UsedData:
    """The data that a run used. The rows themselves stay in DVC.

    Attributes:
        target: Name of the target.
        table_hash: Hash of the table; see :func:`tilewise.data.table_hash`.
        context: The use of the data: ``training`` or ``holdout``.
        pool: The measured kernels, which with their op tell the columns.
        n_rows: Number of rows used.
        n_problems: Number of problems in them.
    """

    target: str
    table_hash: str
    context: str
    pool: Pool
    n_rows: int
    n_problems: int


def log_dataset(run_id: str, data: UsedData) -> None:
    """Record the data that a run used, with its columns."""
    import mlflow
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=data.target,
        digest=data.table_hash[:DIGEST_LENGTH],
        source_type="dvc",
        source=json.dumps({"file": "data.dvc", "table_hash": data.table_hash}),
        schema=_schema(data.pool),
        profile=json.dumps({"num_rows": data.n_rows, "num_problems": data.n_problems}),
    )
    tags = [InputTag("mlflow.data.context", data.context)]
    # Several runs of an experiment may be the first to use the data set.
    retry_on_conflict(lambda: mlflow.MlflowClient().log_inputs(run_id, [DatasetInput(dataset, tags)]))


def log_model_figures(run_id: str, model_id: str | None, data: tuple[str, str], figures: Mapping[str, float]) -> None:
    """Log the figures of a run's model, which its page shows together with the data that they were measured on.

    Logging them again changes nothing.

    Args:
        run_id: The run.
        model_id: MLflow's id of the logged model; None: the figures are the run's alone.
        data: Name of the target, and hash of the table.
        figures: The figures; those that are not finite are left out.
    """
    import mlflow

    client = mlflow.MlflowClient()

    def write() -> None:
        client.log_batch(run_id, metrics=_new_metrics(client, run_id, model_id, data, finite(figures)))

    retry_on_conflict(write)  # another process may judge the same model


def _new_metrics(
    client: MlflowClient, run_id: str, model_id: str | None, data: tuple[str, str], figures: Mapping[str, float]
) -> list[Metric]:
    """Return the figures that the model does not show yet, each later than the one before it.

    A model has one figure of a name at a time; a later judgement gives another. A model that was deleted gets none.
    """
    from mlflow.entities import Metric

    start = int(client.get_run(run_id).info.start_time)
    shown = _shown_metrics(client, model_id) if model_id else None
    if shown is None:
        return [Metric(key, value, start, 0, run_id=run_id) for key, value in figures.items()]
    name, digest = data[0], data[1][:DIGEST_LENGTH]
    linked = {"model_id": model_id, "dataset_name": name, "dataset_digest": digest}
    metrics = []
    for key, value in figures.items():
        last = shown.get(key)
        if last is None or (last.value, last.dataset_digest) != (value, digest):
            time_ms = start if last is None else last.timestamp + 1
            metrics.append(Metric(key, value, time_ms, 0, run_id=run_id, **linked))
    return metrics


def _shown_metrics(client: MlflowClient, model_id: str) -> dict[str, Metric] | None:
    """Return the newest figure of each name on the model's page; None if the model was deleted."""
    from mlflow.exceptions import MlflowException

    try:
        found = client.get_logged_model(model_id).metrics or ()
    except MlflowException as e:
        if e.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return {metric.key: metric for metric in sorted(found, key=lambda m: m.timestamp)}


def _schema(pool: Pool) -> str:
    columns = measurement_columns(pool.op, pool.backend.name)
    return json.dumps(
        {"mlflow_colspec": [{"type": _TYPES[c.kind], "name": c.name, "required": not c.nullable} for c in columns]}
    )
