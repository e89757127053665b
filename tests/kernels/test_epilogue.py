"""Epilogues are computed in the store of every pipeline that fuses them, and by a pass after any other kernel.

Operands are small integers, so sums are exact and only the activation is rounded.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import linprog
from scipy.special import erfcx
from torch.nn import functional as own

from kernels.shapes import REAL, TINY_CONFIGS, tiny, wide_pool
from tilewise.arch import load_arch
from tilewise.errors import ProblemError
from tilewise.kernels import (
    ACTIVATIONS,
    EMPTY_KIND,
    EPILOGUE_VARIANTS,
    Epilogue,
    EpilogueKind,
    pass_ms,
    store_ms,
    unsupported,
)
from tilewise.kernels._epilogue import _RESIDUAL_CLOCKS, _STORE_CLOCKS
from tilewise.kernels.triton import PIPELINES, TRITON, Kernel, pipelines_of
from tilewise.kernels.triton.programs import (
    RESULT_TYPES,
    empty_result,
    family_of,
    interpreted,
    launch_all,
    pass_launch,
)
from tilewise.kernels.triton.programs._epilogue import _gelu
from tilewise.kernels.triton.programs._operand_tensors import integer_operands
from tilewise.ops import GemmProblem, Problem, Target

ROOT = Path(__file__).parents[2]
DEVICE = "cpu" if interpreted() else "cuda"
KINDS = [
    EpilogueKind(*kind) for kind in itertools.product((False, True), (False, True), ("", *ACTIVATIONS)) if any(kind)
]
ALL_PARTS = EpilogueKind(True, True, "relu")
TOLERANCE = {"fp16": 2**-10, "bf16": 2**-7}  # the last bit of a result
TINY_CASES = [
    (*key, name, config)
    for key in EPILOGUE_VARIANTS
    for config in TINY_CONFIGS[key]
    for kernel in [Kernel.from_config(config)]
    if key in PIPELINES[kernel.pipeline].fuses
    for name, problem in tiny(key[0], kernel).items()
    if not unsupported(kernel, problem, key[1], "fp16")
]
# A pass computes the epilogues of this pipeline.
UNFUSED = {"gemm": set[str](), "grouped_conv": {"relay"}}
FIRST_CASES = list({(case[0], Kernel.from_config(case[3])): case for case in reversed(TINY_CASES)}.values())


def activated(x: torch.Tensor, activation: str) -> torch.Tensor:
    """Return PyTorch's activation."""
    match activation:
        case "":
            return x
        case "gelu_tanh":
            return own.gelu(x, approximate="tanh")
        case name:
            result: torch.Tensor = getattr(own, name)(x)
            return result


def drawn(kind: EpilogueKind, shape: tuple[int, ...], dtype: torch.dtype) -> Epilogue:
    """Return an epilogue with integer tensors for a result of this shape."""
    generator = torch.Generator().manual_seed(3)

    def integers(*sizes: int) -> torch.Tensor:
        return torch.randint(-3, 4, sizes, generator=generator).to(DEVICE, dtype)

    bias = integers(shape[-1]) if kind.has_bias else None
    return Epilogue(bias, integers(*shape) if kind.has_residual else None, kind.activation or None)


def expected(right: torch.Tensor, epilogue: Epilogue) -> torch.Tensor:
    """Return the result with the epilogue, in the type of `right`."""
    for tensor in epilogue.tensors:
        assert isinstance(tensor, torch.Tensor)
        right = right + tensor.to(right.dtype)
    return activated(right, epilogue.kind.activation)


def close(y: torch.Tensor, right: torch.Tensor, dtype: str) -> bool:
    bit = TOLERANCE[RESULT_TYPES[dtype]]
    return bool(((y.float() - right.float()).abs() <= bit * (right.float().abs() + 2**-6)).all())


