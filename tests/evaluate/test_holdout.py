"""An efficiency is measured over measured, on problems and kernels that the rules name."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from calibrations import one_bin
from small_model import altered, with_pool
from tilewise.data import TargetTable, group_keys, holdout_mask, labelled, problems_of, sort_rows
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate import evaluate
from tilewise.evaluate._holdout import pipelines_of
from tilewise.evaluate._unseen import require_unseen_problems
from tilewise.metrics import METRICS
from tilewise.model import TrainedModel
from tilewise.ops import OPS, Target
from tilewise.train._dataset import Split

NAMES = list(OPS["grouped_conv"].column_names())
OF_REPEATS = ["repeat_noise", "efficiency_again"]


def trained_with(model: TrainedModel, fraction: float) -> TrainedModel:
    return altered(model, manifest={**model.manifest, "holdout_fraction": fraction})


def labels(frame: pd.DataFrame) -> pd.DataFrame:
    rows = labelled(frame, "grouped_conv")
    return rows[rows["is_valid"]]


def test_the_selection_is_the_dispatchers_among_measured_kernels(model: TrainedModel, frame: pd.DataFrame) -> None:
    evaluation = evaluate(model, frame)
    assert len(evaluation.per_problem) == 60
    valid = sort_rows(labels(frame), model.target, model.pool)
    for row, problem in zip(evaluation.per_problem.to_dict("records"), problems_of(valid, model.target), strict=True):
        measured = valid[(valid[NAMES] == pd.Series(problem.to_dict())).all(axis=1)].set_index("kernel_name")["tflops"]
        expected = next(i for i in model.rank(problem) if model.pool.names[i] in measured.index)
        assert {n: row[n] for n in NAMES} == problem.to_dict()
        assert row["selected"] == model.pool.names[expected]
        assert row["oracle"] == measured.idxmax()
        assert row["efficiency"] == pytest.approx(measured[row["selected"]] / measured.max())
        assert row["selected_tflops"] == measured[row["selected"]]
        assert row["predicted_tflops"] == pytest.approx(model.predict_tflops(problem)[expected])
        assert row["n_kernels"] == len(measured)


def test_metrics_summarise_the_problems(model: TrainedModel, frame: pd.DataFrame) -> None:
    evaluation = evaluate(model, frame)
    assert tuple(evaluation.metrics) == METRICS
    efficiency = evaluation.per_problem["efficiency"]
    assert evaluation.metrics["mean_efficiency"] == pytest.approx(efficiency.mean())
    assert evaluation.metrics["p10_efficiency"] == pytest.approx(np.percentile(efficiency, 10))
    assert efficiency.between(0, 1, inclusive="right").all()
    assert evaluation.pool_size == len(model.pool)
    assert evaluation.noise_ceiling is not None
    assert evaluation.noise_ceiling.n_problems == 8
    assert evaluation.n_unjudged == 0


def test_only_the_holdout_is_judged_where_asked(model: TrainedModel, frame: pd.DataFrame) -> None:
    evaluation = evaluate(trained_with(model, 0.3), frame, 0.3)
    held = holdout_mask("grouped_conv", group_keys("grouped_conv", frame), 0.3)
    expected = set(frame.loc[held, NAMES].itertuples(index=False, name=None))
    assert set(evaluation.per_problem[NAMES].itertuples(index=False, name=None)) == expected
    assert evaluation.split_rule == "holdout: 30% of the group keys by hash (tilewise-holdout-1)"
    assert evaluation.noise_ceiling == evaluate(model, frame).noise_ceiling  # from all repeats: no model enters it


@pytest.mark.long
def test_a_holdout_that_was_trained_on_is_refused(model: TrainedModel, frame: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match=r"holdout.fraction 0.3 holds problems that .* was trained on .*with 0.18\)"):
        evaluate(trained_with(model, 0.18), frame, 0.3)
    assert len(evaluate(trained_with(model, 0.3), frame, 0.18).per_problem) < len(
        evaluate(trained_with(model, 0.3), frame, 0.3).per_problem
    )


@pytest.mark.long
def test_repeats_are_not_judged(model: TrainedModel, frame: pd.DataFrame) -> None:
    once = frame[frame["run_id"] == "synthetic-1"].reset_index(drop=True)
    whole, part = (evaluate(model, table).per_problem for table in (frame, once))
    untouched = whole["repeat_noise"].isna()
    columns = whole.columns.drop(OF_REPEATS)
    pd.testing.assert_frame_equal(whole.loc[untouched, columns], part.loc[untouched, columns])
    assert evaluate(model, once).noise_ceiling is None
    assert part[OF_REPEATS].isna().all(axis=None)
    assert whole[OF_REPEATS].notna().sum().tolist() == [8, 7]  # the other run of one problem failed with the pick


def test_the_other_run_judges_the_selection(model: TrainedModel, frame: pd.DataFrame) -> None:
    again = frame[frame["is_valid"] & (frame["run_id"] != "synthetic-1")].set_index([*NAMES, "kernel_name"])["tflops"]
    rows = evaluate(model, frame).per_problem.dropna(subset="efficiency_again")
    for row in rows.to_dict("records"):
        problem = tuple(row[n] for n in NAMES)
        expected = again[(*problem, row["selected"])] / again[(*problem, row["oracle"])]
        assert row["efficiency_again"] == pytest.approx(expected)


def test_slices_and_predictions_stand_beside_each_problem(model: TrainedModel, frame: pd.DataFrame) -> None:
    rows = evaluate(model, frame).per_problem
    pipelines = frame.drop_duplicates("kernel_name").set_index("kernel_name")["pipeline"]
    assert rows["pipeline"].tolist() == pipelines[rows["oracle"]].tolist()
    right = rows[rows["selected"] == rows["oracle"]]
    assert (right["oracle_predicted_tflops"] == right["predicted_tflops"]).all()
    assert {"filter", "grouping", "stride", "dims", "m_size"} <= set(rows.columns)


def test_a_call_of_pytorchs_own_is_a_slice_by_its_backend() -> None:
    rows = pd.DataFrame({"pipeline": ["taps", ""], "backend": ["triton", "vendor"]})
    assert pipelines_of(rows).tolist() == ["taps", "vendor"]
    assert pipelines_of(rows[["pipeline"]]).tolist() == ["taps", ""]


def test_the_distance_is_to_what_the_model_learnt_from(model: TrainedModel, frame: pd.DataFrame) -> None:
    unknown = evaluate(model, frame).per_problem
    assert set(unknown["distance"]) == {"unknown"}  # the manifest tells of no such table
    held = holdout_mask("grouped_conv", group_keys("grouped_conv", labels(frame)), 0.3)
    n_problems = len(labels(frame)[~held][NAMES].drop_duplicates())
    told = altered(model, manifest={**model.manifest, "holdout_fraction": 0.3, "n_problems": n_problems})
    rows = evaluate(told, frame).per_problem
    of_holdout = holdout_mask("grouped_conv", group_keys("grouped_conv", rows), 0.3)
    assert (rows["nearest_octaves"].to_numpy() == 0).tolist() == (~of_holdout).tolist()
    assert set(rows["distance"][~of_holdout]) == {"0"}


def test_regret_ends_where_the_ranking_finds_the_oracle(model: TrainedModel, frame: pd.DataFrame) -> None:
    evaluation = evaluate(model, frame)
    means = [r["mean_efficiency"] for r in evaluation.regret]
    assert means == sorted(means)
    assert means[0] == pytest.approx(evaluation.metrics["mean_efficiency"])
    assert means[2] == pytest.approx(evaluation.metrics["top3_mean_efficiency"])
    assert len(evaluation.measured) == len(evaluation.predicted) == evaluation.per_problem["n_kernels"].sum()


def test_a_holdout_that_was_trained_on_may_be_judged_knowingly(model: TrainedModel, frame: pd.DataFrame) -> None:
    assert evaluate(trained_with(model, 0.1), frame, 0.3, require_unseen=False).metrics["n_problems"] > 0


def test_the_order_of_rows_does_not_matter(model: TrainedModel, frame: pd.DataFrame) -> None:
    shuffled = frame.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(evaluate(model, frame).per_problem, evaluate(model, shuffled).per_problem)


def test_the_oracle_may_lie_outside_the_pool(model: TrainedModel, frame: pd.DataFrame) -> None:
    small = with_pool(model, model.pool.kernels[:5])
    whole, part = evaluate(model, frame).per_problem, evaluate(small, frame).per_problem
    shared = whole.merge(part, on=NAMES, suffixes=("", "_part"))
    assert (shared["oracle"] == shared["oracle_part"]).all()
    assert set(part["selected"]) <= set(model.pool.names[:5])
    assert part["efficiency"].mean() < whole["efficiency"].mean()


def test_problems_without_a_candidate_are_counted_not_judged(model: TrainedModel, frame: pd.DataFrame) -> None:
    default, others = model.pool.names[0], frame["kernel_name"] != model.pool.names[0]
    broken = frame.assign(is_valid=frame["is_valid"] & (others | (frame["N"] != 1)))
    small = with_pool(model, model.pool.kernels[:1])
    evaluation = evaluate(small, broken)
    rows = labels(broken)
    with_default = rows.loc[rows["kernel_name"] == default, NAMES].drop_duplicates()
    assert evaluation.n_unjudged == len(rows[NAMES].drop_duplicates()) - len(with_default) > 0
    assert len(evaluation.per_problem) == len(with_default)
    assert set(evaluation.per_problem["selected"]) == {default}
    assert not (evaluation.per_problem["N"] == 1).any()


def test_kernels_that_the_rules_forbid_are_no_candidates(model: TrainedModel, frame: pd.DataFrame) -> None:
    lied = frame.copy()
    unsupported = lied["status"] == "unsupported"
    lied.loc[unsupported, "tflops"] = 1e-6
    lied.loc[unsupported, ["status", "is_valid"]] = ["ok", True]
    told, seen = (evaluate(model, table).per_problem.drop(columns=OF_REPEATS) for table in (lied, frame))
    pd.testing.assert_frame_equal(told, seen)


@pytest.mark.parametrize("change", [{"is_valid": False}, {"arch": "gfx950"}, {"kernel_name": "k"}])
def test_nothing_to_judge_by_is_said(model: TrainedModel, frame: pd.DataFrame, change: dict[str, object]) -> None:
    with pytest.raises(DataError, match=r"no problem of grouped_conv_forward_bf16_sm90 to judge by"):
        evaluate(model, frame.assign(**change))


class TestUnseen:
    """The manifest's share of the holdout is not believed alone."""

    def test_a_shape_that_calibration_knows_was_trained_on(self, model: TrainedModel, frame: pd.DataFrame) -> None:
        rows = TargetTable.of(frame, model.target)
        honest = calibrated(trained_with(model, 0.3), rows.training(0.3).distinct_keys)
        assert evaluate(honest, frame, 0.3).metrics["n_problems"] > 0
        leaked = np.concatenate([rows.training(0.3).distinct_keys, rows.holdout(0.3).distinct_keys[:2]])
        with pytest.raises(ConfigError, match=r"^2 of the .* shapes held out are among those that .* was trained on"):
            evaluate(calibrated(trained_with(model, 0.3), leaked), frame, 0.3)

    def test_on_archs_of_amd_another_batch_of_a_layer_was_trained_on_too(
        self, model: TrainedModel, frame: pd.DataFrame
    ) -> None:
        target = Target.parse("grouped_conv_forward_bf16_gfx942")
        rows = TargetTable.of(frame.assign(arch="gfx942"), target)
        trained, held = rows.training(0.3).distinct_keys, rows.holdout(0.3).distinct_keys[:2] + np.eye(1, 19, dtype=int)
        on_amd = altered(trained_with(model, 0.3), target=target)
        require_unseen_problems(calibrated(on_amd, trained), rows, 0.3)
        with pytest.raises(ConfigError, match=r"^2 of the .* shapes held out are among those that .* was trained on"):
            require_unseen_problems(calibrated(on_amd, np.concatenate([trained, held])), rows, 0.3)

    def test_a_larger_share_than_the_trainings_has_other_shapes(self, model: TrainedModel, frame: pd.DataFrame) -> None:
        split = Split.of(TargetTable.of(frame, model.target), 0.3)
        stated = {**model.manifest, "holdout_fraction": 0.3, **dataclasses.asdict(split)}
        assert evaluate(altered(model, manifest=stated), frame, 0.3).metrics["n_problems"] > 0
        with pytest.raises(ConfigError, match="another holdout than its manifest states"):
            evaluate(altered(model, manifest=stated | {"holdout_fraction": 0.5}), frame, 0.3)

    def test_digests_of_another_table_say_nothing(self, model: TrainedModel, frame: pd.DataFrame) -> None:
        split = Split.of(TargetTable.of(frame, model.target), 0.2)
        stated = {**model.manifest, "holdout_fraction": 0.3, **dataclasses.asdict(split)}
        held = holdout_mask("grouped_conv", group_keys("grouped_conv", frame), 0.3)
        assert evaluate(altered(model, manifest=stated), frame[held], 0.3).metrics["n_problems"] > 0


def calibrated(model: TrainedModel, keys: npt.NDArray[np.int64]) -> TrainedModel:
    calibration = one_bin(keys, 8.0, 40, [np.zeros(40), np.zeros(40), np.zeros(40)])
    return altered(model, calibration=calibration)
