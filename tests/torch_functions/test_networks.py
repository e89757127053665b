"""The benchmark of whole networks, on the CPU: its U-Net, its cells, and the price of a failing one."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from benchmarks.networks import compare, first_pass, layers, zoo
from torch import nn

from dispatch.measuring.measurers import FakeMeasurer
from small_model import table, write_model
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import MeasurementError, UsageError
from tilewise.model import load_artefact
from tilewise.ops import GroupedConvProblem, Target
from tilewise.torch import _serving as serving


def convolution() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())


def broken() -> nn.Module:
    return nn.Conv2d(5, 4, 3)


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"small": zoo.Network(convolution, (3, 8, 8)), "broken": zoo.Network(broken, (3, 8, 8))}
    monkeypatch.setattr(compare, "NETWORKS", known)
    monkeypatch.setattr(first_pass, "NETWORKS", known)
    monkeypatch.setattr(
        serving, "_load_production", lambda name: f"{name}: no model"
    )  # whatever the developer's registry holds


def test_the_u_net_gives_two_scores_for_each_pixel() -> None:
    model, x = zoo.prepare(zoo.Network(zoo.UNet, (3, 32, 48)), 1, torch.float32, "cpu")
    with torch.no_grad():
        assert model(x).shape == (1, 2, 32, 48)
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters == pytest.approx(31.0e6, rel=0.01)  # as published implementations have


def test_equal_calls_prepare_equal_networks() -> None:
    (first, x), (second, z) = (
        zoo.prepare(zoo.Network(convolution, (3, 8, 8)), 2, dtype, "cpu") for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(x.bfloat16(), z)
    assert all(torch.equal(p.bfloat16(), q) for p, q in zip(first.parameters(), second.parameters(), strict=True))
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert not first.training


@pytest.mark.long
@pytest.mark.usefixtures("networks")
def test_a_cell_of_the_adapter_counts_nodes_of_the_compiled_graphs() -> None:
    found = compare.cell("small", 2, "adapter", "cpu")
    assert found["replaced"] == 0  # there is no model
    assert found["layers"] <= 1
    assert 0 < found["tilewise_error"] < 0.1


@pytest.mark.long
@pytest.mark.usefixtures("networks")
@pytest.mark.parametrize("mode", ["eager", "graphs", "training"])
def test_a_cell_has_times_and_errors_of_both_sides(mode: str) -> None:
    found = compare.cell("small", 2, mode, "cpu")
    assert found["ratio"] == pytest.approx(found["pytorch_ms"] / found["tilewise_ms"])
    assert found["folded"] == (mode != "training")
    assert found["replaced"] == 0  # there is no model
    for side in ("pytorch", "tilewise"):
        assert 0 < found[f"{side}_error"] < 0.1
    assert math.isfinite(found["ratio"])


@pytest.mark.usefixtures("networks")
def test_a_network_that_fails_costs_its_own_cell_only() -> None:
    cells = list(compare.cells(["broken", "small"], [1, 2], ["eager"], {("small", 2, "eager")}, "cpu"))
    assert [(c["network"], c["batch"], "error" in c) for c in cells] == [
        ("broken", 1, True), ("broken", 2, True), ("small", 1, False)
    ]  # fmt: skip


@pytest.mark.usefixtures("networks")
def test_a_first_pass_is_timed_on_both_sides(tmp_path: Path) -> None:
    pytorch, ours = (first_pass.first_pass(side, "small", 2, tmp_path) for side in first_pass.SIDES)
    assert set(pytorch) == {"total_s"}
    assert 0 < ours["optimize_s"] < ours["total_s"]


def test_each_figure_of_a_first_pass_is_of_a_new_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caches = []

    def in_process(side: str, name: str, batch: int, models: Path, cache: str) -> dict[str, float]:
        caches.append(cache)
        return {"total_s": 2.0 if side == "pytorch" else 4.0 / len(caches), "optimize_s": 0.5}

    monkeypatch.setattr(first_pass, "_in_process", in_process)
    found = first_pass.cell("unet", 1, tmp_path)
    assert (found["compiling_s"], found["tilewise_s"]) == (2.0, pytest.approx(4 / 3))
    assert found["ratio"] == pytest.approx(2 / 3)
    assert len(set(caches)) == 1
    assert "| unet | 1 | 2.00 | 1.33 | 0.50 | 2.00 | 0.67 |" in first_pass.text({"cells": [found]})


@pytest.mark.long
def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"r3d_18, batch 1, pytorch: the process ended with 1: .*Error"):
        first_pass._in_process("pytorch", "r3d_18", 1, tmp_path / "absent", str(tmp_path))


class TestLayers:
    def test_the_three_times_of_each_problem(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "cache"))
        model = load_artefact(write_model(tmp_path / "model", trees=5, vendor=True))
        measurer, asked = FakeMeasurer(), problems(Target.parse(CONV), 3)
        measurer.ms = {24: 0.5}  # cuDNN's call
        dispatcher = Dispatcher(model.target, model.pool, model, switches=Switches(), measurer=measurer)
        picks = {dispatcher.rank(p, 1)[0].kernel_name for p in asked}
        found = layers.measured(dispatcher, asked)
        assert {GroupedConvProblem.from_dict(row["problem"]) for row in found} == set(asked)
        assert {row["pick"] for row in found} == picks
        assert {(row["pytorch_ms"], row["best_ms"]) for row in found} == {(0.5, 0.5)}
        assert all(row["pick_ms"] >= 0.5 for row in found)

    def test_unseen_problems_have_a_row_of_their_own(self, tmp_path: Path) -> None:
        table().to_parquet(tmp_path / f"{CONV}.parquet")
        known = GroupedConvProblem.from_dict(table()[list(GroupedConvProblem.column_names())].iloc[0].to_dict())
        shapes = [known, GroupedConvProblem(3, 5, 7, 1, 11, 13, 1, 1)]
        times = [
            {"pick_ms": 2.0, "pytorch_ms": 1.0, "best_ms": 1.0},
            {"pick_ms": 1.0, "pytorch_ms": 4.0, "best_ms": 1.0},
        ]
        entries = [
            {"target": CONV, "problem": layers._brief(shape), "pick": "", **some}
            for shape, some in zip(shapes, times, strict=True)
        ]
        result = {"entries": entries}
        layers.mark_seen(result, tmp_path)
        assert [entry["seen"] for entry in entries] == [True, False]
        every, unseen = layers.text(result).splitlines()[2:]
        assert [cell.strip() for cell in every.split("|")[2:-1]] == [
            "2", "1.41", "0.85", "0.50", "50.0%", "2.00", "1.00", "75.0%", "55.0%", "50.0%"
        ]  # fmt: skip
        assert [cell.strip() for cell in unseen.split("|")[2:5]] == ["1", "4.00", "4.00"]

    def test_measuring_modes_are_not_mixed_with_others(self, tmp_path: Path) -> None:
        (tmp_path / "model").mkdir()
        with pytest.raises(UsageError, match="modes with -measured need a call of their own"):
            compare.main(["--models", str(tmp_path), "--modes", "graphs", "graphs-measured"])
