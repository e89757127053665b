"""The run of one training in MLflow: open while the training works, with trials and folds as they come.

A server that fails meanwhile does not stop the training; its gaps are reported at the end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.errors import RegistryUnavailableError
from tilewise.registry._tracking import translate_errors
from tilewise.registry.training_runs._datasets import UsedData, log_dataset
from tilewise.registry.training_runs._experiment_view import view_link
from tilewise.registry.training_runs._experiments import open_experiment
from tilewise.registry.training_runs._find_runs import CONTENT_TAG, MODEL_FILES, find_run
from tilewise.registry.training_runs._metrics import finite
from tilewise.registry.training_runs._results import log_results, result_params, result_tags, settings_params
from tilewise.registry.training_runs._trials import log_trial, log_trial_table

if TYPE_CHECKING:
    from tilewise.train import FoldResult, TrainingResult, TrainSettings, TrialResult

_DEFAULT_EXPERIMENT = "0"  # of `mlflow run` without --experiment-name


@dataclass(frozen=True)
class RunStart:
    """The facts that are known when a training starts.

    Attributes:
        target: Name of the target.
        experiment: Name of the experiment.
        name: The run's name.
        settings: The settings.
        tags: Tags of the run.
        also_search: Further experiments in which a training may have given the same model.
    """

    target: str
    experiment: str
    name: str
    settings: TrainSettings
    tags: Mapping[str, str] = field(default_factory=dict)
    also_search: tuple[str, ...] = ()


class TrainingRun:
    """An open run, which takes the reports of a training.

    Attributes:
        run_id: The run's id.
        page: Address on MLflow's pages that compares it with the experiment's other trainings, from their root.
    """

    def __init__(self, run_id: str, page: str, start: RunStart) -> None:
        self.run_id = run_id
        self.page = page
        self._start = start
        self._missed: Exception | None = None

    def on_trial(self, trial: TrialResult) -> None:
        """Log a tuning trial as a child run."""
        self._try(lambda: log_trial(trial))

    def on_fold(self, fold: FoldResult) -> None:
        """Log the figures of a fold, which are a series of their own."""
        import mlflow

        figures = {f"fold_{fold.fold}/{name}": value for name, value in finite(fold.metrics).items()}
        self._try(lambda: mlflow.log_metrics(figures))

    def finish(self, result: TrainingResult, model_dir: str | Path, plots: Sequence[str | Path] = ()) -> None:
        """Log the results: parameters, metrics, importances, plots, and the model's files.

        Args:
            result: The result of the training.
            model_dir: The model's folder, already written.
            plots: Image files.

        Raises:
            RegistryUnavailableError: The server does not answer, or it missed a trial or a fold.
        """
        import mlflow

        from tilewise.model import load_artefact

        content_hash = load_artefact(model_dir, verify=False).content_hash
        with translate_errors(f"the training of {result.target.name} cannot be logged"):
            twin = find_run(content_hash, (self._start.experiment, *self._start.also_search))
            mlflow.log_params(result_params(result))
            mlflow.set_tags({**result_tags(result), CONTENT_TAG: content_hash})
            sizes = (result.n_rows, result.n_problems)
            used = UsedData(result.target.name, result.data_hash, "training", result.parts.pool, *sizes)
            log_dataset(self.run_id, used)
            log_results(result)
            for plot in plots:
                mlflow.log_artifact(str(plot), "plots")
            mlflow.log_artifacts(str(model_dir), MODEL_FILES)
            log_trial_table(result.tuning)
            if twin is not None and twin != self.run_id:
                link_same_content(twin)
        if self._missed is not None:
            raise RegistryUnavailableError(
                f"the run {self.run_id} lacks trials or folds that the server missed ({self._missed}); the model is "
                f"in {model_dir}"
            )

    def _try(self, log: Callable[[], object]) -> None:
        try:
            log()
        except Exception as error:  # MLflow raises its own and those of HTTP and database clients
            self._missed = self._missed or error


def link_same_content(twin: str) -> None:
    """Link the active run to an earlier one, whose model has the same files and may have the figures of a holdout."""
    import mlflow

    experiment = mlflow.MlflowClient().get_run(twin).info.experiment_id
    note = f"The same model, file by file, as [an earlier run](#/experiments/{experiment}/runs/{twin})."
    mlflow.set_tags({"tilewise.same_content_as": twin, "mlflow.note.content": note})


@contextmanager
def training_run(start: RunStart) -> Iterator[TrainingRun]:
    """Open a run for the duration of the block; its status tells whether the block finished, failed or was killed.

    Inside ``mlflow run`` it is the run that MLflow opened, if that was asked to lie in an experiment. Otherwise that
    run refers to a new one in ``start.experiment``.

    Raises:
        AccessDeniedError: The server does not let the user do this.
        RegistryUnavailableError: The server does not answer.
    """
    import mlflow

    with translate_errors(f"the training of {start.target} cannot be logged"):
        run_id, page = _open_run(start)
        tags = {"tilewise.target": start.target, "tilewise.kind": "train", **start.tags}
        mlflow.set_tags(tags)
        mlflow.log_params(settings_params(start.settings))
    status = "FAILED"
    try:
        yield TrainingRun(run_id, page, start)
        status = "FINISHED"
    except KeyboardInterrupt:
        status = "KILLED"
        raise
    finally:
        with suppress(Exception):  # the server may be the reason; the block's own error says more
            mlflow.end_run(status)


def _open_run(start: RunStart) -> tuple[str, str]:
    """Activate the run that a training logs to; return its id and the address of its experiment's view."""
    import mlflow

    given = os.environ.pop("MLFLOW_RUN_ID", None) if mlflow.active_run() is None else None
    given = given if given and _experiment_of(given) else None
    if given and _experiment_of(given) != _DEFAULT_EXPERIMENT:
        run = mlflow.start_run(run_id=given, log_system_metrics=True)
        named = mlflow.MlflowClient().get_experiment(run.info.experiment_id).name
        return str(run.info.run_id), view_link(open_experiment(named))
    run = mlflow.start_run(
        experiment_id=open_experiment(start.experiment), run_name=start.name, nested=True, log_system_metrics=True
    )
    if given:
        note = f"The training is [this run](#/experiments/{run.info.experiment_id}/runs/{run.info.run_id})."
        client = mlflow.MlflowClient()
        client.set_tag(given, "tilewise.training_run", run.info.run_id)
        client.set_tag(given, "mlflow.note.content", note)
        mlflow.set_tag("tilewise.project_run", given)
    return str(run.info.run_id), view_link(run.info.experiment_id)


def _experiment_of(run_id: str) -> str | None:
    """Return the id of a run's experiment; None if the server in use lacks it: `mlflow run` may use another server."""
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        return str(mlflow.MlflowClient().get_run(run_id).info.experiment_id)
    except MlflowException as e:
        if e.error_code == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise
