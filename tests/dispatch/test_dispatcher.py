"""Selections are deterministic, can run, and are made even without a model."""

from __future__ import annotations

import ast
import dataclasses
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewise
from calibrations import one_bin
from small_model import table, write_model
from synthetic import CONV
from tilewise.dispatch import Dispatcher
from tilewise.errors import (
    ArtefactError,
    ConfigError,
    KernelError,
    ProblemError,
    RegistryUnavailableError,
    UnknownTargetError,
)
from tilewise.kernels import load_pool, unsupported
from tilewise.metrics import DEPTH
from tilewise.model import load_artefact, read_parts, write_artefact
from tilewise.ops import GemmProblem, GroupedConvProblem, Target

FORBIDDEN = (
    "pandas", "lightgbm", "mlflow", "sklearn", "optuna", "dvc", "hydra", "omegaconf", "matplotlib", "pyarrow", "torch",
    "triton", "yaml", "rich", "tilewise.registry",
)  # fmt: skip

PLAIN = GroupedConvProblem(N=8, C=64, K=64, G=1, Hi=28, Wi=28, Y=3, X=3, pad_h=1, pad_w=1)
TOO_LARGE = GroupedConvProblem(N=2**20, C=64, K=64, G=1, Hi=28, Wi=28, Y=1, X=1)  # input beyond 2^31 elements


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "model")


@pytest.fixture(scope="module")
def dispatcher(folder: Path) -> Dispatcher:
    return Dispatcher.from_folder(folder)


def problems() -> list[GroupedConvProblem]:
    rows = table()[list(GroupedConvProblem.column_names())].drop_duplicates()
    return [GroupedConvProblem(**row) for row in rows.to_dict("records")]


def calibrated(folder: Path, out: Path) -> Dispatcher:
    """Calibrate the model of `folder` on 50 rankings, 10 of which lose 20 % with one kernel and 0 % with two."""
    losses = [np.full(10 if k == 0 else 0, 0.2) for k in range(DEPTH)]
    calibration = one_bin(np.array([PLAIN.group_key]), 2.0, 50, losses)
    write_artefact(out, dataclasses.replace(read_parts(folder), calibration=calibration))
    return Dispatcher.from_folder(out)


class TestConfidence:
    def test_a_calibrated_model_bounds_the_regret(self, folder: Path, tmp_path: Path) -> None:
        dispatcher = calibrated(folder, tmp_path / "m")
        confidence = dispatcher.confidence(PLAIN.to_dict())
        assert confidence is not None
        assert confidence.regret == pytest.approx((0.0, 0.2))
        assert (confidence.level, confidence.shape_distance, confidence.tolerance, confidence.k) == (0.9, 0.0, 0.03, 2)
        easy = dispatcher.confidence(PLAIN, tolerance=0.25, level=0.7)
        assert easy is not None
        assert (easy.regret, easy.k) == ((0.0, 0.0), 1)
        assert dispatcher.select(PLAIN).why == "model"  # the confidence does not change the selection

    def test_a_problem_far_away_is_to_be_measured(self, folder: Path, tmp_path: Path) -> None:
        confidence = calibrated(folder, tmp_path / "m").confidence(dataclasses.replace(PLAIN, N=64))  # 3 octaves
        assert confidence is not None
        assert (confidence.regret, confidence.k) == ((0.0, 1.0), None)

    def test_without_a_calibration_there_is_no_confidence(self, dispatcher: Dispatcher) -> None:
        assert dispatcher.confidence(PLAIN) is None
        assert Dispatcher.from_pool(CONV).confidence(PLAIN) is None

    def test_an_unsupported_problem_is_refused(self, folder: Path, tmp_path: Path) -> None:
        with pytest.raises(KernelError, match="no kernel of"):
            calibrated(folder, tmp_path / "m").confidence(TOO_LARGE)

    def test_a_foreign_calibration_is_refused(self, folder: Path, tmp_path: Path) -> None:
        calibrated(folder, tmp_path / "m")
        (tmp_path / "m" / "trust.json.gz").write_bytes(b"nothing")
        with pytest.raises(ArtefactError, match=r"trust\.json\.gz is not the file that was written with this model"):
            load_artefact(tmp_path / "m")
        (tmp_path / "m" / "trust.json.gz").unlink()
        with pytest.raises(ArtefactError, match=r"trust\.json\.gz is not the file that was written"):
            load_artefact(tmp_path / "m")


