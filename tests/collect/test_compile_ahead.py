"""Compilation before measuring: each distinct binary once, and only those that a problem needs."""

from __future__ import annotations

import pytest

from collect.crash import compile_one
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.collect._compile_ahead import compile_jobs, run_in_processes
from tilewise.kernels import Pool
from tilewise.kernels.triton import Kernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

pytest.importorskip("triton")


def plan(target: str, configs: list[str], *problems: Problem) -> Plan:
    parsed = Target.parse(target)
    pool = Pool(parsed.op, parsed.variant, parsed.dtype, tuple(map(Kernel.from_config, configs)))
    items = tuple(Item(p, "test") for p in problems)
    return Plan(parsed, load_arch("sm90"), pool, items, Timing(), "run-1")


def test_a_compiler_that_crashes_costs_its_own_kernel() -> None:
    work = ["a", "crash", "b", "bad", "c"]
    seen: list[tuple[int, int]] = []
    failed = run_in_processes(compile_one, [(w,) for w in work], work, 2, lambda done, of: seen.append((done, of)))
    assert failed == {"crash": "the compiler crashed", "bad": "does not compile"}
    assert seen[-1] == (5, 5)


@pytest.mark.parametrize("variant", GroupedConvProblem.variants)
def test_problems_of_equal_alignment_are_compiled_once(variant: str) -> None:
    aligned = [GroupedConvProblem(1, c, 64, 1, 14, 14, 3, 3) for c in (64, 72)]
    odd = GroupedConvProblem(1, 63, 64, 1, 14, 14, 3, 3)
    done = compile_jobs(plan(f"grouped_conv_{variant}_bf16_sm90", ["64x64x32_taps_w4_s3_g1_k1"], *aligned, odd))
    assert [p for _, p, _ in done] == [aligned[0], odd]


def test_a_kernel_that_no_problem_supports_is_not_compiled() -> None:
    configs = ["64x64x32_taps_w4_s3_g1_k1", "64x64x32_point_w4_s3_g1_k1"]
    done = compile_jobs(
        plan("grouped_conv_bwd_data_fp16_sm90", configs, GroupedConvProblem(1, 64, 64, 1, 14, 14, 3, 3))
    )
    assert [k.pipeline for k, _, _ in done] == ["taps"]


def test_alignments_that_a_kernel_does_not_distinguish_are_compiled_once() -> None:
    """Descriptors mask elements outside by themselves; pointers need a mask where tile_k does not divide K."""
    configs = ["64x64x64_plain_w4_s3_g8_k1", "64x64x64_tma_w4_s3_g8_k1"]
    problems = [GemmProblem(512, 512, k) for k in (512, 1024, 528)]
    done = compile_jobs(plan("gemm_universal_bf16_sm90", configs, *problems))
    assert [(k.pipeline, p) for k, p, _ in done] == [
        ("plain", problems[0]),
        ("plain", problems[2]),
        ("tma", problems[0]),
    ]
