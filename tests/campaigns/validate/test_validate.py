"""Validation plans measure selection and oracle; reports follow the measurements; no test needs a GPU."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from small_model import altered, table, write_model
from synthetic import CONV, problems
from tilewise.campaigns.validate import (
    REPRESENTATIVE_LAYERS,
    Aims,
    ShapePlanOptions,
    backward_report,
    judge_measurements,
    plan_training_shapes,
    plan_unseen_shapes,
    predict_layer,
    predict_problems,
    validation_page,
)
from tilewise.cli.compose import compose
from tilewise.cli.main import main
from tilewise.collect import Item, Plan, Timing, load_plan
from tilewise.data import holdout_mask
from tilewise.errors import ConfigError, DataError
from tilewise.model import TrainedModel, load_artefact, read_parts, write_artefact
from tilewise.ops import Target

TARGET = Target.parse(CONV)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("models") / CONV))


@pytest.fixture(scope="module")
def held(model: TrainedModel) -> TrainedModel:
    """Return the same model, as if it had been trained with a holdout."""
    return altered(model, manifest={**model.manifest, "holdout_fraction": 0.4})


def _rows(frame: pd.DataFrame, item: Item) -> pd.DataFrame:
    values = item.problem.to_dict()
    return frame[(frame[list(values)] == pd.Series(values)).all(axis=1) & frame["is_valid"]]


def test_training_shapes_are_measured_with_the_oracle_and_the_selection(held: TrainedModel) -> None:
    plan = plan_training_shapes(table(), held, ShapePlanOptions(12, Timing(), "check", 0))
    assert len(plan.items) == 12
    assert not holdout_mask("grouped_conv", [i.problem.group_key for i in plan.items], 0.4).any()
    for item in plan.items:
        rows = _rows(table(), item)
        oracle = held.pool.find(str(rows.loc[rows["tflops"].idxmax(), "kernel_name"]))
        measured = [held.pool.find(n) for n in rows["kernel_name"]]
        selected = next(int(k) for k in held.rank(item.problem) if k in measured)
        assert item.kernels == tuple(sorted({oracle, selected}))


def test_unseen_shapes_are_the_holdouts_and_new_ones_with_the_whole_pool(held: TrainedModel) -> None:
    items = [Item(p, "set") for p in problems(TARGET, 60)]  # the table holds the first 40
    plan = plan_unseen_shapes(items, table(), held, ShapePlanOptions(99, Timing(), "check", 0))
    chosen = {i.problem for i in plan.items}
    out = holdout_mask("grouped_conv", [i.problem.group_key for i in items], 0.4)
    assert chosen == {i.problem for n, (i, o) in enumerate(zip(items, out, strict=True)) if o or n >= 40}
    assert all(i.kernels is None for i in plan.items)
    seen = next(i for i, o in zip(items[:40], out, strict=False) if not o)
    with pytest.raises(DataError, match="all 1 problems were seen in training"):
        plan_unseen_shapes([seen], table(), held, ShapePlanOptions(1, Timing(), "check", 0))


def test_the_report_counts_by_hand(model: TrainedModel) -> None:
    frame = table()[table()["is_valid"]]
    report = judge_measurements("oracle", frame, model)
    efficiency, same = [], []
    for item in (Item(p, "") for p in problems(TARGET, 40)):
        rows = _rows(frame, item)
        names = [model.pool.names[k] for k in model.rank(item.problem)]
        selected = next(n for n in names if n in set(rows["kernel_name"]))
        tflops = rows.set_index("kernel_name")["tflops"]
        efficiency.append(tflops[selected] / tflops.max())
        same.append(selected == tflops.idxmax())
    assert report["problems"] == 40
    assert report["mean_efficiency"] == pytest.approx(np.mean(efficiency))
    assert report["p10_efficiency"] == pytest.approx(np.percentile(efficiency, 10))
    assert report["agreement"] == pytest.approx(np.mean(same))
    assert report["per_problem"][0]["efficiency"] == pytest.approx(min(efficiency))
    ratios = [r["predicted_tflops"] / r["selected_tflops"] for r in report["per_problem"]]
    assert report["predicted_over_measured"]["median"] == pytest.approx(np.median(ratios))
    assert f"| mean efficiency | {100 * np.mean(efficiency):.2f} % |" in validation_page(report)


def test_one_kernel_a_problem_says_nothing_about_the_oracle(model: TrainedModel) -> None:
    with pytest.raises(DataError, match="no problem was measured with more than one kernel"):
        judge_measurements("oracle", table()[lambda f: f["is_valid"]].drop_duplicates(["N", "C", "K", "Hi"]), model)


def test_predictions_alone(model: TrainedModel) -> None:
    shapes = problems(TARGET, 8, 5)
    result = predict_problems(model, shapes)
    assert (result.problems, result.unsupported) == (8, 0)
    assert result.seconds > 0
    best = [model.predict_tflops(p)[model.rank(p, 1)[0]] for p in shapes]
    assert result.median_tflops == pytest.approx(np.median(best))
    assert backward_report([result])["sound"] == (max(best) <= 989.5)
    assert "| `grouped_conv_forward_bf16_sm90` | 8 | 0 |" in validation_page(backward_report([result]))


@pytest.mark.long
@pytest.mark.parametrize("mode", ["training_shapes", "oracle"])
def test_the_verb_simulates_plans_and_reports(
    mode: str, tmp_path: Path, model: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    table().to_parquet(tmp_path / "t.parquet")
    folder = _with_holdout(tmp_path / "model", model)
    base = ["validate", f"mode={mode}", f"model_dir={folder}", "validate.problems=5", f"out={tmp_path}/out"]
    assert main([*base, f"collect.simulate={tmp_path}/t.parquet"]) == 0
    said = capsys.readouterr().out
    assert f"Validation of {CONV}: {mode}" in said
    report = json.loads((tmp_path / "out" / f"validate_{mode}.json").read_text())
    assert report["problems"] == 5
    assert (tmp_path / "out" / f"validate_{mode}.md").read_text() in said
    # the same in two steps, as with a GPU machine that has no model
    assert main([*base, f"data={tmp_path}/t.parquet", f"collect.plan={tmp_path}/plan.json"]) == 0
    plan: Plan = load_plan(tmp_path / "plan.json")
    assert len(plan.items) == 5
    assert main([*base, f"input={tmp_path}/out/validate_{mode}.parquet"]) == 0
    assert json.loads((tmp_path / "out" / f"validate_{mode}.json").read_text()) == report


@pytest.mark.long
def test_the_verb_asks_the_gradients_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for variant in ("bwd_data", "bwd_weight"):
        name = CONV.replace("forward", variant)
        write_model(tmp_path / name, target=name)
    command = ["validate", "mode=backward", f"model_dir={tmp_path}/{CONV}", f"out={tmp_path}"]
    assert main(command) == 0
    page = capsys.readouterr().out
    report = json.loads((tmp_path / "validate_backward.json").read_text())
    assert [m["problems"] + m["unsupported"] for m in report["models"]] == [7, 7]
    for of_model in report["models"]:
        assert [layer["layer"] for layer in of_model["layers"]] == list(REPRESENTATIVE_LAYERS)
        assert f"## {of_model['target']}" in page
    for words in ("Predictions of the backward models", "best three", "second below best", *REPRESENTATIVE_LAYERS):
        assert words in page
    (tmp_path / "two.csv").write_text("N,C,K,G,Hi,Wi,Y,X\n8,64,64,1,14,14,1,1\n8,64,128,1,14,14,1,1\n")
    assert main([*command, f"problems={tmp_path}/two.csv"]) == 0
    report = json.loads((tmp_path / "validate_backward.json").read_text())
    assert [layer["layer"] for layer in report["models"][0]["layers"]] == [
        f"N=8 C=64 K={k} G=1 Hi=14 Wi=14 Y=1 X=1" for k in (64, 128)
    ]


@pytest.mark.parametrize("name", REPRESENTATIVE_LAYERS)
def test_a_layers_figures_are_those_of_the_ranking(name: str, model: TrainedModel) -> None:
    problem = REPRESENTATIVE_LAYERS[name]
    order, tflops = model.best(problem)
    found = predict_layer(model, name, problem)
    assert [k["kernel_name"] for k in found["top"]] == [model.pool.names[i] for i in order[:3]]
    assert found["mean_tflops"] == pytest.approx(np.mean(tflops))
    assert found["gap_to_second"] == pytest.approx(1 - tflops[1] / tflops[0])
    preferred, rate = next(iter(found["pipelines"].items()))
    assert (preferred, rate) == (model.pool.kernels[order[0]].pipeline, tflops[0])
    assert len(found["pipelines"]) == len({model.pool.kernels[i].pipeline for i in order})


def test_aims_are_reported_and_refuse_nothing() -> None:
    judged = Aims(kernel_match_rate=50, prediction_accuracy=95).judge(0.5, 0.1)
    assert judged["kernel_match_rate"] == {"value": 50, "aim": 50, "reached": True}
    assert judged["prediction_accuracy"]["reached"] is False
    assert Aims(**compose().gate.aims) == Aims()
    with pytest.raises(ConfigError, match=r"gate\.aims\.kernel_match_rate must be a number from 0 to 100, got 101"):
        Aims(kernel_match_rate=101)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["mode=guess"], "mode must be one of training_shapes, backward, oracle, trace, got guess"),
        ([], "mode must be one of"),
        (["mode=backward", "op=gemm"], "mode=backward needs an op with gradient variants (grouped_conv), got gemm"),
        (["mode=oracle", "validate.problems=0"], "validate.problems must be a whole number of at least 1"),
    ],
)
def test_mistakes_have_status_2_and_a_line(
    settings: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *settings]) == 2
    assert message in capsys.readouterr().err


def _with_holdout(folder: Path, model: TrainedModel) -> Path:
    """Return a copy of the model that was trained with a holdout, by its manifest."""
    parts = read_parts(model.where)
    write_artefact(folder, dataclasses.replace(parts, manifest={**parts.manifest, "holdout_fraction": 0.4}))
    return folder
