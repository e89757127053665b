"""Matrix products that no kernel of CK Tile's supports are padded, run and cut."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.ck.stubs import gemm_name, needs_compiler, stub
from tilewise.dispatch import Dispatcher
from tilewise.dispatch.launching._padding import padded_problems
from tilewise.errors import KernelError
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.ck import parse_name
from tilewise.ops import GemmProblem, GroupedConvProblem, Target

TARGET = Target.parse("gemm_universal_fp16_gfx942")
KERNELS = [parse_name(gemm_name(tile)).kernel for tile in (16, 64)]


def test_the_smallest_supported_problem_comes_first() -> None:
    assert padded_problems(GemmProblem(17, 9, 33), KERNELS) == [GemmProblem(32, 16, 48), GemmProblem(64, 16, 48)]
    wide = parse_name(gemm_name(16, pads=True) + "_vec8_8_4").kernel
    (larger,) = padded_problems(GemmProblem(17, 9, 33), [wide])
    assert larger == GemmProblem(17, 12, 40)  # K is contiguous in A and B, N in C
    assert unsupported(wide, larger, "universal") is None


def test_other_layouts_and_other_ops_are_not_padded() -> None:
    assert padded_problems(GemmProblem(17, 9, 33, "rrr"), KERNELS) == []
    assert padded_problems(GroupedConvProblem(1, 3, 3, 1, 5, 5, 1, 1), KERNELS) == []


@needs_compiler
def test_the_result_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_CK_GEMM_LIB", str(tmp_path))
    stub(tmp_path, "a", gemm_name(16))
    dispatcher = Dispatcher(TARGET, Pool("gemm", "universal", "fp16", tuple(KERNELS[:1])), None)
    rng = np.random.default_rng(0)
    problem = GemmProblem(17, 9, 33)
    a, b = (rng.integers(-2, 3, shape).astype(np.float16) for shape in ((17, 33), (9, 33)))
    for _ in range(2):
        c = dispatcher.run(problem, a, b)
        assert np.array_equal(c, a @ b.T)
        assert c.shape == (17, 9)
    out = np.full((17, 9), np.nan, np.float16)
    assert dispatcher.run(problem, a, b, out=out) is out
    assert np.array_equal(out, a @ b.T)
    with pytest.raises(KernelError, match="no kernel of gemm_universal_fp16_gfx942 supports"):
        dispatcher.run(GemmProblem(17, 9, 33, "rrr"), a, np.ascontiguousarray(b.T))
    assert not dispatcher.is_supported(problem)
