"""Train a model on measurements, and log the training to MLflow.

tilewise train [data=FILE_OR_FOLDER] [out=FOLDER] [n_splits=5] [tune.n_trials=5] [model.n_estimators=600] ...
               [register=true] [teachers='[TARGET,...]'] [targets='[tflops,latency,bandwidth]']
tilewise train experiment=smoke              a sample of the problems and few trees: does it work? in a minute

teachers are targets of the same op whose measurements `data` has as well, such as those of an older GPU or of another
dtype: their rows are learnt with less weight and never judge. Those of another arch need model.label=relative.

targets is another name of model.extra_labels: latency and bandwidth get trees of their own (TFLOPS always has them). A
warm start continues the ones that are named, and drops others of the base model.

Problems of the holdout are dropped, whatever table is given. The run is open while the training works; a server that
fails meanwhile does not stop it. Nothing is registered, unless register=true makes the model a candidate. The
pipeline logs to tracking.experiment, everything else to tracking.sandbox; `tilewise promote run=ID`
publishes a model of either and lets the gate decide.
"""

from __future__ import annotations

import shlex
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tilewise.arch import load_arch
from tilewise.cli._console import plain_console, write_result
from tilewise.cli._figures import show_figures
from tilewise.cli._origin import Origin, version_tags
from tilewise.cli._tuned import write_tuned
from tilewise.cli.compose import overrides_for
from tilewise.cluster import ClusterSettings, Executor, open_executor
from tilewise.data import Measurements, TargetTable, open_measurements, read_measurements
from tilewise.evaluate import noise_ceiling
from tilewise.evaluate.plots import (
    plot_by_problems,
    plot_by_trees,
    plot_efficiency,
    plot_importances,
    plot_predictions,
    plot_regret,
    plot_study,
)
from tilewise.metrics import regret_curve, select
from tilewise.model import write_artefact
from tilewise.ops import Target
from tilewise.registry import connect
from tilewise.registry.promotion import publish
from tilewise.registry.training_runs import RunStart, TrainingRun, training_run
from tilewise.train import (
    BaseModel,
    Callbacks,
    FoldResult,
    TrainingResult,
    TrainSettings,
    TrialResult,
    continue_training,
    pool_of,
    settings_from_config,
    train,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Train ``cfg.target`` on ``cfg.data`` into ``cfg.out`` (default ``cfg.model_dir``).

    Raises:
        ConfigError: a setting is invalid.
        DataError: the table cannot be used.
        RegistryUnavailableError: the tracking server does not answer; this is checked before training.
    """
    from omegaconf import OmegaConf

    settings = settings_from_config(cast("dict[str, object]", OmegaConf.to_container(cfg, resolve=True)))
    target = Target.parse(cfg.target)
    base = _base(cfg, target, settings)
    cluster = ClusterSettings.from_config(cfg.cluster)
    console = plain_console()
    rows = _read(cfg, target, settings, console)
    uri = connect(cfg.tracking.uri)  # may create a database, so mistakes in the inputs are found before
    folder, start = Path(cfg.out or cfg.model_dir), _start(cfg, settings if base is None else base.settings(settings))
    with open_executor(cluster) as executor, _ended_by_sigterm(), training_run(start) as log:
        result = _train(rows, target, settings, _Reports(console, log), base, executor)
        write_artefact(folder, result.parts)
        with tempfile.TemporaryDirectory() as scratch:
            log.finish(result, folder, _plots(result, Path(scratch)))
    version = publish(folder, log.run_id, tags=version_tags()) if cfg.register else None
    made = f"registered as {version} (candidate)" if version else f"run {log.run_id} of {start.experiment}"
    show_figures(
        console,
        f"{target.name}, out of fold",
        {"cv": result.cv_metrics},
        pool_size=len(result.parts.pool),
        split_rule=result.split_rule,
        ceiling=noise_ceiling(rows, target),
    )
    told = f"model: {folder}, {made} at {uri}\ncompare: {_page(uri, log.page)}"
    console.print(told, soft_wrap=True, highlight=False)
    number = version and version.number
    write_result({"model": folder, "run_id": log.run_id, "version": number, "cv": result.cv_metrics})
    if settings.tune.write and result.tuning.study:
        path = write_tuned(target.name, result.tuning.model, _origin(cfg, result))
        tuned = f"tuned: {path}" if path else "tuned: no trial was better than conf/model/default.yaml; nothing is kept"
        console.print(f"{tuned} (study {result.tuning.study})", soft_wrap=True, highlight=False)


def _base(cfg: DictConfig, target: Target, settings: TrainSettings) -> BaseModel | None:
    """Return the model to continue, if there is one."""
    if cfg.warm_start is None:
        return None
    base = BaseModel.load(Path(cfg.warm_start))
    base.check(target, settings)
    return base


def _read(cfg: DictConfig, target: Target, settings: TrainSettings, console: Console) -> pd.DataFrame | Measurements:
    """Return the measurements of a target and of its teachers, or a sample; a large table alone is not read yet."""
    if cfg.sample.problems is not None:
        console.print(f"a sample of {cfg.sample.problems} problems: the figures only tell whether training works")
        return _sample(_read_all(cfg, target, settings), target, settings, cfg.sample.problems)
    if settings.teachers:
        return _read_all(cfg, target, settings)
    return open_measurements(Path(cfg.data), target, cfg.chunk_rows)


def _read_all(cfg: DictConfig, target: Target, settings: TrainSettings) -> pd.DataFrame:
    tables = [read_measurements(Path(cfg.data), each) for each in (target, *settings.teachers)]
    return pd.concat(tables, ignore_index=True)


def _page(uri: str, page: str) -> str:
    """Return the address of one of MLflow's pages, after the command that serves it where no server runs."""
    if uri.startswith("http"):
        return f"{uri}/{page}"
    return f"http://127.0.0.1:5000/{page}, served by: mlflow ui --backend-store-uri {uri}"


def _sample(frame: pd.DataFrame, target: Target, settings: TrainSettings, n_problems: int) -> pd.DataFrame:
    """Return the rows of `n_problems` problems that are not held out, and those of the holdout, which train drops."""
    table = TargetTable.of(frame, target)
    drawn = table.training(settings.holdout_fraction).draw(n_problems, settings.seed)
    return pd.concat([drawn.rows, table.holdout(settings.holdout_fraction).rows], ignore_index=True)


def _start(cfg: DictConfig, settings: TrainSettings) -> RunStart:
    """Return the facts for the run that is open while the training works."""
    origin = Origin.find()
    return RunStart(
        target=cfg.target,
        experiment=origin.experiment(cfg),
        name=origin.run_name(cfg),
        settings=settings,
        tags=origin.tags(cfg),
        also_search=(cfg.tracking.experiment, cfg.tracking.sandbox),
    )


def _origin(cfg: DictConfig, result: TrainingResult) -> str:
    """Return the origin of tuned settings: study, data and the command that repeats it."""
    tuning, chosen = result.tuning, result.tuning.chosen
    found = ", ".join(f"{name} {value:.4f}" for name, value in chosen.values.items()) if chosen else "no complete trial"
    command = shlex.join(["tilewise", "train", *overrides_for(cfg, ("model", "tune", "n_splits", "seed", "holdout"))])
    return (
        f"study: {tuning.study}, {len(tuning.trials)} trials, {datetime.now(UTC):%Y-%m-%d}, chosen: {found}\n"
        f"data: {result.data_hash}\n"
        f"command: {command}"
    )


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as Ctrl-C does, so that the run is marked as killed."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class _Reports:
    """The receivers of a training's progress."""

    console: Console
    log: TrainingRun


def _train(
    rows: pd.DataFrame | Measurements,
    target: Target,
    settings: TrainSettings,
    reports: _Reports,
    base: BaseModel | None,
    executor: Executor,
) -> TrainingResult:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    tuning = settings.tune.n_trials if settings.tune.n_trials > 1 and settings.tune.space else 0
    with Progress(*columns, console=reports.console) as progress:
        trials = progress.add_task("tuning", total=tuning, visible=tuning > 0)
        folds = progress.add_task("cross-validation", total=settings.n_splits)

        def on_trial(trial: TrialResult) -> None:
            reports.log.on_trial(trial)
            progress.update(trials, advance=1, description=f"tuning ({trial.value:.4f} {trial.state})")

        def on_fold(fold: FoldResult) -> None:
            reports.log.on_fold(fold)
            mean = fold.metrics["mean_efficiency"]
            progress.update(folds, advance=1, description=f"cross-validation ({100 * mean:.2f} %)")

        callbacks = Callbacks(on_trial, on_fold, executor)
        if base:
            return continue_training(rows, target, base, settings, callbacks)
        return train(rows, target, pool_of(rows, target), load_arch(target.arch), settings, callbacks)


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
