"""Files of predictions say the same as the models that made them, without these models."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from small_model import write_model
from synthetic import CONV
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate import (
    CompareSettings,
    compare_models,
    compare_predictions,
    evaluate,
    only_slices,
    read_predictions,
    sliced_metrics,
    with_ck_slices,
    with_efficiency,
    write_predictions,
)
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Target

TARGET = Target.parse(CONV)
QUICK = CompareSettings(n_resamples=100)


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """Return a model that has learnt to pick the slowest."""
    return load_artefact(write_model(tmp_path_factory.mktemp("bad") / "m", sign=-1.0))


@pytest.mark.long
@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_two_files_compare_as_their_models_do(
    ending: str, model: TrainedModel, bad: TrainedModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    for name, of in (("a", bad), ("b", model)):
        write_predictions(tmp_path / (name + ending), evaluate(of, frame))
    elsewhere = Target.parse("gemm_universal_fp8_sm90")  # the files state their target
    a, b = (read_predictions(tmp_path / (name + ending), elsewhere) for name in "ab")
    found, expected = compare_predictions(a, b, QUICK), compare_models(bad, model, frame, 0, QUICK)
    assert found.target == CONV
    for name in ("n_problems", "same_kernel", "n_improved", "n_same", "n_degraded", "slices", "regressions"):
        assert getattr(found, name) == getattr(expected, name)
    for name, delta in found.deltas.items():
        assert delta.delta == pytest.approx(expected.deltas[name].delta)
    assert "the models are unknown" in found.notes[0]


@pytest.mark.long
def test_selections_without_efficiency_are_judged_by_measurements(
    model: TrainedModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    evaluated = evaluate(model, frame).per_problem
    names = list(TARGET.problem_type.column_names())
    asked = evaluated[[*names, "selected"]].rename(columns={"selected": "kernel_name"}).drop(columns="pad_d")
    asked.to_csv(tmp_path / "asked.csv", index=False)
    read = read_predictions(tmp_path / "asked.csv", TARGET)
    with pytest.raises(DataError, match="has no column efficiency"):
        compare_predictions(read, read)
    judged = with_efficiency(read, frame).per_problem.merge(evaluated, on=names, suffixes=("", "_of_model"))
    assert len(judged) == len(evaluated)
    np.testing.assert_allclose(judged["efficiency"], judged["efficiency_of_model"])
    assert judged["family"].tolist() == judged["family_of_model"].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"efficiency": 1.5}, r"efficiency must be in \(0, 1\]"),
        ({"N": 0}, "row 1: N: must be at least 1, got 0"),
        ({"selected": None}, "need rows, and a column selected or kernel_name"),
    ],
)
def test_a_bad_file_is_refused(
    change: dict[str, object], message: str, model: TrainedModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    rows = evaluate(model, frame).per_problem.assign(**change)
    rows = rows.drop(columns=[name for name, value in change.items() if value is None])
    rows.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(DataError, match=message):
        read_predictions(tmp_path / "bad.csv", TARGET)


def test_a_repeated_problem_and_other_targets_are_refused(
    model: TrainedModel, frame: pd.DataFrame, tmp_path: Path
) -> None:
    evaluation = evaluate(model, frame)
    twice = pd.concat([evaluation.per_problem] * 2)
    write_predictions(tmp_path / "twice.csv", dataclasses.replace(evaluation, per_problem=twice))
    with pytest.raises(DataError, match="a problem occurs twice"):
        read_predictions(tmp_path / "twice.csv", TARGET)
    write_predictions(tmp_path / "a.csv", evaluation)
    other = dataclasses.replace(TARGET, variant="bwd_data")
    write_predictions(tmp_path / "b.csv", dataclasses.replace(evaluation, target=other))
    a, b = (read_predictions(tmp_path / name, TARGET) for name in ("a.csv", "b.csv"))
    with pytest.raises(ConfigError, match="they share no problems"):
        compare_predictions(a, b)
    mixed = pd.concat([pd.read_csv(tmp_path / name) for name in ("a.csv", "b.csv")])
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    row = len(mixed) // 2 + 1
    with pytest.raises(DataError, match=rf"mixed.csv, row {row}: target {other.name}, but row 1 is of {CONV}"):
        read_predictions(tmp_path / "mixed.csv", TARGET)
    with pytest.raises(ConfigError, match=r"written as \.csv or \.parquet"):
        write_predictions(tmp_path / "a.json", evaluation)


def test_only_the_problems_of_all_slices_are_chosen() -> None:
    table = pd.DataFrame({"M": [1, 7, 8, 127, 128, 1024], "layout": ["rcr", "rrr"] * 3, "efficiency": np.ones(6)})
    labelled = with_ck_slices(table, "gemm")
    assert labelled["ck_m_size"].tolist() == ["tiny", "tiny", "small", "small", "medium", "large"]
    chosen = only_slices(labelled, "gemm", {"ck_m_size": "tiny", "layout": "rcr"})
    assert chosen.tolist() == [True, False, False, False, False, False]
    assert [row["n_problems"] for row in sliced_metrics(labelled, ["ck_m_size"])] == [2, 2, 1, 1]
    assert with_ck_slices(table, "grouped_conv") is table
    for wanted, message in (
        ({"pipeline": "compv4"}, "'pipeline' is unknown; known are"),
        ({"layout": "ccr"}, "no problem has layout=ccr; there are rcr, rrr"),
        ({"ck_m_size": "large", "layout": "rcr"}, "no problem lies in all of ck_m_size=large, layout=rcr"),
    ):
        with pytest.raises(ConfigError, match=message):
            only_slices(labelled, "gemm", wanted)
