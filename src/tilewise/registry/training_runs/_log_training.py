"""The log of one training in MLflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.registry._tracking import translate_errors
from tilewise.registry.training_runs._datasets import log_dataset
from tilewise.registry.training_runs._experiments import open_training_run
from tilewise.registry.training_runs._trials import log_trials

if TYPE_CHECKING:
    from tilewise.train import TrainingResult


def log_training(
    result: TrainingResult,
    model_dir: str | Path,
    plots: Sequence[str | Path] = (),
    *,
    content_hash: str | None = None,
    experiment: str | None = None,
) -> str:
    """Log one training: parameters, metrics per fold and overall, importances, plots, the model's files, the trials.

    Inside ``mlflow run`` (``MLFLOW_RUN_ID`` is set) it logs to that run, otherwise to a new one.

    Args:
        result: The result of the training.
        model_dir: The model's folder, already written.
        plots: Image files.
        content_hash: The model's content hash, by which :func:`tilewise.registry.promotion.publish` finds this run;
            None: read from `model_dir`.
        experiment: Name of the experiment; None: the target's name.

    Returns:
        The run's id.

    Raises:
        RegistryUnavailableError: The server does not answer any more.
    """
    import mlflow

    from tilewise.model import load_artefact

    if content_hash is None:
        content_hash = load_artefact(model_dir, verify=False).content_hash
    name = result.target.name
    with (
        translate_errors(f"the training of {name} cannot be logged"),
        open_training_run(experiment or name, name) as run_id,
    ):
        mlflow.log_params(_params(result))
        mlflow.set_tags(_tags(result, content_hash))
        rows = {"n_rows": result.n_rows, "n_problems": result.n_problems}
        log_dataset(run_id, name, result.data_hash, "training", **rows)
        _log_metrics(result)
        for plot in plots:
            mlflow.log_artifact(str(plot), "plots")
        mlflow.log_artifacts(str(model_dir), "model_files")
        log_trials(result.tuning)
    return run_id


def _params(result: TrainingResult) -> dict[str, object]:
    settings = result.settings
    return {
        **result.params,
        "label": settings.model.label,
        "n_splits": settings.n_splits,
        "seed": settings.seed,
        "holdout_fraction": settings.holdout_fraction,
        "n_trials": settings.tune.n_trials,
        "n_features": len(result.parts.features.names),
        "pool_size": len(result.parts.pool),
        "n_problems": result.n_problems,
        "n_rows": result.n_rows,
        "n_holdout_problems": result.n_holdout_problems,
    }


def _tags(result: TrainingResult, content_hash: str) -> dict[str, str]:
    manifest = result.parts.manifest
    return {
        "tilewise.target": result.target.name,
        "tilewise.kind": "train",
        "content_hash": content_hash,
        "data_hash": result.data_hash,
        "split_rule": result.split_rule,
        **({"git_revision": str(manifest["git_revision"])} if "git_revision" in manifest else {}),
    }


def _log_metrics(result: TrainingResult) -> None:
    """Log metrics per fold and overall, the learning curves and the features' importances to the active run."""
    import mlflow

    for fold in result.folds:
        mlflow.log_metrics({f"fold/{k}": v for k, v in _finite(fold.metrics).items()}, step=fold.fold)
    mlflow.log_metrics({f"cv/{k}": v for k, v in _finite(result.cv_metrics).items()})
    for by, curve in (("by_problems", result.by_problems), ("by_trees", result.by_trees)):
        for p in curve:
            figures = {f"{by}/mean_efficiency": p.mean_efficiency, f"{by}/p10_efficiency": p.p10_efficiency}
            mlflow.log_metrics(figures, step=p.n)
    importances = result.feature_importances
    mlflow.log_table(
        {"feature": list(importances), "gain": [float(v) for v in importances.values()]},
        "feature_importances.json",
    )


def _finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop NaN and infinity, which some of MLflow's stores refuse."""
    return {k: float(v) for k, v in metrics.items() if abs(float(v)) < float("inf")}
