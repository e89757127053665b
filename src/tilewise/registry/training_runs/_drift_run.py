"""MLflow runs of drift reports, beside the trainings of the target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewise.registry._registered_models import KIND_TAG
from tilewise.registry._tracking import translate_errors
from tilewise.registry.training_runs._experiments import open_experiment


def log_drift(
    experiment: str, tags: Mapping[str, str], metrics: Mapping[str, float], files: Sequence[Path]
) -> str:  # fmt: skip
    """Log a report as a run of its own, so that the experiment's charts show drift over time; return the run's id.

    Args:
        experiment: Name of the target's experiment.
        tags: The model and the time that the report is about.
        metrics: Figures.
        files: Files of the report.

    Raises:
        RegistryUnavailableError: The registry does not answer any more.
    """
    import mlflow

    with translate_errors("the drift report cannot be logged"):
        number = open_experiment(experiment)
        client = mlflow.MlflowClient()
        run = client.create_run(number, run_name="drift", tags={**tags, KIND_TAG: "drift"})
        run_id = str(run.info.run_id)
        for name, value in metrics.items():
            client.log_metric(run_id, name, value)
        for file in files:
            client.log_artifact(run_id, str(file), "drift")
        client.set_terminated(run_id)
        return run_id