def fused(op: str, variant: str, problem: Problem, kernel: Kernel, kind: EpilogueKind, dtype: str) -> None:
    """Run a kernel with an epilogue and compare its result."""
    family = family_of(op, variant)
    operands = integer_operands(family, problem, dtype, DEVICE, seed=7)
    y = empty_result(family, problem, dtype, DEVICE).fill_(float("nan"))
    epilogue = drawn(kind, family.result(problem), y.dtype)
    workspace = torch.full((family.workspace_elements(kernel, problem),), float("nan"), device=DEVICE)
    launch_all(family.launches(kernel, problem, dtype, *operands, y, workspace, epilogue=epilogue))
    assert close(y, expected(family.reference(problem, *operands).round(), epilogue), dtype)


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize(("op", "variant", "name", "config"), FIRST_CASES)
def test_each_kernel_stores_its_epilogue(op: str, variant: str, name: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    fused(op, variant, tiny(op, kernel)[name], kernel, ALL_PARTS, "fp16")


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("op", "variant", "name", "config"), FIRST_CASES)
def test_each_kernel_stores_every_epilogue(op: str, variant: str, name: str, config: str, kind: EpilogueKind) -> None:
    kernel = Kernel.from_config(config)
    fused(op, variant, tiny(op, kernel)[name], kernel, kind, "fp16")


@pytest.mark.long
@pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")
@pytest.mark.parametrize(("op", "variant", "name", "config"), TINY_CASES)
def test_edges_of_every_shape_are_right(op: str, variant: str, name: str, config: str) -> None:
    kernel = Kernel.from_config(config)
    fused(op, variant, tiny(op, kernel)[name], kernel, ALL_PARTS, "fp16")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize(("op", "variant", "name"), [(*k, n) for k in EPILOGUE_VARIANTS for n in REAL[k[0]]])
def test_a_kernel_of_each_pipeline_at_real_sizes(op: str, variant: str, name: str, dtype: str) -> None:
    problem = REAL[op][name]
    pool = [k for k in wide_pool(Target(op, variant, dtype, "sm90")).kernels if isinstance(k, Kernel)]
    fit = [k for k in pool if not unsupported(k, problem, variant, dtype)]
    chosen = {(k.pipeline, k.split_k > 1): k for k in fit}.values()
    assert chosen
    for kernel in chosen:
        for kind in KINDS:
            fused(op, variant, problem, kernel, kind, dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_pytorch_s_at_their_ends(activation: str) -> None:
    x = torch.tensor([-300.0, -20, -6, -3, -1, -0.0, 0, 1e-4, 0.5, 1, 3, 6, 20, 300, float("nan")])
    y = x.half().to(DEVICE)
    right = activated(y.float(), activation)
    launch_all([pass_launch(Epilogue(activation=activation), "fp16", y, 1)])
    torch.testing.assert_close(y.float(), right, rtol=2**-10, atol=2**-20, equal_nan=True)


def test_the_polynomial_of_gelu_is_the_best_of_its_degree() -> None:
    x = np.linspace(0, 5.6, 6000)
    tail = erfcx(x / 2**0.5) / 2  # of which the kernel computes a polynomial, times exp(-x^2 / 2)
    powers = np.vander(x / 5.6, 10, increasing=True) / tail[:, None]
    ones = np.ones((len(x), 1))
    left, right = np.block([[powers, -ones], [-powers, -ones]]), np.concatenate([ones, -ones])
    least = linprog([0] * 10 + [1], left, right, bounds=(None, None)).fun  # of |polynomial / tail - 1|, at its largest
    number = r"([-+]?) ?(\d\.\d+(?:e-\d+)?)(?= \* size \+|$)"
    stated = [float(sign + digits) for sign, digits in re.findall(number, inspect.getsource(_gelu.fn), re.M)]
    assert len(stated) == 10
    assert np.abs(np.polyval(stated, x) / tail - 1).max() < 1.05 * least


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_pass_computes_the_same(kind: EpilogueKind) -> None:
    y = torch.randint(-9, 9, (3, 5, 7)).to(DEVICE, torch.float16)
    epilogue = drawn(kind, (3, 5, 7), y.dtype)
    right = expected(y.float(), epilogue)
    launch_all([pass_launch(epilogue, "fp16", y, 7)])
    assert close(y, right, "fp16")


def test_large_persistent_tiles_leave_a_residual() -> None:
    """Compiled by Triton 3.6, the first needs 245,784 bytes with a residual, and a block of sm90 has 232,448."""
    target, problem = Target("gemm", "universal", "bf16", "sm90"), GemmProblem(4096, 4096, 4096)
    large, small = map(Kernel.from_config, ("256x128x64_persistent_w8_s3_g8_k1", "128x128x64_persistent_w4_s3_g8_k1"))
    assert TRITON.leaves(large, problem, target, ALL_PARTS) == ALL_PARTS
    assert TRITON.leaves(large, problem, target, EpilogueKind(True, False, "relu")).is_empty
    assert TRITON.leaves(small, problem, target, ALL_PARTS).is_empty


@pytest.mark.parametrize("key", EPILOGUE_VARIANTS)
def test_pipelines_fuse_unless_they_leave_the_epilogue_to_a_pass(key: tuple[str, str]) -> None:
    assert {name for name in pipelines_of(*key) if key not in PIPELINES[name].fuses} == UNFUSED[key[0]]


@pytest.mark.parametrize("key", EPILOGUE_VARIANTS)
def test_a_plain_program_has_no_trace_of_an_epilogue(key: tuple[str, str]) -> None:
    """Absent parts are constants, so the binary takes the same arguments as before there were epilogues."""
    for config in TINY_CONFIGS[key]:
        kernel = Kernel.from_config(config)
        problem = next(p for p in tiny(key[0], kernel).values() if not unsupported(kernel, p, key[1], "fp16"))
        for program in family_of(*key).programs(kernel, problem, "bf16"):
            source = program.source()
            absent = [n for n, t in program.pointers if t == "none"]
            assert {n: source.signature[n] for n in absent} == dict.fromkeys(absent, "constexpr")
            assert not dict(program.constants).get("ACTIVATION")
            if "bias" in program.fn.arg_names:
                assert absent == ["bias", "residual"]


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"activation: must be one of relu, silu, .*, got 'tanh'"):
        Epilogue(activation="tanh")


