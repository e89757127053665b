"""Measurements as MLflow data sets: a name and a digest on the run, so runs on the same data can be found."""

from __future__ import annotations

import json

from tilewise.registry._write_conflicts import retry_on_conflict

DIGEST_LENGTH = 32  # MLflow takes 36 characters at most


def log_dataset(run_id: str, target: str, data_hash: str, context: str, *, n_rows: int, n_problems: int) -> None:
    """Record the data that a run used. The rows themselves stay in DVC.

    Args:
        run_id: The run.
        target: Name of the target.
        data_hash: Hash of the table; see :func:`tilewise.data.table_hash`.
        context: The use of the data: ``training`` or ``holdout``.
        n_rows: Number of rows used.
        n_problems: Number of problems in them.
    """
    import mlflow
    from mlflow.entities import Dataset, DatasetInput, InputTag

    dataset = Dataset(
        name=target,
        digest=data_hash[:DIGEST_LENGTH],
        source_type="dvc",
        source=json.dumps({"file": "data.dvc", "table_hash": data_hash}),
        profile=json.dumps({"num_rows": n_rows, "num_problems": n_problems}),
    )
    tags = [InputTag("mlflow.data.context", context)]
    # Several runs of an experiment may be the first to use the data set.
    retry_on_conflict(lambda: mlflow.MlflowClient().log_inputs(run_id, [DatasetInput(dataset, tags)]))
