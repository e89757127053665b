"""On a real GPU, a kernel that hangs, faults, lies or does not compile costs one row, and the run goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("triton")

from alone import compiling
from collect.engines.bad_kernels import FAULTS, GOOD, HANGS, HURT, LIES, POOL, PROBLEMS, UNCOMPILED, bad_engine
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing, collect_on_gpus, collect_with_engine
from tilewise.kernels import Pool
from tilewise.ops import GemmProblem, Target

TIMEOUT_S = 4.0

_COMPILE = """
from collect.engines.bad_kernels import FAULTS, HANGS, HURT, LIES, UNCOMPILED, spoiler
from tilewise.kernels.triton.programs import compile_program, cuda_target
for kernel in (HANGS, FAULTS, LIES, UNCOMPILED):
    try:
        print(compile_program(spoiler(kernel, HURT, "bf16"), cuda_target("sm90")).asm["ptx"].count("bra"))
    except Exception as e:
        print(" ".join(str(e).split()))
"""


def _plan(*problems: GemmProblem) -> Plan:
    target = Target.parse("gemm_universal_fp16_sm90")
    pool = Pool(target.op, target.variant, target.dtype, POOL)
    items = tuple(Item(p, "test") for p in problems)
    return Plan(target, load_arch("sm90"), pool, items, Timing(kernel_timeout_s=TIMEOUT_S), "run-1")


def _quiet(what: str, done: int, of: int) -> None:
    pass


@pytest.mark.long
def test_the_bad_kernels_misbehave_as_named(tmp_path: Path) -> None:
    """Check without a GPU: one kernel has a loop that the compiler keeps, one does not compile."""
    env = compiling(tmp_path) | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", _COMPILE], env=env, capture_output=True, text=True, check=True)
    loops, straight, other, error = done.stdout.splitlines()
    assert int(loops) > int(straight) == int(other) == 0
    assert "made not to compile" in error


@pytest.mark.gpu
def test_each_bad_kernel_costs_one_row(tmp_path: Path) -> None:
    plan = _plan(*PROBLEMS)
    report = collect_with_engine(plan, tmp_path / "out.parquet", bad_engine, [0], _quiet)
    assert report.path is not None
    rows = pq.read_table(report.path).to_pylist()
    assert len(rows) == len(PROBLEMS) * len(POOL)
    found = {((r["M"], r["N"], r["K"]), r["kernel_name"]): r for r in rows}

    def row(problem: GemmProblem, at: int) -> Any:
        return found[(problem.M, problem.N, problem.K), plan.pool.names[at]]

    for problem in PROBLEMS:
        expected = dict.fromkeys(GOOD, "ok") | {LIES: "wrong_result", UNCOMPILED: "compile_error"}
        expected |= {HANGS: "timeout", FAULTS: "runtime_error"} if problem == HURT else {HANGS: "ok", FAULTS: "ok"}
        assert {k: row(problem, i)["status"] for i, k in enumerate(POOL)} == expected, problem
        reasons = {k: str(row(problem, i)["error"]) for i, k in enumerate(POOL)}
        assert reasons[LIES] == f"1 of {problem.M * problem.N} elements beyond the tolerance"
        assert reasons[UNCOMPILED] != "None"
        if problem == HURT:
            assert reasons[HANGS] == f"no answer within {TIMEOUT_S:g} s"
            assert "illegal memory access" in reasons[FAULTS]
    assert all(r["latency_ms"] > 0 for r in rows if r["is_valid"])
    assert all(r["error"] for r in rows if not r["is_valid"])


@pytest.mark.gpu
def test_all_devices_take_part(tmp_path: Path) -> None:
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    plan = _plan(*(GemmProblem(128 * i, 256, 512) for i in range(1, 65)))
    report = collect_on_gpus(plan, tmp_path / "out.parquet", "all", None, _quiet)
    assert (report.by_status, report.unusable) == ({"ok": 64 * len(POOL)}, {})
    assert report.path is not None
    devices = pq.read_table(report.path, columns=["hw_uuid"])["hw_uuid"].unique().to_pylist()
    assert len(devices) == torch.cuda.device_count()
