"""Measurements as MLflow datasets: a name and a digest on the run, by which runs on the same data are found."""

from __future__ import annotations

import json

from tilewise.registry.overtaken import again_if_overtaken

DIGEST_LENGTH = 32  # MLflow takes 36 characters at most


def log_dataset(run_id: str, target: str, data_hash: str, context: str, *, n_rows: int, n_problems: int) -> None:
    """Say what a run used. The rows themselves stay where they are: DVC has them.

    Args:
        run_id: of the run.
        target: name of the target.
        data_hash: see :func:`tilewise.data.digest.table_hash`.
        context: what for: ``training``, ``holdout``.
        n_rows: of the table that was used.
        n_problems: therein.
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
    # several runs of an experiment may be the first to use it
    again_if_overtaken(lambda: mlflow.MlflowClient().log_inputs(run_id, [DatasetInput(dataset, tags)]))
