"""The Optuna study of a search: in memory, or in a database that later calls and other workers share.

Trials are only comparable under equal data and settings. A study's name ends in a hash of them, and a study with
another hash is refused.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import sqlalchemy
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tilewise.errors import ConfigError
from tilewise.train._cross_validation import Fold
from tilewise.train._dataset import Table
from tilewise.train._settings import TrainSettings
from tilewise.train._training_result import TrialResult
from tilewise.train._tune_settings import TuneSettings
from tilewise.train.tuning._objectives import LOWER_IS_BETTER

# A fold's selections are evaluated this often while its trees grow: steps per fold for the pruner.
CHECKPOINTS = 6
# Trials drawn at random before the sampler learns from earlier ones.
STARTUP_TRIALS = 10
# Complete trials that parameter importances need.
MIN_TRIALS_FOR_IMPORTANCES = 4
# Heartbeat of a worker, and the silence after which its trial is failed and repeated.
HEARTBEAT_S, GRACE_S, RETRIES = 5, 30, 3
TASK = "task"  # attribute of a trial: the task of an executor that runs it
_LOCK_S = 60  # SQLite: time that a worker waits for another's write
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


Params = Mapping[str, float | int]


class NumberedSampler(optuna.samplers.BaseSampler):
    """TPE whose draws depend only on the trial's number and on earlier trials, not on this process's earlier draws.

    A resumed study continues as it would have without the break, and two workers do not draw the same values.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sampler = self._seeded(0)

    def _seeded(self, number: int) -> optuna.samplers.BaseSampler:
        (seed,) = np.random.SeedSequence((self._seed, number)).generate_state(1)
        return optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=STARTUP_TRIALS)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Seed the sampler by the trial's number."""
        self._sampler = self._seeded(trial.number)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return TPE's search space."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample as TPE does."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Sample as TPE does."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """Pass the finished trial to TPE."""
        self._sampler.after_trial(study, trial, state, values)


class FoldPruner(optuna.pruners.BasePruner):
    """Pruner that stops a trial which lies behind the best completed trial at the same step.

    Optuna's pruners compare a trial's best step with other trials', but here the best step is the easiest fold; or they
    need many more steps. Comparing at the same step cancels the difficulty of the folds and the growth of the trees.
    The remaining noise shrinks with the square root of the steps, and so does the allowed gap.
    """

    def __init__(self, gap: float) -> None:
        self._gap = gap

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Return whether the trial stops now."""
        if not trial.intermediate_values:
            return False
        step = max(trial.intermediate_values)
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = max((t.intermediate_values.get(step, -np.inf) for t in done), default=-np.inf)
        return bool(trial.intermediate_values[step] < best - self._gap * (CHECKPOINTS / (step + 1)) ** 0.5)


def fingerprint(table: Table, folds: Sequence[Fold], settings: TrainSettings) -> str:
    """Return a hash of everything that affects a trial's values: data, features, folds, objectives, space, settings.

    The initial values of searched parameters are left out: they are one trial among others.
    """
    tune = settings.tune
    model = {k: v for k, v in vars(settings.model).items() if k not in (*tune.space, "warm_estimators", "extra_labels")}
    if "n_estimators" in tune.space:
        model["share"] = tune.n_estimators / settings.model.n_estimators  # of the final number of trees
    decisive = {
        "target": table.target.name,
        "features": table.features.names,
        "model": model,
        "tune": [tune.n_estimators, tune.early_stopping, CHECKPOINTS, tune.objectives],
        "space": {name: [float(end) for end in ends] for name, ends in sorted(tune.space.items())},
        "seed": settings.seed,
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    for matrix in table.feature_rows.batches():
        digest.update(matrix.tobytes())
    numbers = (array.astype(np.int64) for array in (table.problem, table.kernel))
    for array in (table.log_work, table.tflops, table.spread, *numbers):
        digest.update(np.ascontiguousarray(array).tobytes())
    for fold in folds[: tune.n_folds]:
        digest.update(fold.train.tobytes() + b"|" + fold.test.tobytes())
    return digest.hexdigest()


def open_study(target: str, mark: str, tune: TuneSettings, initial: Params) -> optuna.Study:
    """Open or create the study of a fingerprint; a new study starts with a trial of the initial parameters.

    Args:
        target: name of the target.
        mark: from :func:`fingerprint`.
        tune: storage, name, objectives and seed.
        initial: parameters of the first trial.

    Raises:
        ConfigError: the storage cannot be opened, or the study of this name has other data or settings.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = tune.study or f"{target}-{mark[:12]}"
    with _clear_errors(tune.storage):
        study = optuna.create_study(
            study_name=name,
            storage=None if tune.storage is None else _storage(tune.storage),
            directions=["minimize" if n in LOWER_IS_BETTER else "maximize" for n in tune.objectives],
            sampler=NumberedSampler(tune.seed),
            pruner=FoldPruner(tune.prune_gap),
            load_if_exists=True,
        )
        known = study.user_attrs.setdefault("comparable", mark)
        if known != mark:
            raise ConfigError(
                f"tune.study={name} holds trials on other data, folds or settings ({known[:12]}, these are "
                f"{mark[:12]}); set another name, or null for a name of its own"
            )
        if not study.trials:
            study.set_user_attr("comparable", mark)
            study.set_user_attr("objectives", list(tune.objectives))
            study.enqueue_trial(dict(initial), user_attrs={"given": True}, skip_if_exists=True)
    return study


