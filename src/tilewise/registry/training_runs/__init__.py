"""MLflow runs of trainings: parameters, metrics, plots, model files, trials and data sets.

Opens a run while a training works, and takes its reports, its result and its model folder. Used by ``cli``
(``tilewise train``) and by ``registry.promotion``, which logs its decisions to the same runs. Connects through
``registry`` and loads MLflow when a function is called.
"""

from __future__ import annotations

from tilewise.registry.training_runs._datasets import UsedData, log_dataset, log_model_figures
from tilewise.registry.training_runs._drift_run import log_drift
from tilewise.registry.training_runs._experiments import open_experiment
from tilewise.registry.training_runs._find_runs import CONTENT_TAG, fetch_logged_model, find_run
from tilewise.registry.training_runs._training_run import RunStart, TrainingRun, training_run

__all__ = [
    "CONTENT_TAG",
    "RunStart",
    "TrainingRun",
    "UsedData",
    "fetch_logged_model",
    "find_run",
    "log_dataset",
    "log_drift",
    "log_model_figures",
    "open_experiment",
    "training_run",
]
