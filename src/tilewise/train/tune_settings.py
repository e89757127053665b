"""What tuning is told: which parameters to search, for what, how long, and where trials are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewise.checks import is_whole, require

# What a trial can be judged by; the last is the only one that is better when lower. See tilewise.train.objectives.
EFFICIENCIES = ("efficiency", "mean", "p10")
OBJECTIVES = (*EFFICIENCIES, "selection_time")


class Tunable(NamedTuple):
    """How tuning walks a parameter."""

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
    """The search for better parameters; the first trial is always the given ones, so tuning never ends up worse.

    Attributes:
        n_trials: finished trials of the study at most, those of earlier calls included; 0 or 1 leaves the given
            parameters alone.
        n_estimators: trees of a trial; fewer than the final model's, as trials only compare. Where the trees are
            searched too, a trial grows the same share of its own.
        n_folds: folds that a trial sees at most, of the `n_splits`.
        seed: of the sampler.
        objectives: of :data:`OBJECTIVES`; the first, an efficiency, is what counts, the others bound it.
        p10_slack: with ``p10`` behind another objective: by how much the chosen trial's may lie below the best.
        max_slowdown: with ``selection_time``: how many times that of the given parameters the chosen trial's may be.
        prune_gap: a trial this far behind the best, over the folds it has seen, stops (divided by the root of their
            number). One objective only.
        early_stopping: a fold grows no further after so many trees without a better selection; 0: never stops early.
        patience: the search ends after so many finished trials without a better one; 0: it does not.
        storage: database of the study as SQLAlchemy's URL, e.g. ``sqlite:///build/optuna.db``; None: in memory.
        study: its name there; None: the target and a hash of what makes trials comparable.
        workers: processes that run trials at the same time; several need a storage.
        write: ``conf``: ``tilewise train`` keeps what was found as conf/model/<target>.yaml; None: it does not.
        space: (low, high) of each parameter to search, of :data:`TUNABLE`.
    """

    n_trials: int = 2
    n_estimators: int = 100
    n_folds: int = 2
    seed: int = 0
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


def space_from_config(space: Mapping[str, Any] | None) -> dict[str, tuple[float, float]]:
    """``tune.space`` of a configuration; a parameter whose range is null is not searched.

    Raises:
        ConfigError: a range is no pair.
    """
    return {name: _range(name, ends) for name, ends in (space or {}).items() if ends is not None}


def _range(name: str, ends: Any) -> tuple[float, float]:
    require(f"tune.space.{name} must be [low, high]", isinstance(ends, Sequence) and len(ends) == 2, ends)
    return ends[0], ends[1]