def test_a_pass_costs_its_bytes_and_at_least_a_launch() -> None:
    arch, large, small = load_arch("sm90"), GemmProblem(8192, 8192, 64), GemmProblem(8, 8, 64)
    relu, both = EpilogueKind(activation="relu"), EpilogueKind(has_residual=True, activation="relu")
    assert pass_ms(EMPTY_KIND, large, "universal", arch) == 0
    assert pass_ms(relu, large, "universal", arch) == pytest.approx(2 * 2 * 8192**2 / 4.8e9)
    assert pass_ms(both, large, "universal", arch) == pytest.approx(1.5 * pass_ms(relu, large, "universal", arch))
    assert 0.001 < pass_ms(relu, small, "universal", arch) < 0.01


def test_a_store_takes_longer_by_its_activation_and_residual() -> None:
    arch, problem = load_arch("sm90"), GemmProblem(50176, 384, 96)
    kinds = [EpilogueKind(True), *(EpilogueKind(True, False, a) for a in ("hardswish", "silu", "gelu_tanh", "gelu"))]
    costs = [store_ms(kind, problem, "universal", arch) for kind in kinds]
    assert costs == sorted(costs)
    assert costs[0] == store_ms(EpilogueKind(True, False, "relu"), problem, "universal", arch) == 0
    assert costs[-1] == pytest.approx(0.0148, rel=0.02)  # 20 us measured with 128 x 128 tiles, 14 of them for GELU
    both = store_ms(EpilogueKind(False, True, "gelu"), problem, "universal", arch)
    assert both == pytest.approx(costs[-1] + store_ms(EpilogueKind(False, True), problem, "universal", arch))


def test_an_epilogue_without_a_part_is_the_rest() -> None:
    whole = EpilogueKind(True, True, "relu")
    assert whole.without(EMPTY_KIND) == whole
    assert whole.without(whole) == EMPTY_KIND
    assert whole.without(EpilogueKind(False, True, "relu")) == EpilogueKind(True)
    assert EMPTY_KIND.without(whole) == EMPTY_KIND


def test_costs_in_a_store_are_those_that_were_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/epilogue_cost.json").read_text())["clocks"]
    used = {f"bias+{name}": clocks for name, clocks in _STORE_CLOCKS.items() if name}
    used["bias+residual+relu"] = _RESIDUAL_CLOCKS
    assert used == pytest.approx(measured["others"], abs=0.005)
    ratios = [measured["persistent"][kind] / measured["others"][kind] for kind, clocks in used.items() if clocks > 0.05]
    assert np.median(ratios) == pytest.approx(2, abs=0.2)  # see `store_factor`
