"""A wrong setting is refused where it is made, with rule and value."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from tilewise.cli.compose import compose
from tilewise.errors import ConfigError
from tilewise.train import ModelSettings, TrainSettings, TuneSettings, settings_from_config, with_params
from tilewise.train._tune_settings import TUNABLE

CONFIG: dict[str, Any] = {
    "model": {"label": "log1p", "n_estimators": 7, "extra_labels": ["latency"]},
    "tune": {"n_trials": 2, "space": {"num_leaves": [7, 31], "lambda_l2": None}},
    "holdout": {"fraction": 0.25},
    "n_splits": 4,
    "seed": 3,
    "threads": 1,
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"label": "rank"}, "model.label must be one of residual, regret, lambdarank, relative, log1p, got 'rank'"),
        ({"n_estimators": 0}, "model.n_estimators must be an integer of at least 1, got 0"),
        ({"num_leaves": 1.5}, "model.num_leaves must be an integer of at least 2, got 1.5"),
        ({"feature_fraction": 0}, r"model.feature_fraction must be in \(0, 1\], got 0"),
        ({"learning_rate": 2}, "model.learning_rate"),
        ({"lambda_l2": -1}, "model.lambda_l2"),
        ({"bagging_freq": -1}, "model.bagging_freq"),
        ({"label_floor": 1}, "model.label_floor"),
        ({"top_weight": -1}, "model.top_weight"),
        ({"weight_floor": 1}, "model.weight_floor"),
        ({"noise_floor": -1}, "model.noise_floor must be 0 or more, got -1"),
        (
            {"label": "log1p", "hard_weight": 1},
            "model.hard_weight needs a model.label of residual, regret, lambdarank, got 'log1p'",
        ),
        ({"extra_labels": ("power",)}, "model.extra_labels must be of latency, bandwidth, got 'power'"),
    ],
)
def test_model_settings_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelSettings(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n_trials": -1}, "tune.n_trials must be an integer of at least 0, got -1"),
        ({"n_folds": 0}, "tune.n_folds must be an integer of at least 1, got 0"),
        ({"patience": 1.5}, "tune.patience must be an integer of at least 0, got 1.5"),
        ({"max_slowdown": 0.5}, "tune.max_slowdown must be 1 or more, got 0.5"),
        ({"storage": ""}, "tune.storage must be a text or null, got ''"),
        ({"workers": 2}, "tune.workers above 1 need a tune.storage to share"),
        ({"objectives": ()}, "tune.objectives must be some of efficiency, mean, p10, selection_time, each once"),
        ({"objectives": ("mean", "mean")}, "tune.objectives must be some of .*, each once"),
        ({"objectives": ("speed",)}, "tune.objectives must be some of .*, got .*speed"),
        ({"objectives": ("selection_time", "mean")}, "tune.objectives must begin with one of efficiency, mean, p10"),
        ({"space": {"max_bin": (15, 255)}}, "tune.space may name .*, got 'max_bin'"),
        ({"space": {"num_leaves": (31, 7)}}, r"tune.space.num_leaves must be \[low, high\]"),
        ({"space": {"lambda_l2": (0, 1)}}, r"0 < low <= high, got \(0, 1\)"),
    ],
)
def test_tune_settings_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TuneSettings(**values)


@pytest.mark.parametrize("values", [{"n_splits": 1}, {"threads": -1}, {"holdout_fraction": 1.0}])
def test_train_settings_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        TrainSettings(**values)


def test_what_is_fixed_before_the_first_trial_is_not_searched() -> None:
    space = TuneSettings(space={"label_floor": (0.0, 0.2)})
    assert TrainSettings(ModelSettings(label="relative"), space).tune is space
    with pytest.raises(ConfigError, match=r"tune\.space\.label_floor needs a model\.label"):
        TrainSettings(ModelSettings(label="residual"), space)


def test_a_configuration_gives_settings_and_leaves_defaults() -> None:
    settings = settings_from_config(CONFIG)
    assert settings.model == ModelSettings(label="log1p", n_estimators=7, extra_labels=("latency",))
    assert settings.tune.space == {"num_leaves": (7, 31)}
    assert (settings.n_splits, settings.seed, settings.threads, settings.holdout_fraction) == (4, 3, 1, 0.25)


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("model", "leaves", 3, "model has the keys label, .*, got 'leaves'"),
        ("tune", "trials", 3, "tune has the keys n_trials, .*, got 'trials'"),
        ("model", "learning_rate", "fast", "model has a value of the wrong kind"),
        ("tune", "space", {"num_leaves": 7}, r"tune.space.num_leaves must be \[low, high\], got 7"),
    ],
)
def test_a_configuration_with_a_mistake_is_refused(section: str, key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_from_config(CONFIG | {section: CONFIG[section] | {key: value}})


def test_tuned_parameters_replace_given_ones() -> None:
    assert with_params(ModelSettings(), {"num_leaves": 9}) == ModelSettings(num_leaves=9)
    assert all(hasattr(ModelSettings(), name) for name in TUNABLE)


def test_defaults_are_those_of_the_configuration() -> None:
    """The dataclasses repeat the values of conf, so that a library call trains as the command line does."""
    composed = OmegaConf.to_container(compose(["tuned=none"]), resolve=True)
    assert isinstance(composed, dict)
    assert settings_from_config({str(name): value for name, value in composed.items()}) == TrainSettings()


def test_few_rows_get_few_leaves_and_a_search_among_fewer() -> None:
    """A leaf per 250 rows, at least 15; the search keeps the ratio of its bounds."""
    settings = TrainSettings(model=ModelSettings(num_leaves=186), tune=TuneSettings(space={"num_leaves": (63, 189)}))
    sized = settings.sized_for(7_500)
    assert (sized.model.num_leaves, sized.tune.space["num_leaves"]) == (30, (10, 30))
    assert settings.sized_for(1_000).model.num_leaves == 15
    assert settings.sized_for(7_500).sized_for(7_500) == sized


def test_leaves_stay_where_they_are_few_or_rows_many_or_no_ranking_is_learnt() -> None:
    small = TrainSettings(model=ModelSettings(num_leaves=7), tune=TuneSettings(space={"num_leaves": (3, 9)}))
    ranking, relative = TrainSettings(), TrainSettings(model=ModelSettings(label="relative"))
    assert small.sized_for(1_000) == small
    assert ranking.sized_for(250 * 191) == ranking
    assert relative.sized_for(1_000) == relative