class TestImportedAlone:
    """The runtime imports no training library, as each takes longer to import than the runtime's whole start."""

    def test_importing_the_dispatcher(self) -> None:
        assert _imported_by("import tilewise.dispatch") == []

    def test_loading_a_folder_and_selecting(self, folder: Path) -> None:
        code = f"""
            from tilewise.dispatch import Dispatcher
            dispatcher = Dispatcher.from_folder({str(folder)!r})
            assert dispatcher.select({PLAIN.to_dict()!r}).why == "model"
        """
        assert _imported_by("\n".join(line.strip() for line in code.splitlines())) == []


def _imported_by(code: str) -> list[str]:
    report = f"\nimport sys\nprint([m for m in {FORBIDDEN!r} if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": str(Path(tilewise.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, check=True, env=environment
    )
    return list(ast.literal_eval(done.stdout))


class TestSelect:
    def test_the_best_ranked_kernel_with_its_tflops(self, dispatcher: Dispatcher, folder: Path) -> None:
        model = load_artefact(folder)
        for problem in problems()[:8]:
            selection = dispatcher.select(problem)
            best = model.rank(problem, 1)[0]
            assert selection.kernel == model.pool.kernels[best]
            assert selection.kernel_name == model.pool.names[best]
            assert selection.predicted_tflops == model.predict_tflops(problem)[best]
            assert selection.why == "model"

    def test_a_mapping_is_as_good_as_a_problem(self, dispatcher: Dispatcher) -> None:
        given = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1}
        assert dispatcher.select(given) == dispatcher.select(PLAIN)

    def test_the_same_in_every_process_and_order(self, dispatcher: Dispatcher, folder: Path) -> None:
        shapes = problems()
        once = [dispatcher.select(p) for p in shapes]
        again = Dispatcher.from_folder(folder)
        assert [again.select(p) for p in reversed(shapes)] == once[::-1]

    def test_never_a_kernel_that_cannot_run(self, dispatcher: Dispatcher) -> None:
        for problem in problems():
            for selection in dispatcher.rank(problem):
                assert unsupported(selection.kernel, problem, "forward", "bf16") is None

    def test_it_mostly_picks_well(self, dispatcher: Dispatcher) -> None:
        """Guard against a vacuous suite: on its training problems the small model is far better than the default."""
        rows = table()[lambda f: f["is_valid"]]
        measured = {
            (*r[:19], r[19]): r[20]
            for r in rows[[*GroupedConvProblem.column_names()[:-1], "kernel_name", "tflops"]].itertuples(index=False)
        }
        ratio = []
        for problem in problems():
            best = max(v for k, v in measured.items() if k[:19] == problem.group_key)
            ratio.append(measured.get((*problem.group_key, dispatcher.select(problem).kernel_name), 0) / best)
        assert np.mean(ratio) > 0.9


class TestRank:
    def test_top_k_is_the_beginning_of_the_whole_rank(self, dispatcher: Dispatcher) -> None:
        everything = dispatcher.rank(PLAIN)
        assert dispatcher.rank(PLAIN, 3) == everything[:3]
        assert dispatcher.rank(PLAIN, 1000) == everything
        assert dispatcher.select(PLAIN) == everything[0]

    def test_predictions_fall(self, dispatcher: Dispatcher) -> None:
        tflops = [s.predicted_tflops for s in dispatcher.rank(PLAIN)]
        assert tflops == sorted(tflops, key=lambda v: -(v or 0))

    @pytest.mark.parametrize(
        "top_k", [0, -1, "3", 2.5, True, float("nan"), [3], np.array([1, 2]), {}, np.bool_(True)], ids=repr
    )
    def test_top_k_must_be_a_positive_integer(self, dispatcher: Dispatcher, top_k: Any) -> None:
        with pytest.raises(ConfigError, match=r"top_k must be a whole number and at least 1, got .*; use None"):
            dispatcher.rank(PLAIN, top_k)

    def test_top_k_may_be_numpy_s(self, dispatcher: Dispatcher) -> None:
        assert dispatcher.rank(PLAIN, np.int64(3)) == dispatcher.rank(PLAIN, 3)  # type: ignore[arg-type]


