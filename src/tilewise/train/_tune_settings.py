"""Settings of the parameter search: space, objectives, budget and storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError

# Objectives of a trial; selection_time is the only one that is better when lower. See tilewise.train.tuning.
EFFICIENCIES = ("efficiency", "mean", "p10")
OBJECTIVES = (*EFFICIENCIES, "selection_time")


class Tunable(NamedTuple):
    """The kind of a tuned parameter: whether it is an integer, and whether it is searched on a logarithmic scale."""

    integer: bool
    log: bool


# max_bin is not tunable: bins are built once, before the first trial.
TUNABLE: Mapping[str, Tunable] = {
    "n_estimators": Tunable(integer=True, log=True),
    "learning_rate": Tunable(integer=False, log=True),
    "num_leaves": Tunable(integer=True, log=True),
    "min_child_samples": Tunable(integer=True, log=True),
    "feature_fraction": Tunable(integer=False, log=False),
    "bagging_fraction": Tunable(integer=False, log=False),
    "lambda_l2": Tunable(integer=False, log=True),
    "label_floor": Tunable(integer=False, log=False),
    "top_weight": Tunable(integer=False, log=False),
    "weight_floor": Tunable(integer=False, log=False),
}

DEFAULT_SPACE: Mapping[str, tuple[float, float]] = {
    "num_leaves": (63, 191),
    "min_child_samples": (5, 60),
    "feature_fraction": (0.2, 0.9),
    "lambda_l2": (0.01, 10.0),
}


@dataclass(frozen=True)
class TuneSettings:
    """The search for better parameters. Defaults are those of conf/tune.

    The first trial always has the initial parameters, so tuning never makes the out-of-fold objective worse.

    Attributes:
        n_trials: maximum number of finished trials of the study, earlier calls included; 0 or 1 keeps the initial
            parameters.
        n_estimators: trees of a trial; fewer than the final model's, because trials only compare. Where the number of
            trees is searched too, a trial grows the same share of its own number.
        n_folds: maximum number of folds that a trial runs, of the `n_splits`.
        seed: seed of the sampler.
        objectives: some of :data:`OBJECTIVES`. The first, an efficiency, is maximised; the others bound it.
        p10_slack: with ``p10`` behind another objective: maximum distance of the chosen trial's P10 below the best.
        max_slowdown: with ``selection_time``: maximum ratio of the chosen trial's time to that of the initial one.
        prune_gap: a trial stops when it lies this far behind the best trial over the folds it has run, divided by the
            square root of their number. For a single objective only.
        early_stopping: a fold stops growing after this many trees without a better selection; 0: never.
        patience: the search ends after this many finished trials without a better one; 0: never.
        storage: database of the study as SQLAlchemy URL, e.g. ``sqlite:///build/optuna.db``; None: in memory.
        study: name of the study; None: the target and a hash of everything that makes trials comparable.
        workers: processes that run trials at the same time; more than one needs a storage.
        write: ``conf``: ``tilewise train`` writes the result to conf/tuned/<target>.yaml; None: it does not.
        space: (low, high) of each searched parameter of :data:`TUNABLE`.

    Raises:
        ConfigError: a value is out of its range.
    """

    n_trials: int = 2
    n_estimators: int = 100
    n_folds: int = 2
    seed: int = 1
    objectives: tuple[str, ...] = ("efficiency",)
    p10_slack: float = 0.002
    max_slowdown: float = 1.0
    prune_gap: float = 0.005
    early_stopping: int = 50
    patience: int = 0
    storage: str | None = None
    study: str | None = None
    workers: int = 1
    write: str | None = None
    space: Mapping[str, tuple[float, float]] = field(default_factory=lambda: dict(DEFAULT_SPACE))

    def __post_init__(self) -> None:
        for name, least in (
            ("n_trials", 0),
            ("n_estimators", 1),
            ("n_folds", 1),
            ("early_stopping", 0),
            ("patience", 0),
            ("workers", 1),
        ):
            value = getattr(self, name)
            require(f"tune.{name} must be an integer of at least {least}", is_whole(value) and value >= least, value)
        for name, lowest in (("p10_slack", 0), ("prune_gap", 0), ("max_slowdown", 1)):
            value = getattr(self, name)
            require(f"tune.{name} must be {lowest} or more", value >= lowest, value)
        for name in ("storage", "study"):
            value = getattr(self, name)
            require(
                f"tune.{name} must be a text or null", value is None or (isinstance(value, str) and value != ""), value
            )
        alone = self.workers == 1 or self.storage is not None
        require("tune.workers above 1 need a tune.storage to share, e.g. sqlite:///build/optuna.db", alone, None)
        require("tune.write must be conf or null", self.write in (None, "conf"), self.write)
        self._check_objectives()
        self._check_space()

    def _check_objectives(self) -> None:
        known = ", ".join(OBJECTIVES)
        distinct = len(set(self.objectives)) == len(self.objectives) > 0 and set(self.objectives) <= set(OBJECTIVES)
        require(f"tune.objectives must be some of {known}, each once", distinct, self.objectives)
        first = ", ".join(EFFICIENCIES)
        require(f"tune.objectives must begin with one of {first}", self.objectives[0] in EFFICIENCIES, self.objectives)

    def _check_space(self) -> None:
        for name in self.space:
            require(f"tune.space may name {', '.join(TUNABLE)}", name in TUNABLE, name)
            low, high = self.space[name]
            lowest_is_fine = low > 0 if TUNABLE[name].log else low >= 0
            require(
                f"tune.space.{name} must be [low, high] with 0 < low <= high",
                lowest_is_fine and low <= high,
                (low, high),
            )


def space_from_config(space: Mapping[str, object] | None) -> dict[str, tuple[float, float]]:
    """Return ``tune.space`` of a configuration without the parameters whose range is null.

    Raises:
        ConfigError: a range is not a pair.
    """
    return {name: _range(name, ends) for name, ends in (space or {}).items() if ends is not None}


def _range(name: str, ends: object) -> tuple[float, float]:
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise ConfigError(f"tune.space.{name} must be [low, high], got {ends!r}")
    return ends[0], ends[1]