def repeat_lost(study: optuna.Study, task: str) -> bool:
    """Queue the trial of a task again whose worker was lost, before its heartbeat is missed.

    Returns:
        Whether the task's trial was finished before the worker was lost.
    """
    for trial in study.get_trials(deepcopy=False):
        if trial.user_attrs.get(TASK) != task:
            continue
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            return True
        if trial.state == TrialState.RUNNING:
            attributes = {"given": True} if trial.user_attrs.get("given") else {}
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
            study.enqueue_trial(trial.params, user_attrs=attributes)
    return False


def with_absolute_path(url: str) -> str:
    """Return a storage's URL that means the same file in any folder; other databases' URLs stay as they are."""
    parsed = sqlalchemy.make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return url
    return parsed.set(database=str(Path(parsed.database).absolute())).render_as_string(hide_password=False)


def finished_trials(study: optuna.Study) -> tuple[TrialResult, ...]:
    """Return the trials that are over, in order; failed ones included."""
    objectives = tuple(study.user_attrs["objectives"])
    return tuple(_result(t, objectives) for t in study.get_trials(deepcopy=False) if t.state in _STATES)


def parameter_importances(study: optuna.Study) -> dict[str, float]:
    """Return each parameter's share in separating good trials from bad ones by the first objective (PED-ANOVA).

    Empty where too few trials are complete.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < MIN_TRIALS_FOR_IMPORTANCES:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # With a target, Optuna explains low values, and warns about it.
        warnings.filterwarnings("ignore", "PedAnova", UserWarning)
        several = len(study.directions) > 1
        return optuna.importance.get_param_importances(
            study, target=(lambda trial: -float(trial.values[0])) if several else None
        )


def _result(trial: FrozenTrial, objectives: tuple[str, ...]) -> TrialResult:
    folds = np.array(trial.user_attrs.get("folds", []), dtype=np.float64).reshape(-1, len(objectives))
    means = folds.mean(axis=0).tolist() if len(folds) else [float("nan")] * len(objectives)
    return TrialResult(
        number=trial.number,
        params=trial.user_attrs.get("params", trial.params),
        value=means[0],
        fold_values=tuple(folds[:, 0].tolist()),
        state=_STATES[trial.state],  # type: ignore[arg-type]  # the names are TrialState's
        values=dict(zip(objectives, means, strict=True)),
        is_initial=bool(trial.user_attrs.get("given", False)),
    )


def _storage(url: str) -> optuna.storages.RDBStorage:
    parsed = sqlalchemy.make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats, since version 2.9
        storage = optuna.storages.RDBStorage(
            url,
            engine_kwargs={"connect_args": {"timeout": _LOCK_S}} if sqlite else None,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )
    if sqlite:
        # SQLite ignores SELECT ... FOR UPDATE, by which Optuna keeps two workers from taking the same queued trial.
        sqlalchemy.event.listen(storage.engine, "begin", lambda c: c.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage


@contextmanager
def _clear_errors(url: str | None) -> Iterator[None]:
    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError, ImportError) as e:
        try:
            shown = sqlalchemy.make_url(url or "").render_as_string(hide_password=True)
        except sqlalchemy.exc.ArgumentError:
            shown = str(url)
        reason = str(e.__cause__ or e).strip().splitlines()[0]
        raise ConfigError(f"tune.storage={shown} cannot be used: {reason}") from e
