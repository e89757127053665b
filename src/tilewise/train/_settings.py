"""Settings of a training: frozen, checked on construction, with the defaults of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError
from tilewise.model import COST_MODEL_LABELS, EXTRA_LABELS, LABELS
from tilewise.ops import Target
from tilewise.train._tune_settings import TuneSettings, space_from_config

_ROWS_PER_LEAF, _FEWEST_LEAVES = 250, 15  # see TrainSettings.sized_for


@dataclass(frozen=True)
class ModelSettings:
    """Label and trees of a model; names as in LightGBM, except for the label. Defaults are those of conf/model.

    Attributes:
        label: ``lambdarank`` starts from the cost model (see :mod:`tilewise.features`) and learns the order of graded
            efficiencies, see :class:`tilewise.train._ranking.LambdaRank`. ``residual`` learns the deviation of a launch
            from the cost model. ``regret`` does the same where it decides the selection, see
            :class:`tilewise.train._ranking.ExpectedRegret`. ``relative`` learns log(TFLOPS / the problem's best
            TFLOPS), so that no split is spent on properties that all kernels of a problem share. ``log1p`` learns
            log1p(TFLOPS).
        shortlist: number of kernels per problem that trees learn from and rank: those that the cost model ranks first,
            see :mod:`tilewise.model`. All kernels for 0, and for labels without a cost model.
        n_features: number of features, chosen by their gain in a few trees; each takes time in every selection. 0: all.
        num_leaves: most leaves of a tree; see :meth:`TrainSettings.sized_for`.
        label_floor: relative efficiencies below this count as this, in the label ``relative`` and as weights in the
            cost model's calibration: distinguishing 1 % from 3 % does not help to select. 0 keeps them as they are.
        top_weight: rows weigh ``max(efficiency, weight_floor) ** top_weight``; 0 weighs all the same. Not for
            ``lambdarank``, whose pairs have weights of their own.
        weight_floor: see `top_weight`. Without it, trees hardly see bad kernels, and now and then select one.
        noise_floor: a row weighs half where its samples spread by this share of their median (half the distance
            between the 20th and 80th percentile); 0 ignores the spread.
        hard_weight: hard-example mining (IHEM) for labels with a cost model: rows weigh ``1 + hard_weight * regret``,
            the regret being that of selecting by the cost model; 0 weighs all problems the same.
        teacher_weight: weight of the rows of other targets, see :attr:`TrainSettings.teachers`.
        extra_labels: further boosters for log(latency) and log(bandwidth), any of ``latency`` and ``bandwidth``.
        warm_estimators: trees that continuing a model adds, in place of `n_estimators`.

    Raises:
        ConfigError: a value is out of its range.
    """

    label: str = "lambdarank"
    shortlist: int = 24
    n_features: int = 0
    n_estimators: int = 200
    learning_rate: float = 0.16
    num_leaves: int = 186
    min_child_samples: int = 12
    feature_fraction: float = 0.884
    bagging_fraction: float = 0.8
    bagging_freq: int = 1
    lambda_l2: float = 0.0206
    max_bin: int = 255
    label_floor: float = 0.1
    top_weight: float = 4.0
    weight_floor: float = 0.5
    noise_floor: float = 0.0
    hard_weight: float = 0.0
    teacher_weight: float = 0.4
    extra_labels: tuple[str, ...] = ()
    warm_estimators: int = 60

    def __post_init__(self) -> None:
        require(f"model.label must be one of {', '.join(LABELS)}", self.label in LABELS, self.label)
        for name, least in (
            ("shortlist", 0),
            ("n_features", 0),
            ("n_estimators", 1),
            ("warm_estimators", 1),
            ("num_leaves", 2),
            ("min_child_samples", 1),
            ("max_bin", 2),
        ):
            value = getattr(self, name)
            require(f"model.{name} must be an integer of at least {least}", is_whole(value) and value >= least, value)
        for name in ("feature_fraction", "bagging_fraction"):
            value = getattr(self, name)
            require(f"model.{name} must be in (0, 1]", 0 < value <= 1, value)
        require("model.learning_rate must be in (0, 1]", 0 < self.learning_rate <= 1, self.learning_rate)
        require(
            "model.bagging_freq must be 0 or more",
            is_whole(self.bagging_freq) and self.bagging_freq >= 0,
            self.bagging_freq,
        )
        require("model.lambda_l2 must be 0 or more", self.lambda_l2 >= 0, self.lambda_l2)
        for name in ("label_floor", "weight_floor"):
            value = getattr(self, name)
            require(f"model.{name} must be in [0, 1)", 0 <= value < 1, value)
        for name in ("top_weight", "noise_floor", "hard_weight", "teacher_weight"):
            value = getattr(self, name)
            require(f"model.{name} must be 0 or more", value >= 0, value)
        mined = self.hard_weight == 0 or self.label in COST_MODEL_LABELS
        require(f"model.hard_weight needs a model.label of {', '.join(COST_MODEL_LABELS)}", mined, self.label)
        for label in self.extra_labels:
            require(f"model.extra_labels must be of {', '.join(EXTRA_LABELS)}", label in EXTRA_LABELS, label)


@dataclass(frozen=True)
class TrainSettings:
    """All settings of a training. Defaults are those of the configuration.

    Attributes:
        model: label and trees.
        tune: the search for better parameters.
        n_splits: folds of the cross-validation.
        seed: seed of folds and trees.
        threads: threads of LightGBM, 0 for all cores. Sums over many rows depend on it, and so do splits that nearly
            tie.
        holdout_fraction: share of group keys, by hash, that training never sees.
        teachers: other targets of the op whose measurements are learnt as well, such as those of another dtype. A label
            with a cost model takes those of the target's own arch.

    Raises:
        ConfigError: a value is out of its range.
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    tune: TuneSettings = field(default_factory=TuneSettings)
    n_splits: int = 5
    seed: int = 0
    threads: int = 1
    holdout_fraction: float = 0.18
    teachers: tuple[Target, ...] = ()

    def __post_init__(self) -> None:
        require(
            "n_splits must be an integer of at least 2", is_whole(self.n_splits) and self.n_splits >= 2, self.n_splits
        )
        require("threads must be 0 (all cores) or more", is_whole(self.threads) and self.threads >= 0, self.threads)
        require("holdout.fraction must be in [0, 1)", 0 <= self.holdout_fraction < 1, self.holdout_fraction)
        # The cost model is calibrated once, before the first trial.
        searchable = self.model.label not in COST_MODEL_LABELS or "label_floor" not in self.tune.space
        require("tune.space.label_floor needs a model.label without a cost model", searchable, self.model.label)

    def sized_for(self, n_rows: int) -> TrainSettings:
        """Return the settings with fewer leaves, and a search for fewer, where a ranking is learnt from few rows.

        A tree has at most one leaf per 250 rows, or 15. On the folds of six tables of 4,000 to 7,000 rows, 15 to 31
        leaves select as well as 186 and rank in less than half the time; on one of 237,000 rows they select 0.1 to 0.3
        points worse (docs/learnings.md, "Leaves for small tables").
        """
        if self.model.label != "lambdarank":
            return self
        most, space = max(n_rows // _ROWS_PER_LEAF, _FEWEST_LEAVES), dict(self.tune.space)
        if "num_leaves" in space and space["num_leaves"][1] > most:
            low, high = space["num_leaves"]
            space["num_leaves"] = (max(2, round(low * most / high)), most)
        model = replace(self.model, num_leaves=min(self.model.num_leaves, most))
        return replace(self, model=model, tune=replace(self.tune, space=space))


def settings_from_config(cfg: Mapping[str, Any]) -> TrainSettings:
    """Return the settings of a composed configuration; missing keys of a section keep their defaults.

    Args:
        cfg: with the keys ``model``, ``tune``, ``holdout``, ``n_splits``, ``seed`` and ``threads``; ``teachers`` may be
            missing.

    Raises:
        ConfigError: a key of a section is unknown, or a value breaks a rule.
    """
    model, tune = dict(cfg["model"]), dict(cfg["tune"])
    for section, values, kind in (("model", model, ModelSettings), ("tune", tune, TuneSettings)):
        known = [f.name for f in fields(kind)]
        for name in values:
            require(f"{section} has the keys {', '.join(known)}", name in known, name)
    # Every model has its TFLOPS, so naming them changes nothing: targets=[tflops,latency] means extra_labels=[latency].
    model["extra_labels"] = tuple(label for label in model.get("extra_labels") or () if label != "tflops")
    if "space" in tune:
        tune["space"] = space_from_config(tune["space"])
    if "objectives" in tune:
        tune["objectives"] = tuple(tune["objectives"])
    return TrainSettings(
        model=_make(ModelSettings, "model", model),
        tune=_make(TuneSettings, "tune", tune),
        n_splits=cfg["n_splits"],
        seed=cfg["seed"],
        threads=cfg["threads"],
        holdout_fraction=cfg["holdout"]["fraction"],
        teachers=tuple(Target.parse(str(name)) for name in cfg.get("teachers") or ()),
    )


_T = TypeVar("_T")


def _make(kind: type[_T], section: str, values: Mapping[str, Any]) -> _T:
    try:
        return kind(**values)
    except TypeError as e:  # a number was compared with another type
        raise ConfigError(f"{section} has a value of the wrong kind: {e}") from e


def with_params(model: ModelSettings, params: Mapping[str, float | int]) -> ModelSettings:
    """Return `model` with tuned parameters, named as in :data:`~tilewise.train._tune_settings.TUNABLE`."""
    changes: dict[str, Any] = dict(params)
    return replace(model, **changes)
