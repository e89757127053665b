"""Problems that no kernel of CK Tile's supports are padded, run and cut."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernels.ck.stubs import conv_name, gemm_name, needs_compiler, stub
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
    assert unsupported(wide, larger, "universal", TARGET.dtype) is None


def test_parts_of_a_split_k_are_whole() -> None:
    split = parse_name(f"{gemm_name(16)}_splitk3").kernel
    (larger,) = padded_problems(GemmProblem(17, 9, 33), [split])
    assert larger == GemmProblem(32, 16, 48)  # three parts of 16
    assert unsupported(split, larger, "universal", TARGET.dtype) is None


def test_other_layouts_are_not_padded() -> None:
    assert padded_problems(GemmProblem(17, 9, 33, "rrr"), KERNELS) == []


def test_the_channels_of_a_group_grow_to_multiples_of_vector_widths() -> None:
    found = padded_problems(GroupedConvProblem(N=1, C=6, K=10, G=2, Hi=5, Wi=5, Y=1, X=1), ())
    sizes = [(p.C // 2, p.K // 2) for p in found if isinstance(p, GroupedConvProblem)]
    assert set(sizes) == set(product((3, 4, 8, 16), (5, 6, 8, 16))) - {(3, 5)}
    assert [c * k for c, k in sizes] == sorted(c * k for c, k in sizes)


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


@needs_compiler
@pytest.mark.parametrize("ndim", [2, 3])
@pytest.mark.parametrize("variant", ["forward", "bwd_data", "bwd_weight"])
def test_a_convolution_gets_channels_of_zeros_in_each_group(
    variant: str, ndim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    from tilewise.kernels.triton.programs import family_of
    from tilewise.kernels.triton.programs._operand_tensors import integer_operands

    monkeypatch.setenv("TILEWISE_CK_CONV_LIB", str(tmp_path))
    monkeypatch.setenv("TILEWISE_CK_CONV_MEMORY", "host")
    name = conv_name(variant=variant).replace("2d", f"{ndim}d")
    fits = "p->C / p->G % 8 == 0 && p->K / p->G % 4 == 0"
    stub(tmp_path, "a", name, CONV=1, DIRECTION=["forward", "bwd_data", "bwd_weight"].index(variant), FITS=fits)
    target, kernel = Target("grouped_conv", variant, "fp16", "gfx942"), parse_name(name).kernel
    if variant == "forward":  # a pool of instances knows the widths that names leave out
        kernel = replace(kernel, vector_a=8, vector_b=8, vector_c=4)
    dispatcher = Dispatcher(target, Pool("grouped_conv", variant, "fp16", (kernel,)), None)
    family = family_of("grouped_conv", variant)
    depth: dict[str, Any] = {"Di": 3, "Z": 2} if ndim == 3 else {}
    for problem in (
        GroupedConvProblem(N=2, C=6, K=10, G=2, Hi=5, Wi=4, Y=3, X=3, pad_h=1, **depth),  # groups of 3 and 5
        GroupedConvProblem(N=1, C=3, K=8, G=1, Hi=5, Wi=4, Y=1, X=2, stride_w=2, **depth),
        GroupedConvProblem(N=1, C=8, K=4, G=1, Hi=5, Wi=4, Y=3, X=3, **depth),  # as it is
    ):
        operands = integer_operands(family, problem, "fp16", "cpu", seed=3)
        right = family.reference(problem, *operands).to(torch.float16)
        for _ in range(2):
            assert torch.equal(dispatcher.run(problem, *operands), right)
        out = torch.full_like(right, torch.nan)
        assert dispatcher.run(problem, *operands, out=out) is out
        assert torch.equal(out, right)
        if ndim == 2:  # NumPy's arrays without the depth axis
            flat = dispatcher.run(problem, *(np.ascontiguousarray(o.squeeze(1).numpy()) for o in operands))
            assert np.array_equal(flat, right.squeeze(1).numpy())


@needs_compiler
def test_a_convolution_that_no_padding_helps_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_CK_CONV_LIB", str(tmp_path))
    monkeypatch.setenv("TILEWISE_CK_CONV_MEMORY", "host")
    stub(tmp_path, "a", conv_name(), CONV=1, FITS=0)
    target = Target("grouped_conv", "forward", "fp16", "gfx942")
    dispatcher = Dispatcher(target, Pool("grouped_conv", "forward", "fp16", (parse_name(conv_name()).kernel,)), None)
    x, w = np.ones((1, 5, 5, 8), np.float16), np.ones((8, 1, 1, 8), np.float16)
    with pytest.raises(KernelError, match=f"could be launched for .*: no library runs {conv_name()}"):
        dispatcher.run(GroupedConvProblem(N=1, C=8, K=8, G=1, Hi=5, Wi=5, Y=1, X=1), x, w)
