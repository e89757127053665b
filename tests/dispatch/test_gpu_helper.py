"""gpu_helper in Python: its operands are those of the C program, and without a GPU it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from small_model import write_model
from tilewise.dispatch import gpu_helper
from tilewise.ops import GemmProblem

torch = pytest.importorskip("torch")

PROBLEM = GemmProblem(16, 24, 32)


def test_results_are_right_up_to_one_rounding() -> None:
    a, b = gpu_helper.operands(PROBLEM)
    assert (a.shape, b.shape) == ((16, 32), (32, 24))
    assert set(a.unique().tolist()) <= {-2.0, -1.0, 0.0, 1.0, 2.0}
    assert a[3, 4] == (3 * 7 + 4 * 5 + 3 * 4 % 3) % 5 - 2
    exact = a.double() @ b.double()
    assert gpu_helper.accuracy(exact.half(), exact) == 100.0
    wrong = exact.bfloat16()
    wrong[0] += 4
    assert gpu_helper.accuracy(wrong, exact) == pytest.approx(100 * 15 / 16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_names_the_c_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_helper.main(["16", "24", "32", "--model", str(tmp_path)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["status"] == "error"
    assert "this machine has no GPU; the C program gpu_helper computes on the host" in document["error"]


@pytest.mark.gpu
def test_the_selected_kernel_runs_and_is_timed(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", target="gemm_universal_bf16_sm90", trees=4)
    document: Any = gpu_helper.measure(GemmProblem(512, 256, 128), folder, validate=True)
    assert [*document] == ["problem", "kernel", "execution", "validation", "status"]
    assert document["validation"] == {"accuracy": 100.0}
    assert document["execution"]["time_ms"] > 0