class TestMistakes:
    @pytest.mark.parametrize(
        ("problem", "match"),
        [
            ({"N": 1}, "C: missing"),
            ({**PLAIN.to_dict(), "M": 3}, "M: not a dimension of grouped_conv"),
            ({**PLAIN.to_dict(), "G": 7}, "C: must be divisible by G = 7"),
            (GemmProblem(8, 8, 8), "op: a gemm problem, but .* selects for grouped_conv"),
            (None, "problem: must be a GroupedConvProblem or a mapping of dimensions .*, got NoneType"),
            (8, "problem: must be .*, got int"),
            ("N=8", "problem: must be .*, got str"),
            ([], "problem: must be .*, got list"),
            (np.arange(8), "problem: must be .*, got ndarray"),
            ({**PLAIN.to_dict(), "N": None}, "N: must be an integer, got None"),
            ({**PLAIN.to_dict(), "N": np.array([1, 2])}, "N: must be one integer, got ndarray"),
            ({**PLAIN.to_dict(), "N": np.array([8])}, "N: must be one integer, got ndarray"),
            ({**PLAIN.to_dict(), "N": [8]}, "N: must be an integer"),
            ({**PLAIN.to_dict(), "N": float("nan")}, "N: must be an integer, got nan"),
        ],
    )
    def test_an_impossible_problem_is_named(self, dispatcher: Dispatcher, problem: Any, match: str) -> None:
        with pytest.raises(ProblemError, match=match):
            dispatcher.select(problem)
        for ask in (dispatcher.is_supported, dispatcher.rank, dispatcher.explain, dispatcher.confidence):
            with pytest.raises(ProblemError, match=match):
                ask(problem)

    def test_a_problem_that_no_kernel_computes(self, dispatcher: Dispatcher) -> None:
        assert dispatcher.is_supported(PLAIN)
        assert not dispatcher.is_supported(TOO_LARGE)
        with pytest.raises(KernelError, match=r"no kernel of .* supports .*the default one: input has 2\^31"):
            dispatcher.select(TOO_LARGE)

    def test_no_model_in_the_folder(self, tmp_path: Path) -> None:
        with pytest.raises(ArtefactError, match=str(tmp_path)):
            Dispatcher.from_folder(tmp_path)


class TestKernels:
    def test_count_and_names(self, dispatcher: Dispatcher) -> None:
        assert dispatcher.kernel_count == len(dispatcher.kernels) == 24
        kernel = dispatcher.kernels[3]
        name = dispatcher.get_instance_string(kernel)
        assert name == kernel.name("grouped_conv", "forward", "bf16")
        assert dispatcher.get_instance_string(name) == dispatcher.get_instance_string(kernel.config) == name

    def test_a_foreign_kernel_has_no_instance_here(self, dispatcher: Dispatcher) -> None:
        with pytest.raises(KernelError, match="is not one of the 24 kernels"):
            dispatcher.get_instance_string(dataclasses.replace(dispatcher.kernels[0], num_stages=99))

    def test_the_exported_registry_lists_every_kernel_once(self, dispatcher: Dispatcher) -> None:
        text = dispatcher.export_registry_json()
        exported = json.loads(text)
        names = [k["name"] for k in exported["kernels"]]
        assert names == [dispatcher.get_instance_string(k) for k in dispatcher.kernels]
        assert exported["metadata"]["total_kernels"] == 24
        assert sum(exported["statistics"]["by_pipeline"].values()) == 24
        assert dispatcher.export_registry_json() == text


class TestWithoutModel:
    """A caller gets a working kernel even if the model or the registry is missing."""

    def test_the_pools_default_is_selected(self) -> None:
        dispatcher = Dispatcher.from_pool(CONV)
        selection = dispatcher.select(PLAIN)
        assert selection.kernel == load_pool(Target.parse(CONV)).default
        assert (selection.why, selection.predicted_tflops) == ("fallback", None)
        assert (dispatcher.version, dispatcher.content_hash) == (None, None)

    def test_nothing_in_production(self, uri: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            dispatcher = Dispatcher.from_registry(CONV, uri=uri)
        assert dispatcher.select(PLAIN).why == "fallback"
        assert "no model, so the pool's default kernel is selected" in caplog.text
        with pytest.raises(UnknownTargetError, match=f"{CONV} is not registered"):
            Dispatcher.from_registry(CONV, uri=uri, fallback=False)

    def test_the_registry_is_away_and_there_is_no_copy(self) -> None:
        nowhere = "http://127.0.0.1:9"
        assert Dispatcher.from_registry(CONV, uri=nowhere).select(PLAIN).why == "fallback"
        with pytest.raises(RegistryUnavailableError, match=nowhere):
            Dispatcher.from_registry(CONV, uri=nowhere, fallback=False)

    def test_a_reader_makes_no_database(self, tmp_path: Path) -> None:
        Dispatcher.from_registry(CONV, uri=f"sqlite:///{tmp_path}/none.db")
        assert not (tmp_path / "none.db").exists()

    @pytest.mark.parametrize("name", ["nonsense", "grouped_conv_sideways_bf16_sm90", "gemm_universal_fp8_gfx950"])
    def test_an_unknown_target_lists_what_is_known(self, uri: str, name: str) -> None:
        with pytest.raises(UnknownTargetError, match="grouped_conv"):
            Dispatcher.from_registry(name, uri=uri)
