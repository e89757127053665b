"""Every family of kernels gives PyTorch's results: on a GPU at real sizes, elsewhere through Triton's interpreter.

Operands are small integers, whose sums are exact in any order: results are compared bit for bit. The interpreter
multiplies bf16 operands wrongly, so fp16 stands in there; the convolutions do not depend on the type, and the matrix
products widen their operands there.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from kernels.shapes import COMPILED_CONFIGS, REAL, TINY, TINY_CONFIGS, TINY_ROWS, TINY_STRIPS, tiny, wide_pool
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing, compile_ahead
from tilewise.kernels import Pool, unsupported
from tilewise.kernels.triton import PIPELINES, Kernel, pipelines_of
from tilewise.kernels.triton._rules import TRITON_DTYPES
from tilewise.kernels.triton.programs import (
    RESULT_TYPES,
    Family,
    count_mismatches,
    empty_result,
    family_of,
    interpreted,
    random_operands,
    scale_of,
)
from tilewise.kernels.triton.programs._family import FAMILIES
from tilewise.kernels.triton.programs._operand_tensors import integer_operands
from tilewise.kernels.triton.programs._program import launch
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, Problem, Target

DEVICE = "cpu" if interpreted() else "cuda"
LAST_BIT = {"fp16": 2**-10, "bf16": 2**-7}  # of results, relative
GPU_CASES = [(*key, dtype, name) for key in FAMILIES for dtype in TRITON_DTYPES[key[0]] for name in REAL[key[0]]]
TINY_CASES = [
    (*key, name, config)
    for key in FAMILIES
    for config in TINY_CONFIGS[key]
    for kernel in [Kernel.from_config(config)]
    for name, problem in tiny(key[0], kernel).items()
    if not unsupported(kernel, problem, key[1], "fp16")
]


class Case:
    """A problem with its operands and the right result."""

    def __init__(self, op: str, variant: str, problem: Problem, dtype: str) -> None:
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        self.family, self.problem, self.dtype = family_of(op, variant), problem, dtype
        self.operands = integer_operands(self.family, problem, dtype, DEVICE, seed=7)
        self.result = empty_result(self.family, problem, dtype, DEVICE)
        # to the integer, because the reference may come from transforms that are not exact
        self.right = self.family.reference(problem, *self.operands).round().to(self.result.dtype)
        assert self.right.shape == self.result.shape

    def mismatches(self, kernel: Kernel) -> int:
        """Return the number of the result's elements that are wrong or were never written."""
        run(self.family, kernel, self.problem, self.dtype, self.operands, self.result)
        return int((self.result != self.right).sum())


def run(
    family: Family, kernel: Kernel, problem: Problem, dtype: str, operands: tuple[torch.Tensor, ...], y: torch.Tensor
) -> None:
    """Run the kernel on `y`, which keeps NaN wherever the kernel writes nothing."""
    workspace = torch.full((family.workspace_elements(kernel, problem),), float("nan"), device=DEVICE)
    y.fill_(float("nan"))
    for item in family.launches(kernel, problem, dtype, *operands, y, workspace):
        launch(item)


