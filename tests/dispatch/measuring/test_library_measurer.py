"""CK Tile's libraries are measured on the spot where no model serves, and the fastest kernel is remembered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels.ck.stubs import gemm_name, needs_compiler, stub
from tilewise.collect.engines import ReplayTable
from tilewise.dispatch import Dispatcher, Switches
from tilewise.dispatch.measuring import LibraryMeasurer, MeasurementJob, local_measurer
from tilewise.dispatch.measuring._measure import measure_apart
from tilewise.errors import UnknownTargetError
from tilewise.kernels import Pool
from tilewise.kernels.ck import CK_TILE, parse_name
from tilewise.kernels.triton import TRITON
from tilewise.ops import GemmProblem, Problem, Target

pytestmark = needs_compiler
TARGET = Target.parse("gemm_universal_fp16_gfx942")
SLOW, FAST, ABSENT = (gemm_name(tile, pads=True) for tile in (16, 32, 64))
PROBLEM = GemmProblem(32, 48, 64)


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with two libraries, the first one slower, that the environment names."""
    folder = tmp_path / "libraries"
    folder.mkdir()
    stub(folder, "a", SLOW, TILE=1, MS=2)
    stub(folder, "b", FAST, TILE=1, MS=1)
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", str(folder))
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "cache"))
    return folder


def test_only_kernels_of_libraries_are_measured_through_them() -> None:
    assert isinstance(local_measurer(CK_TILE), LibraryMeasurer)
    assert not isinstance(local_measurer(TRITON), LibraryMeasurer)


@pytest.mark.long
def test_without_a_model_the_fastest_library_is_measured_selected_and_run(libraries: Path) -> None:
    with Dispatcher.from_pool(TARGET, switches=Switches.read(measure="missing")) as dispatcher:
        assert {dispatcher.get_instance_string(k) for k in dispatcher.kernels} == {SLOW, FAST}
        selection = dispatcher.select(PROBLEM)
        assert (selection.kernel_name, selection.why, selection.measured_ms) == (FAST, "measured", 1.0)
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((32, 64), (48, 64)))
        assert np.array_equal(dispatcher.run(PROBLEM, a, b), a @ b.T)
    with Dispatcher.from_pool(TARGET, switches=Switches.read(measure="missing")) as later:
        assert later.select(PROBLEM).why == "cache"
    (libraries / "b.so").unlink()  # this process may still have it open
    stub(libraries, "b", FAST, TILE=1, MS=3)  # another build of the library: the measurements no longer hold
    with Dispatcher.from_pool(TARGET, switches=Switches.read(measure="missing")) as rebuilt:
        assert (rebuilt.select(PROBLEM).kernel_name, rebuilt.select(PROBLEM).measured_ms) == (SLOW, 2.0)


@pytest.mark.long
def test_a_kernel_without_a_library_is_not_selected(libraries: Path) -> None:
    pool = Pool(TARGET.op, TARGET.variant, TARGET.dtype, tuple(parse_name(n).kernel for n in (ABSENT, SLOW)))
    with Dispatcher(TARGET, pool, None, switches=Switches.read(measure="missing")) as dispatcher:
        assert dispatcher.select(PROBLEM).kernel_name == SLOW


@pytest.mark.long
def test_problems_are_measured_together_by_one_process(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[Problem]] = []

    def counted(job: MeasurementJob) -> ReplayTable:
        calls.append(list(job.kernels))
        return measure_apart(job)

    monkeypatch.setattr("tilewise.dispatch.measuring._library_measurer.measure_apart", counted)
    others = [GemmProblem(16, 16, 32), GemmProblem(64, 32, 32)]
    with Dispatcher.from_pool(TARGET) as dispatcher:
        dispatcher.measure(others)
        assert [dispatcher.select(p).kernel_name for p in others] == [FAST, FAST]
        assert {dispatcher.select(p).why for p in others} == {"cache"}
    assert calls == [others]


def test_without_libraries_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWISE_CK_GEMM_LIB", raising=False)
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path))
    with pytest.raises(UnknownTargetError, match=r"no pool for gemm_universal_fp16_gfx942.*_CK_GEMM_LIB"):
        Dispatcher.from_pool(TARGET)
    pool = Pool(TARGET.op, TARGET.variant, TARGET.dtype, (parse_name(SLOW).kernel,))
    with Dispatcher(TARGET, pool, None, switches=Switches.read(measure="missing")) as dispatcher:
        dispatcher.select(PROBLEM)
        assert "set TILEWISE_CK_GEMM_LIB to files or folders" in str(dispatcher.explain(PROBLEM))
