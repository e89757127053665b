"""Settings and results of a training as MLflow's parameters, tags and metrics."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tilewise.registry.training_runs._metrics import finite

if TYPE_CHECKING:
    from tilewise.train import TrainingResult, TrainSettings


def settings_params(settings: TrainSettings) -> dict[str, object]:
    """Return the parameters that are settled before a training; tuning may change those that it searches."""
    searched = {name for name, space in settings.tune.space.items() if space} if settings.tune.n_trials > 1 else set()
    model = {name: value for name, value in dataclasses.asdict(settings.model).items() if name not in searched}
    return {
        **{name: ",".join(value) if isinstance(value, tuple) else value for name, value in model.items()},
        "n_splits": settings.n_splits,
        "seed": settings.seed,
        "holdout_fraction": settings.holdout_fraction,
        "n_trials": settings.tune.n_trials,
    }


def result_params(result: TrainingResult) -> dict[str, object]:
    """Return the parameters that a training settles: those that tuning chose, and sizes."""
    settled = settings_params(result.settings)
    return {
        **{name: value for name, value in result.params.items() if name not in settled},
        "n_used_features": len(result.parts.features.names),
        "pool_size": len(result.parts.pool),
        "n_problems": result.n_problems,
        "n_rows": result.n_rows,
        "n_holdout_problems": result.n_holdout_problems,
    }


def result_tags(result: TrainingResult) -> dict[str, str]:
    """Return the tags that identify data and sources of a training."""
    manifest = result.parts.manifest
    return {
        "tilewise.data_hash": result.data_hash,
        "tilewise.split_rule": result.split_rule,
        "tilewise.tuned": ", ".join(manifest.get("tuned", ())) or "nothing",
        **({"tilewise.git_revision": str(manifest["git_revision"])} if "git_revision" in manifest else {}),
    }


def log_results(result: TrainingResult) -> None:
    """Log overall metrics, learning curves and the features' importances to the active run."""
    import mlflow

    mlflow.log_metrics({f"cv/{k}": v for k, v in finite(result.cv_metrics).items()})
    for by, curve in (("by_problems", result.by_problems), ("by_trees", result.by_trees)):
        for p in curve:
            figures = {f"{by}/mean_efficiency": p.mean_efficiency, f"{by}/p10_efficiency": p.p10_efficiency}
            mlflow.log_metrics(figures, step=p.n)
    importances = result.feature_importances
    mlflow.log_table(
        {"feature": list(importances), "gain": [float(v) for v in importances.values()]},
        "feature_importances.json",
    )
