"""From CK Tile's libraries to a running dispatcher: measure, prepare, train, select, run through the libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from extending.test_extending import to_selection
from kernels.ck.stubs import gemm_name, needs_compiler, stub
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing, collect_from_libraries
from tilewise.collect.engines import find_library_kernels
from tilewise.kernels.ck import CkLibraries
from tilewise.ops import GemmProblem, Target

pytestmark = needs_compiler
TARGET = Target.parse("gemm_universal_fp16_gfx942")
SMALL, LARGE = gemm_name(16, pads=True), gemm_name(128, pads=True)


@pytest.mark.long
def test_from_libraries_to_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "libraries"
    folder.mkdir()
    rows = "p->of.gemm.m"
    stub(folder, "small", SMALL, TILE=1, MS=f"1e-4f * {rows}")
    stub(folder, "large", LARGE, TILE=1, MS=f"1e-3f + 5e-5f * {rows}")  # the faster one from 20 rows on
    rng = np.random.default_rng(0)
    sizes = {(int(m), int(n), 16) for m, n in zip(2 ** rng.uniform(0, 9, 80), rng.integers(1, 40, 80), strict=True)}
    problems = [GemmProblem(*s) for s in sorted(sizes)]

    found = find_library_kernels(TARGET, CkLibraries.find("gemm", str(folder)), problems)
    items = tuple(Item(p, "test") for p in problems)
    plan = Plan(TARGET, load_arch(TARGET.arch), found.pool(TARGET), items, Timing(), "run-1")
    report = collect_from_libraries(plan, tmp_path / "out.parquet", found, "all", lambda *_: None)
    assert report.by_status == {"ok": 2 * len(problems)}

    dispatcher = to_selection(pq.read_table(report.path).to_pandas(), TARGET, tmp_path)
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", str(folder))
    for m, expected in ((3, SMALL), (400, LARGE)):
        problem = GemmProblem(m, 24, 16)
        assert dispatcher.select(problem).kernel_name == expected
        assert dispatcher.select(problem).why == "model"
        a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((m, 16), (24, 16)))
        assert np.array_equal(dispatcher.run(problem, a, b), a @ b.T)