@cache
def compiled_pool(op: str, variant: str, dtype: str) -> Pool:
    """Return the wide pool, compiled on all cores for all real problems."""
    target = Target(op, variant, dtype, "sm90")
    pool, items = wide_pool(target), tuple(Item(p, "test") for p in REAL[op].values())
    assert compile_ahead(Plan(target, load_arch("sm90"), pool, items, Timing(), "test"), None, lambda *_: None) == {}
    return pool


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize(("op", "variant", "name", "config"), TINY_CASES)
def test_interpreted_result_equals_pytorch(op: str, variant: str, name: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    assert Case(op, variant, tiny(op, kernel)[name], "fp16").mismatches(kernel) == 0


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize("config", [c for c in TINY_CONFIGS["gemm", "universal"] if "x32_" in c])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_interpreted_matrix_product_of_narrow_types(dtype: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    fit = [p for p in TINY["gemm"].values() if not unsupported(kernel, p, "universal", dtype)]
    assert {str(p): n for p in fit if (n := Case("gemm", "universal", p, dtype).mismatches(kernel))} == {}


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize(
    "config", [c for c in TINY_CONFIGS["gemm", "universal"] if PIPELINES[Kernel.from_config(c).pipeline].described]
)
def test_interpreted_descriptors_load_rows_of_whole_16_bytes(config: str) -> None:
    """As Hopper does, Triton refuses to describe rows that begin elsewhere, in its interpreter too."""
    kernel, dtype = Kernel.from_config(config), "bf16"
    fit = [p for p in TINY_ROWS.values() if not unsupported(kernel, p, "universal", dtype)]
    assert {p.to_dict()["layout"] for p in fit} == set(GEMM_LAYOUTS)
    assert {str(p): n for p in fit if (n := Case("gemm", "universal", p, dtype).mismatches(kernel))} == {}
    with pytest.raises(AssertionError, match="strides must be 16-byte aligned"):
        Case("gemm", "universal", GemmProblem(19, 24, 36), dtype).mismatches(kernel)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant", "dtype", "name"), GPU_CASES)
def test_every_kernel_of_the_pool_equals_pytorch(op: str, variant: str, dtype: str, name: str) -> None:
    case = Case(op, variant, REAL[op][name], dtype)
    ran = [k for k in compiled_pool(op, variant, dtype).kernels if not unsupported(k, case.problem, variant, dtype)]
    wrong = {k.config: n for k in ran if (n := case.mismatches(k))}
    assert ran
    assert not wrong


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant", "dtype", "name"), GPU_CASES)
def test_random_operands_stay_within_the_tolerance(op: str, variant: str, dtype: str, name: str) -> None:
    """Rounding differs from the reference's by at most the result's last bit, and the error of fp8's sums."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    family, problem = family_of(op, variant), REAL[op][name]
    operands = random_operands(family, problem, dtype, DEVICE, seed=7)
    right = family.reference(problem, *(o.double() for o in operands))
    y = empty_result(family, problem, dtype, DEVICE)
    rtol = LAST_BIT[RESULT_TYPES[dtype]] + family.imprecision(problem, dtype)
    fit = [k for k in compiled_pool(op, variant, dtype).kernels if not unsupported(k, problem, variant, dtype)]
    wrong = {}
    for kernel in {k.pipeline: k for k in fit}.values():
        run(family, kernel, problem, dtype, operands, y)
        bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        count_mismatches(y, right, bad, rtol, scale_of(right))
        wrong[kernel.config] = int(bad.item())
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("K", [64, 2048, 65536])
def test_fp8_tolerance_does_not_hide_a_lost_step(K: int) -> None:
    """A wrong loop leaves out at least 32 products."""
    family, problem = FAMILIES["gemm", "universal"], GemmProblem(64, 64, K)
    a, b = (o.float() for o in random_operands(family, problem, "fp8", DEVICE, seed=5))
    right, short = a @ b.T, a[:, :-32] @ b[:, :-32].T
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    count_mismatches(short, right, bad, Timing().rtol + family.imprecision(problem, "fp8"), scale_of(right))
    assert int(bad.item()) > 0


@pytest.mark.parametrize("key", FAMILIES)
def test_each_pipeline_is_tested_on_some_tiny_problem(key: tuple[str, str]) -> None:
    tested = {
        k.pipeline
        for k in map(Kernel.from_config, TINY_CONFIGS[key])
        for p in tiny(key[0], k).values()
        if not unsupported(k, p, key[1], "fp16")
    }
    compiled = {
        Kernel.from_config(config).pipeline for config in COMPILED_CONFIGS
    }  # see test_relay.py and test_slide.py
    assert tested == set(pipelines_of(*key)) - compiled


@pytest.mark.parametrize("key", FAMILIES)
def test_problems_of_equal_alignment_share_their_programs(key: tuple[str, str]) -> None:
    family, dtype = FAMILIES[key], "fp16"
    kinds: dict[object, list[Problem]] = {}
    others = TINY_STRIPS if key[0] == "grouped_conv" else TINY_ROWS
    for p in (*TINY[key[0]].values(), *others.values(), *REAL[key[0]].values()):
        kinds.setdefault(family.alignment(p, dtype), []).append(p)
    assert any(len(problems) > 1 for problems in kinds.values())
    for kernel in map(Kernel.from_config, TINY_CONFIGS[key]):
        for problems in kinds.values():
            fit = [p for p in problems if not unsupported(kernel, p, key[1], dtype)]
            assert len({family.programs(kernel, p, dtype) for p in fit}) <= 1


@pytest.mark.parametrize("key", FAMILIES)
def test_programs_declare_the_arguments_of_their_functions(key: tuple[str, str]) -> None:
    family = FAMILIES[key]
    for kernel in map(Kernel.from_config, TINY_CONFIGS[key]):
        for problem in (p for p in TINY[key[0]].values() if not unsupported(kernel, p, key[1], "fp16")):
            for program in family.programs(kernel, problem, "fp16"):
                names = [n for n, _ in program.pointers] + list(program.sizes) + [n for n, _ in program.constants]
                assert names == list(program.fn.arg_names)


@pytest.mark.long
@pytest.mark.parametrize("key", FAMILIES)
def test_split_k_repeats_bit_for_bit(key: tuple[str, str]) -> None:
    family, problem = FAMILIES[key], next(iter(TINY[key[0]].values()))
    operands = random_operands(family, problem, "fp16", DEVICE, seed=1)
    kernels = [k for k in map(Kernel.from_config, TINY_CONFIGS[key]) if k.split_k > 1]
    split = [k for k in kernels if not unsupported(k, problem, key[1], "fp16")]
    assert split
    for kernel in split:
        results = [empty_result(family, problem, "fp16", DEVICE) for _ in range(2)]
        for result in results:
            run(family, kernel, problem, "fp16", operands, result)
        assert torch.equal(*results)


def test_check_counts_wrong_and_unwritten_elements() -> None:
    right = torch.linspace(1, 2, 5000, device=DEVICE)
    got = right.clone()
    got[3], got[4999] = float("nan"), 0.0
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    count_mismatches(got, right, bad, 0.01, scale_of(right))
    assert int(bad.item()) == 2


@pytest.mark.parametrize("key", FAMILIES)
def test_fp64_operands_give_an_fp64_reference_to_check_against(key: tuple[str, str]) -> None:
    family, problem = FAMILIES[key], next(iter(TINY[key[0]].values()))
    operands = random_operands(family, problem, "fp16", DEVICE, seed=2)
    right = family.reference(problem, *operands)
    exact = family.reference(problem, *(o.double() for o in operands))
    assert (right.dtype, exact.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(right.double(), exact, rtol=1e-5, atol=1e-5)
    bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    count_mismatches(right, exact, bad, 1e-5, scale_of(exact))
    count_mismatches(right + 1, exact, bad, 1e-5, scale_of(exact))
    assert int(bad.item()) == exact.numel()
