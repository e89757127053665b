"""Every family of kernels gives PyTorch's results: on a GPU at real sizes, elsewhere through Triton's interpreter.

The interpreter multiplies bf16 operands wrongly, so fp16 stands in there; the convolutions do not depend on the type,
and those of the matrix product widen their operands there.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch

from kernels.shapes import REAL, TINY, TINY_CONFIGS
from tilewise.arch import load_arch
from tilewise.collect.ahead import compile_ahead
from tilewise.collect.plan import Item, Plan, Timing
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.pool import Pool, load_pool
from tilewise.kernels.rules import DTYPES, PIPELINES, unsupported
from tilewise.kernels.triton.check import count_mismatches, scale_of
from tilewise.kernels.triton.family import FAMILIES, family_of
from tilewise.kernels.triton.program import RESULT_TYPES, interpreted, launch
from tilewise.kernels.triton.tensors import empty_result, random_operands
from tilewise.ops import Problem, Target

DEVICE = "cpu" if interpreted() else "cuda"
# half an ulp of the result's type, and as much again for the order of the fp32 sums
TOLERANCE = {"fp16": 2**-10, "bf16": 2**-7}
GPU_CASES = [(*key, dtype, name) for key in FAMILIES for dtype in DTYPES[key[0]] for name in REAL[key[0]]]
TINY_CASES = [
    (*key, name, config)
    for key in FAMILIES
    for config in TINY_CONFIGS[key]
    for name, problem in TINY[key[0]].items()
    if not unsupported(Kernel.from_config(config), problem, key[1])
]


class Case:
    """A problem with its operands and the right result."""

    def __init__(self, op: str, variant: str, problem: Problem, dtype: str) -> None:
        torch.backends.cudnn.allow_tf32 = False
        self.family, self.problem, self.dtype = family_of(op, variant), problem, dtype
        self.operands = random_operands(self.family, problem, dtype, DEVICE, seed=7)
        self.right = self.family.reference(problem, *self.operands)
        self.result = empty_result(self.family, problem, dtype, DEVICE)
        self.rtol = TOLERANCE[RESULT_TYPES[dtype]] + self.family.imprecision(problem, dtype)
        assert self.right.shape == self.result.shape

    def mismatches(self, kernel: Kernel) -> int:
        """Elements of the kernel's result that are wrong or were never written."""
        workspace = torch.full((self.family.workspace_elements(kernel, self.problem),), float("nan"), device=DEVICE)
        self.result.fill_(float("nan"))
        tensors = (*self.operands, self.result, workspace)
        for item in self.family.launches(kernel, self.problem, self.dtype, *tensors):
            launch(item)
        bad = torch.zeros(1, dtype=torch.int32, device=DEVICE)
        count_mismatches(self.result, self.right, bad, self.rtol, scale_of(self.right))
        return int(bad.item())


@cache
def compiled_pool(op: str, variant: str, dtype: str) -> Pool:
    """The shipped pool, compiled on all cores for all real problems."""
    target = Target(op, variant, dtype, "sm90")
    pool, items = load_pool(target), tuple(Item(p, "test") for p in REAL[op].values())
    assert compile_ahead(Plan(target, load_arch("sm90"), pool, items, Timing(), "test"), None, lambda *_: None) == {}
    return pool


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize(("op", "variant", "name", "config"), TINY_CASES)
def test_interpreted_result_equals_pytorch(op: str, variant: str, name: str, config: str) -> None:
    assert Case(op, variant, TINY[op][name], "fp16").mismatches(Kernel.from_config(config)) == 0


@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize("config", [c for c in TINY_CONFIGS["gemm", "universal"] if "x32_" in c])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_interpreted_matrix_product_of_narrow_types(dtype: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    fit = [p for p in TINY["gemm"].values() if not unsupported(kernel, p, "universal")]
    assert {str(p): n for p in fit if (n := Case("gemm", "universal", p, dtype).mismatches(kernel))} == {}


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "variant", "dtype", "name"), GPU_CASES)
def test_every_kernel_of_the_pool_equals_pytorch(op: str, variant: str, dtype: str, name: str) -> None:
    case = Case(op, variant, REAL[op][name], dtype)
    ran = [k for k in compiled_pool(op, variant, dtype).kernels if not unsupported(k, case.problem, variant)]
    wrong = {k.config: n for k in ran if (n := case.mismatches(k))}
    assert ran
    assert not wrong


@pytest.mark.parametrize("key", FAMILIES)
def test_each_pipeline_is_tested_on_some_tiny_problem(key: tuple[str, str]) -> None:
    tested = {
        k.pipeline
        for k in map(Kernel.from_config, TINY_CONFIGS[key])
        for p in TINY[key[0]].values()
        if not unsupported(k, p, key[1])
    }
    assert tested == set(PIPELINES[key])


@pytest.mark.parametrize("key", FAMILIES)
def test_problems_of_equal_alignment_share_their_programs(key: tuple[str, str]) -> None:
    family, dtype = FAMILIES[key], "fp16"
    kinds: dict[object, list[Problem]] = {}
    for p in (*TINY[key[0]].values(), *REAL[key[0]].values()):
        kinds.setdefault(family.alignment(p, dtype), []).append(p)
    assert any(len(problems) > 1 for problems in kinds.values())
    for kernel in map(Kernel.from_config, TINY_CONFIGS[key]):
        for problems in kinds.values():
            fit = [p for p in problems if not unsupported(kernel, p, key[1])]
            assert len({family.programs(kernel, p, dtype) for p in fit}) <= 1


@pytest.mark.parametrize("key", FAMILIES)
def test_programs_declare_the_arguments_of_their_functions(key: tuple[str, str]) -> None:
    family = FAMILIES[key]
    for kernel in map(Kernel.from_config, TINY_CONFIGS[key]):
        for problem in (p for p in TINY[key[0]].values() if not unsupported(kernel, p, key[1])):
            for program in family.programs(kernel, problem, "fp16"):
                names = [n for n, _ in program.pointers] + list(program.sizes) + [n for n, _ in program.constants]
                assert names == list(program.fn.arg_names)


@pytest.mark.parametrize("key", FAMILIES)
def test_split_k_repeats_bit_for_bit(key: tuple[str, str]) -> None:
    family, problem = FAMILIES[key], next(iter(TINY[key[0]].values()))
    kernels = map(Kernel.from_config, TINY_CONFIGS[key])
    kernel = next(k for k in kernels if k.split_k > 1 and not unsupported(k, problem, key[1]))
    operands = random_operands(family, problem, "fp16", DEVICE, seed=1)
    results = []
    for _ in range(2):
        result = empty_result(family, problem, "fp16", DEVICE)
        workspace = torch.empty(family.workspace_elements(kernel, problem), device=DEVICE)
        for item in family.launches(kernel, problem, "fp16", *operands, result, workspace):
            launch(item)
        results.append(result)
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
