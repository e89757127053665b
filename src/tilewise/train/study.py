"""The study behind a tuning: Optuna's, in memory or in a database, where later calls and other workers go on with it.

What is kept makes sense only together: a study's name ends in a hash of everything that makes its trials comparable,
and a study of another hash is refused.
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
from tilewise.train.cross_validation import Fold
from tilewise.train.dataset import Table
from tilewise.train.objectives import LOWER_IS_BETTER
from tilewise.train.result import TrialRecord
from tilewise.train.settings import TrainSettings
from tilewise.train.tune_settings import TuneSettings

# How often a fold's selections are judged while its trees grow: as many steps a fold has.
CHECKS = 6
# Trials before the first that learns from others.
STARTUP_TRIALS = 10
# Complete trials from which the importance of a parameter is worth a look.
LEAST_TRIALS = 4
# A worker says that it lives so often; one that was silent for so long is dead, and its trial is tried again.
HEARTBEAT_S, GRACE_S, RETRIES = 5, 30, 3
_LOCK_S = 60  # SQLite: how long a worker waits for another's write
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


class NumberedSampler(optuna.samplers.BaseSampler):
    """TPE whose draws depend on the trial's number and on the trials before it, not on what this process drew before.

    So a study that is continued goes on as it would have, and two workers do not draw the same.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sampler = self._seeded(0)

    def _seeded(self, number: int) -> optuna.samplers.BaseSampler:
        (seed,) = np.random.SeedSequence((self._seed, number)).generate_state(1)
        return optuna.samplers.TPESampler(seed=int(seed), n_startup_trials=STARTUP_TRIALS)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Start anew from the trial's number."""
        self._sampler = self._seeded(trial.number)
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """As TPE does."""
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """As TPE does."""
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """As TPE does."""
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        """As TPE does."""
        self._sampler.after_trial(study, trial, state, values)


class FoldPruner(optuna.pruners.BasePruner):
    """Stops a trial that, over the folds it has seen, lies behind the best completed trial at the same step.

    Optuna's own compare a trial's best step with others', and the best step here is the easiest fold; or they need many
    more steps than there are. Comparing at the same step leaves out how hard the folds are, and how far trees have
    grown; what is left of chance shrinks with the root of what was seen, and so does the gap that is allowed.
    """

    def __init__(self, gap: float) -> None:
        self._gap = gap

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to stop now."""
        if not trial.intermediate_values:
            return False
        step = max(trial.intermediate_values)
        done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        best = max((t.intermediate_values.get(step, -np.inf) for t in done), default=-np.inf)
        return bool(trial.intermediate_values[step] < best - self._gap * (CHECKS / (step + 1)) ** 0.5)


def fingerprint(table: Table, folds: Sequence[Fold], settings: TrainSettings) -> str:
    """A hash of all that decides what a trial's values are: data, features, folds, objectives, space, other settings.

    The given values of searched parameters are left out: they are a trial like others.
    """
    tune = settings.tune
    model = {k: v for k, v in vars(settings.model).items() if k not in (*tune.space, "warm_estimators", "extra_labels")}
    if "n_estimators" in tune.space:
        model["share"] = tune.n_estimators / settings.model.n_estimators  # of a trial's trees
    decisive = {
        "target": table.target.name,
        "features": table.features.names,
        "model": model,
        "tune": [tune.n_estimators, tune.early_stopping, CHECKS, tune.objectives],
        "space": {name: [float(end) for end in ends] for name, ends in sorted(tune.space.items())},
        "seed": settings.seed,
    }
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode())
    for array in (table.matrix, table.log_work, table.tflops, table.spread, table.problem, table.kernel):
        digest.update(np.ascontiguousarray(array).tobytes())
    for fold in folds[: tune.n_folds]:
        digest.update(fold.train.tobytes() + b"|" + fold.test.tobytes())
    return digest.hexdigest()


def open_study(target: str, mark: str, tune: TuneSettings, given: Mapping[str, float | int]) -> optuna.Study:
    """The study of `mark`, made where there is none, with the `given` parameters waiting as its first trial.

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
                f"{mark[:12]}); give another name, or null for one of its own"
            )
        if not study.trials:
            study.set_user_attr("comparable", mark)
            study.set_user_attr("objectives", list(tune.objectives))
            study.enqueue_trial(dict(given), user_attrs={"given": True}, skip_if_exists=True)
    return study


def records(study: optuna.Study) -> tuple[TrialRecord, ...]:
    """The trials that are over, in order."""
    objectives = tuple(study.user_attrs["objectives"])
    return tuple(_record(t, objectives) for t in study.get_trials(deepcopy=False) if t.state in _STATES)


def importances(study: optuna.Study) -> dict[str, float]:
    """Share of each parameter in what tells good trials from bad ones (PED-ANOVA), of the first objective.

    Empty where there are too few complete trials to say.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    if len(complete) < LEAST_TRIALS:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # given a target, optuna asks what makes it low, and says so
        warnings.filterwarnings("ignore", "PedAnova", UserWarning)
        several = len(study.directions) > 1
        return optuna.importance.get_param_importances(
            study, target=(lambda trial: -float(trial.values[0])) if several else None
        )


def _record(trial: FrozenTrial, objectives: tuple[str, ...]) -> TrialRecord:
    folds = np.array(trial.user_attrs.get("folds", []), dtype=np.float64).reshape(-1, len(objectives))
    means = folds.mean(axis=0).tolist() if len(folds) else [float("nan")] * len(objectives)
    return TrialRecord(
        number=trial.number,
        params=trial.user_attrs.get("params", trial.params),
        value=means[0],
        fold_values=tuple(folds[:, 0].tolist()),
        state=_STATES[trial.state],  # type: ignore[arg-type]  # the names are TrialState's
        values=dict(zip(objectives, means, strict=True)),
        given=bool(trial.user_attrs.get("given", False)),
    )


def _storage(url: str) -> optuna.storages.RDBStorage:
    parsed = sqlalchemy.make_url(url)
    sqlite = parsed.get_backend_name() == "sqlite"
    if sqlite and parsed.database:
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # heartbeats, since version 2.9
        return optuna.storages.RDBStorage(
            url,
            engine_kwargs={"connect_args": {"timeout": _LOCK_S}} if sqlite else None,
            heartbeat_interval=HEARTBEAT_S,
            grace_period=GRACE_S,
            heartbeat_stale_trial_callback=optuna.storages.RetryHeartbeatStaleTrialCallback(max_retry=RETRIES),
        )


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
