"""The log of a training that is over: tests train once, and log the result to several stores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewise.registry.training_runs import RunStart, training_run
from tilewise.train import TrainingResult


def log_training(result: TrainingResult, model_dir: Path, plots: Sequence[Path] = ()) -> str:
    """Report a training to a run as the verb does while it trains; return the run's id."""
    name = result.target.name
    with training_run(RunStart(name, name, f"train {name}", result.settings)) as run:
        for trial in result.tuning.trials:
            run.on_trial(trial)
        for fold in result.folds:
            run.on_fold(fold)
        run.finish(result, model_dir, plots)
    return run.run_id
