"""Train a model on measurements, log the training to MLflow and register the model as candidate.

tilewise train [data=FILE_OR_FOLDER] [out=FOLDER] [n_splits=5] [tune.n_trials=5] [model.n_estimators=600] ...

Problems of the holdout are dropped here, whatever table is given. The model is written before anything is logged: if
the tracking server goes away meanwhile, the training is not lost, and `tilewise promote` publishes it later.
"""

from __future__ import annotations

import shlex
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewise.arch import load_arch
from tilewise.cli.compose import overrides_for
from tilewise.cli.figures import show_figures
from tilewise.cli.tuned import write_tuned
from tilewise.data.schema import read_measurements
from tilewise.evaluate.learning_plots import plot_by_problems, plot_by_trees
from tilewise.evaluate.noise import noise_ceiling
from tilewise.evaluate.plots import plot_efficiency, plot_importances, plot_predictions, plot_regret
from tilewise.evaluate.study_plots import plot_study
from tilewise.metrics import regret_curve, select
from tilewise.model.artefact import write_artefact
from tilewise.ops import Target
from tilewise.registry.publish import publish
from tilewise.registry.tracking import connect, log_training
from tilewise.train.fit import train
from tilewise.train.pool import pool_of
from tilewise.train.result import FoldRecord, TrainingResult, TrialRecord
from tilewise.train.settings import TrainSettings, settings_from_config
from tilewise.train.warm import Base

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Train ``cfg.target`` on ``cfg.data`` into ``cfg.out`` (default ``cfg.model_dir``).

    Raises:
        ConfigError: a setting is wrong, or asks for what is not there yet.
        DataError: the table cannot be used.
        RegistryUnavailableError: the tracking server does not answer; nothing was trained yet.
    """
    from omegaconf import OmegaConf

    settings = settings_from_config(cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True)))
    target = Target.parse(cfg.target)
    base = None if cfg.warm_start is None else Base.load(Path(cfg.warm_start))
    uri = connect(cfg.tracking.uri)
    frame = read_measurements(Path(cfg.data), target)
    console = Console()
    result = _train(frame, target, settings, console, base)
    folder = Path(cfg.out or cfg.model_dir)
    write_artefact(folder, result.parts)
    with tempfile.TemporaryDirectory() as scratch:
        run_id = log_training(result, folder, _plots(result, Path(scratch)), experiment=cfg.tracking.experiment)
    version = publish(folder, run_id, experiment=cfg.tracking.experiment)
    show_figures(
        console,
        f"{target.name}, out of fold",
        {"cv": result.cv_metrics},
        pool_size=len(result.parts.pool),
        split_rule=result.split_rule,
        ceiling=noise_ceiling(frame, target),
    )
    console.print(f"model: {folder}, registered as {version} (candidate) at {uri}", soft_wrap=True, highlight=False)
    if settings.tune.write and result.tuning.study:
        kept = write_tuned(target.name, result.tuning.model, _origin(cfg, result))
        said = f"tuned: {kept}" if kept else "tuned: no trial was better than conf/model/default.yaml; nothing is kept"
        console.print(f"{said} (study {result.tuning.study})", soft_wrap=True, highlight=False)


def _origin(cfg: DictConfig, result: TrainingResult) -> str:
    """Where tuned settings come from, for whoever reads or repeats them."""
    tuning, chosen = result.tuning, result.tuning.chosen
    found = ", ".join(f"{name} {value:.4f}" for name, value in chosen.values.items()) if chosen else "no complete trial"
    command = shlex.join(["tilewise", "train", *overrides_for(cfg, ("model", "tune", "n_splits", "seed", "holdout"))])
    return (
        f"study: {tuning.study}, {len(tuning.trials)} trials, {datetime.now(UTC):%Y-%m-%d}, chosen: {found}\n"
        f"data: {result.data_hash}\n"
        f"command: {command}"
    )


def _train(
    frame: pd.DataFrame, target: Target, settings: TrainSettings, console: Console, base: Base | None
) -> TrainingResult:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tuning = settings.tune.n_trials if settings.tune.n_trials > 1 and settings.tune.space else 0
    with Progress(*columns, console=console) as progress:
        trials = progress.add_task("tuning", total=tuning, visible=tuning > 0)
        folds = progress.add_task("cross-validation", total=settings.n_splits)

        def on_trial(trial: TrialRecord) -> None:
            progress.update(trials, advance=1, description=f"tuning ({trial.value:.4f} {trial.state})")

        def on_fold(fold: FoldRecord) -> None:
            mean = fold.metrics["mean_efficiency"]
            progress.update(folds, advance=1, description=f"cross-validation ({100 * mean:.2f} %)")

        pool = pool_of(frame, target)
        arch = load_arch(target.arch)
        return train(frame, target, pool, arch, settings, on_trial=on_trial, on_fold=on_fold, base=base)


def _plots(result: TrainingResult, folder: Path) -> list[Path]:
    predicted = result.out_of_fold
    regret = regret_curve(select(predicted.problem, predicted.measured, predicted.predicted))
    return [
        plot_efficiency({"out of fold": predicted.efficiency}, folder / "efficiency.png"),
        plot_predictions(predicted.measured, predicted.predicted, folder / "predictions.png"),
        plot_regret(regret, None, folder / "regret.png"),
        plot_importances(result.feature_importances, folder / "feature_importances.png"),
        plot_by_trees(result.by_trees, folder / "learning_curve_trees.png"),
        *([plot_by_problems(result.by_problems, folder / "learning_curve.png")] if result.by_problems else []),
        *plot_study(result.tuning, folder),
    ]
