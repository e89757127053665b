"""The gate's decision in MLflow: numbers, record, page and plots on the candidate's run, tags on its version."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from tilewise.evaluate.slices import slice_names, sliced_metrics
from tilewise.registry import versions
from tilewise.registry.datasets import log_dataset
from tilewise.registry.describe import description, weakest
from tilewise.registry.judge import Judgement
from tilewise.registry.publish import open_run
from tilewise.registry.record import PAGE, RECORD, parse
from tilewise.registry.report import to_html
from tilewise.registry.tracking import guard
from tilewise.registry.versions import Version

_RECORD_TAG = "gate_record"
_FOLDER = "promotion"


def log_decision(judged: Judgement, text: str, experiment: str) -> tuple[str, bool]:
    """Log a decision once; logging it again changes nothing.

    Args:
        judged: the decision.
        text: its record.
        experiment: where a run is made if the version has none any more.

    Returns:
        The run's id, and whether the decision is new to it.

    Raises:
        RegistryUnavailableError: the registry went away.
    """
    import mlflow
    from mlflow.entities import Metric, RunTag

    version, digest = judged.version, hashlib.sha256(text.encode()).hexdigest()
    client = mlflow.MlflowClient()
    with guard(f"the gate's decision on {version} cannot be logged"):
        run_id = open_run(version, experiment)
        if version.tags.get(_RECORD_TAG) == digest:
            return run_id, False
        now = int(client.get_run(run_id).info.start_time)
        client.log_batch(
            run_id,
            metrics=[Metric(k, v, now, 0) for k, v in _figures(judged).items()],
            tags=[RunTag(versions.DECISION_TAG, judged.outcome)],
        )
        n_rows, n_problems = len(judged.ours.measured), judged.gate.n_problems
        target = judged.ours.target.name
        log_dataset(run_id, target, judged.holdout_hash, "holdout", n_rows=n_rows, n_problems=n_problems)
        client.log_text(run_id, text, f"{_FOLDER}/{RECORD}")
        client.log_text(run_id, to_html(parse(text) or {}), f"{_FOLDER}/{PAGE}")
    weak = weakest(
        sliced_metrics(judged.both, slice_names(judged.ours.target.op, judged.both)),
        judged.gate.thresholds.slices.min_problems,
    )
    versions.describe(version.target, version.number, description(judged.model, parse(text), weak))
    versions.set_tag(version, versions.DECISION_TAG, f"{judged.outcome}: {'; '.join(judged.reasons)}"[:1000])
    versions.set_tag(version, versions.HOLDOUT_TAG, judged.holdout_hash)
    versions.set_tag(version, _RECORD_TAG, digest)
    return run_id, True


def log_plots(judged: Judgement, run_id: str) -> None:
    """Draw a decision: a second's work, and half a second's import, so only once it stands.

    Raises:
        RegistryUnavailableError: the registry went away.
    """
    import mlflow

    from tilewise.evaluate.report import write_plots
    from tilewise.registry.plots import write_comparison

    with guard(f"the plots of {judged.version} cannot be logged"), tempfile.TemporaryDirectory() as scratch:
        client = mlflow.MlflowClient()
        for plot in write_plots(Path(scratch), judged.ours):
            client.log_artifact(run_id, str(plot), "plots/holdout")
        for plot in write_comparison(Path(scratch) / "against_production", judged):
            client.log_artifact(run_id, str(plot), "plots/against_production")


def logged_record(version: Version) -> str:
    """The record that the registry keeps of a version's last decision, or ""."""
    import mlflow

    if version.run_id is None or _RECORD_TAG not in version.tags:
        return ""
    try:
        return str(mlflow.artifacts.load_text(f"runs:/{version.run_id}/{_FOLDER}/{RECORD}"))
    except (mlflow.exceptions.MlflowException, OSError):
        return ""


def _figures(judged: Judgement) -> dict[str, float]:
    """Metrics, finite ones. The selection time stands here alone: a record must not differ from run to run."""
    figures = {f"gate/{c.name}_change_points": c.change_points for c in judged.gate.checks}
    figures |= {f"holdout/{k}": float(v) for k, v in judged.ours.metrics.items()}
    if judged.selection_time_ratio is not None:
        figures["gate/selection_time_ratio"] = judged.selection_time_ratio
    figures["gate/refusing_slices"] = len(judged.gate.weak_slices)
    return {k: v for k, v in figures.items() if abs(v) < float("inf")}
