"""A model whose pool mixes backends: it ranks by the core as by NumPy, selects the vendor, and exports without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import small_model
import synthetic
from tilewise.capi import __main__ as capi
from tilewise.capi._export_file import model_bytes
from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ArtefactError
from tilewise.model import TrainedModel, load_artefact


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model.write_model(tmp_path_factory.mktemp("mixed") / "model", vendor=True)


@pytest.fixture(scope="module")
def model(folder: Path) -> TrainedModel:
    return load_artefact(folder)


def test_the_core_ranks_as_numpy_does(model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model.pool.backend.name == "triton+vendor"
    assert model.ranker is not None
    problems = synthetic.problems(model.target, 100, seed=7)
    by_core = [(model.score(p), model.supported(p)) for p in problems]
    monkeypatch.setitem(vars(model), "ranker", None)
    for problem, (scores, supported) in zip(problems, by_core, strict=True):
        assert np.array_equal(model.score(problem), scores)
        assert np.array_equal(model.supported(problem), supported)


def test_the_vendor_is_selected_where_it_was_faster(model: TrainedModel) -> None:
    problems = synthetic.problems(model.target, 100, seed=7)
    picks = {p: model.pool.kernels[int(model.rank(p, 1)[0])] == small_model.VENDOR for p in problems}
    faster = [picked for p, picked in picks.items() if p.C % 32 == 0]  # type: ignore[attr-defined]
    slower = [picked for p, picked in picks.items() if p.C % 32]  # type: ignore[attr-defined]
    assert np.mean(faster) > 0.8
    assert np.mean(faster) > np.mean(slower) + 0.15


def test_patterns_leave_the_vendor_out_or_ask_for_it_alone(folder: Path) -> None:
    problem = synthetic.problems(load_artefact(folder).target, 1)[0]
    with Dispatcher.from_folder(folder, switches=Switches.read(forbid="vendor_*")) as own:
        assert not any("vendor" in choice.kernel_name for choice in own.rank(problem))
    with Dispatcher.from_folder(folder, switches=Switches.read(kernel="vendor_*")) as vendor:
        assert [choice.kernel for choice in vendor.rank(problem)] == [small_model.VENDOR]


def test_an_export_to_c_leaves_the_vendor_out_and_says_so(
    folder: Path, model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert capi.main(["export", str(folder), str(tmp_path / "conv.twm")]) == 0
    assert "left out, as they run through Python: grouped_conv_forward_bf16_vendor_cudnn" in capsys.readouterr().out
    assert b"vendor_cudnn" not in (tmp_path / "conv.twm").read_bytes()
    with pytest.raises(ArtefactError, match="all kernels run through Python"):
        model_bytes(small_model.with_pool(model, [small_model.VENDOR]))
