"""Two models are compared on the same problems, by the same measurements of their selections."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from small_model import altered, with_pool, write_model
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate import CompareSettings, Comparison, compare_models, evaluate, paired_bootstrap
from tilewise.evaluate._compare import MIN_PROBLEMS, _tied
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import OPS, Target

NAMES = list(OPS["grouped_conv"].column_names())


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """Return a model that has learnt to pick the slowest."""
    return load_artefact(write_model(tmp_path_factory.mktemp("bad") / "m", sign=-1.0))


@pytest.fixture(scope="module")
def found(model: TrainedModel, bad: TrainedModel, frame: pd.DataFrame) -> Comparison:
    return compare_models(bad, model, frame, 0, CompareSettings(n_resamples=200))


def both(a: TrainedModel, b: TrainedModel, frame: pd.DataFrame) -> pd.DataFrame:
    return evaluate(a, frame).per_problem.merge(evaluate(b, frame).per_problem, on=NAMES, suffixes=("_a", "_b"))


@pytest.mark.long
def test_counts_and_deltas_are_those_of_the_two_evaluations(
    model: TrainedModel, bad: TrainedModel, frame: pd.DataFrame, found: Comparison
) -> None:
    table = both(bad, model, frame)
    change = table["efficiency_b"] - table["efficiency_a"]
    assert found.n_problems == len(table) == 60
    assert (found.n_improved, found.n_degraded) == ((change > 0.01).sum(), (change < -0.01).sum())
    assert found.n_improved + found.n_same + found.n_degraded == 60
    assert found.same_kernel == (table["selected_a"] == table["selected_b"]).mean()
    assert found.deltas["mean"].delta == pytest.approx(change.mean())
    assert found.deltas == paired_bootstrap(table["efficiency_a"], table["efficiency_b"], n_resamples=200)
    assert found.deltas["mean"].verdict == "better"
    assert found.b.efficiency["p10"] == pytest.approx(np.percentile(table["efficiency_b"], 10))
    assert found.b.content_hash == model.content_hash


@pytest.mark.long
def test_what_moved_most_comes_first(found: Comparison) -> None:
    gains = [m["efficiency_b"] - m["efficiency_a"] for m in found.improvements]
    assert len(gains) == 10
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > found.threshold_points / 100
    assert len(found.regressions) == min(found.n_degraded, 10)


@pytest.mark.long
def test_the_other_way_round_everything_turns(
    model: TrainedModel, bad: TrainedModel, frame: pd.DataFrame, found: Comparison
) -> None:
    turned = compare_models(model, bad, frame, 0, CompareSettings(n_resamples=200))
    assert (turned.n_improved, turned.n_degraded) == (found.n_degraded, found.n_improved)
    assert turned.same_within_noise == found.same_within_noise
    for name, delta in found.deltas.items():
        mirrored = turned.deltas[name]
        assert (mirrored.delta, mirrored.low, mirrored.high) == pytest.approx((-delta.delta, -delta.high, -delta.low))


@pytest.mark.long
def test_a_model_agrees_with_itself(model: TrainedModel, frame: pd.DataFrame) -> None:
    same = compare_models(model, model, frame, 0.18, CompareSettings(n_resamples=50))
    assert same.same_kernel == same.same_within_noise == 1
    assert (same.n_improved, same.n_degraded) == (0, 0)
    assert {d.verdict for d in same.deltas.values()} == {"equal"}
    assert not [*same.regressions, *same.improvements, *same.notes]
    assert same.split_rule.startswith("holdout: 18%")


def test_a_tie_is_a_difference_within_the_repeat_noise() -> None:
    table = pd.DataFrame({"repeat_noise": [0.02, 0.02, np.nan]})
    tied = _tied(table, np.array([0.9, 0.9, 0.9]), np.array([0.91, 0.95, 0.91]))
    assert tied.tolist() == [True, False, True]
    unknown = pd.DataFrame({"repeat_noise": [np.nan, np.nan]})
    assert _tied(unknown, np.array([0.9, 0.9]), np.array([0.9005, 0.91])).tolist() == [True, False]


def test_only_slices_that_can_tell_are_shown(found: Comparison) -> None:
    assert found.slices
    assert min(s.n_problems for s in found.slices) >= MIN_PROBLEMS
    for part in found.slices:
        assert part.deltas["mean"].delta == pytest.approx(part.mean_b - part.mean_a)


@pytest.mark.long
def test_a_higher_threshold_finds_fewer_moves(model: TrainedModel, bad: TrainedModel, frame: pd.DataFrame) -> None:
    strict, lax = (
        compare_models(bad, model, frame, 0, CompareSettings(threshold_points=t, n_resamples=20)) for t in (0.0, 40.0)
    )
    assert strict.n_improved > lax.n_improved
    assert strict.n_same < lax.n_same


@pytest.mark.long
@pytest.mark.parametrize(
    ("kept", "fraction", "note"),
    [
        (0.1, 0.1, "a was trained with a holdout of 0.1; both are judged on that one"),
        (0.0, 0.18, "a was trained on all problems, these included: the comparison favours it"),
    ],
)
def test_both_are_judged_on_what_neither_has_seen(
    model: TrainedModel, frame: pd.DataFrame, kept: float, fraction: float, note: str
) -> None:
    other = altered(model, manifest={**model.manifest, "holdout_fraction": kept})
    found = compare_models(other, model, frame, 0.18, CompareSettings(n_resamples=20))
    assert note in found.notes
    assert found.split_rule.startswith(f"holdout: {fraction:.0%}")
    assert found.n_problems == evaluate(model, frame, fraction).metrics["n_problems"]


@pytest.mark.long
def test_problems_that_one_cannot_judge_are_counted(model: TrainedModel, frame: pd.DataFrame) -> None:
    small = with_pool(model, model.pool.kernels[:1])
    broken = frame.assign(
        is_valid=frame["is_valid"] & ((frame["kernel_name"] != model.pool.names[0]) | (frame["N"] != 1))
    )
    found = compare_models(model, small, broken, 0, CompareSettings(n_resamples=20))
    assert found.n_only_a == 60 - found.n_problems > 0
    assert found.n_only_b == 0


@pytest.mark.long
def test_it_is_plain_data(found: Comparison, tmp_path: Path) -> None:
    read = json.loads(json.dumps(found.to_dict()), parse_constant=pytest.fail)
    assert read["deltas"]["p10"].keys() == {"delta", "low", "high"}
    assert read["n_problems"] == found.n_problems


@pytest.mark.long
def test_what_cannot_be_compared_is_said(model: TrainedModel, frame: pd.DataFrame) -> None:
    other = dataclasses.replace(model, target=Target("grouped_conv", "forward", "fp16", "sm90"))
    with pytest.raises(ConfigError, match=r"a is a model of grouped_conv_forward_bf16_sm90, b of .*fp16"):
        compare_models(model, other, frame, 0)
    with pytest.raises(ConfigError, match="threshold must be 0 points or more, got -1"):
        compare_models(model, model, frame, 0, CompareSettings(threshold_points=-1))
    first, last = (with_pool(model, part) for part in (model.pool.kernels[:1], model.pool.kernels[1:2]))
    names = [p.pool.names[0] for p in (first, last)]
    apart = frame[
        ((frame["kernel_name"] == names[0]) & (frame["N"] == 1))
        | ((frame["kernel_name"] == names[1]) & (frame["N"] != 1))
    ]
    with pytest.raises(DataError, match="has valid kernels of both models' pools"):
        compare_models(first, last, apart, 0)
