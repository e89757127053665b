"""The trials of a tuning as nested MLflow runs and as one table."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from tilewise.registry.training_runs._metrics import finite

if TYPE_CHECKING:
    from tilewise.train import TrialResult, TuningResult


def log_trial_table(tuning: TuningResult) -> None:
    """Log all trials to the active run as ``trials.csv``."""
    import mlflow

    if not tuning.trials:
        return
    mlflow.set_tag("tilewise.study", str(tuning.study))
    mlflow.log_text(trials_csv(tuning), "trials.csv")


def trials_csv(tuning: TuningResult) -> str:
    """Return a CSV with one row per trial.

    The columns are the number, the state, flags of the initial and the chosen trial, parameters, objectives and folds.
    """
    params = sorted({name for t in tuning.trials for name in t.params})
    objectives = sorted({name for t in tuning.trials for name in t.values})
    most = max((len(t.fold_values) for t in tuning.trials), default=0)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["number", "state", "given", "chosen", *params, *objectives, *(f"fold_{i}" for i in range(most))])
    for t in tuning.trials:
        chosen = tuning.chosen is not None and t.number == tuning.chosen.number
        drawn, values = [t.params.get(name, "") for name in params], [t.values.get(name, "") for name in objectives]
        rows.writerow([t.number, t.state, int(t.is_initial), int(chosen), *drawn, *values, *t.fold_values])
    return text.getvalue()


def log_trial(trial: TrialResult) -> None:
    """Log a trial as a child of the active run; NaN, of a trial without folds, is left out."""
    import mlflow

    parent = mlflow.active_run()
    assert parent is not None
    # Without its experiment a child lands in MLflow's default one.
    with mlflow.start_run(experiment_id=parent.info.experiment_id, run_name=f"trial {trial.number}", nested=True):
        mlflow.log_params(dict(trial.params))
        mlflow.set_tags({"tilewise.kind": "trial", "tilewise.trial_state": trial.state})
        figures = {f"fold_{fold}/objective": value for fold, value in enumerate(trial.fold_values)}
        if trial.fold_values:
            figures |= {"objective": trial.value, **{f"objective/{k}": v for k, v in trial.values.items()}}
        mlflow.log_metrics(finite(figures))
