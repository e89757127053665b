"""Rules find every kernel that cannot run, without crashing: any kernel of a pool on any problem, without a GPU.

Either the rules give a reason, or CUDA and Triton accept the launches.
"""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.shapes import wide_pool
from tilewise.kernels import unsupported
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton._limits import MAX_GRID_YZ, MAX_WORKSPACE_BYTES
from tilewise.kernels.triton._rules import TRITON_DTYPES
from tilewise.kernels.triton.programs import RESULT_TYPES, TORCH_TYPES, Launch, family_of
from tilewise.kernels.triton.programs._family import FAMILIES
from tilewise.kernels.triton.programs._program import ABSENT, descriptor, swizzled_descriptor
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, GroupedConvProblem, Problem, Target

TARGETS = [Target(*key, dtype, "sm90") for key in FAMILIES for dtype in TRITON_DTYPES[key[0]]]
INT32 = 2**31
# one, primes, multiples of 8 and of 16, one past a tile; and sizes near the limits of indices and grids
EDGES = (1, 2, 3, 7, 8, 13, 16, 17, 24, 31, 33, 63, 64, 65, 96, 127, 128, 129, 192, 193, 256, 257)
LARGE = (1000, 1021, 4096, 4097, 28672, 65535, 65536, 65537, 1_000_003, 2**24, 2**31 - 1)
TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8e4nv": torch.float8_e4m3fn}


EDGE = st.one_of(st.sampled_from(EDGES), st.integers(1, 300))


@st.composite
def gemms(draw: st.DrawFn) -> GemmProblem:
    """Return edge dimensions, of which one may be large; descriptors can often load them."""
    sizes = [draw(EDGE), draw(EDGE), draw(st.one_of(EDGE, st.sampled_from(LARGE)))]
    unit = draw(st.sampled_from((1, 8, 16)))
    m, n, k = draw(st.permutations([-(-size // unit) * unit for size in sizes]))
    return GemmProblem(m, n, k, draw(st.sampled_from(GEMM_LAYOUTS)))


@st.composite
def convs(draw: st.DrawFn) -> GroupedConvProblem:
    """Return edge dimensions, of which one may be large; 2D and 3D, with every option."""
    axes: dict[str, Any] = {}
    for size, taps, axis in (("Di", "Z", "d"), ("Hi", "Y", "h"), ("Wi", "X", "w")):
        if axis == "d" and draw(st.booleans()):
            continue
        axes[taps] = draw(st.sampled_from((1, 1, 2, 3, 5, 7)))
        axes[f"dilation_{axis}"] = draw(st.sampled_from((1, 1, 2, 3, 12)))
        axes[f"pad_{axis}"] = draw(st.sampled_from((0, 0, 1, 3)))
        axes[f"stride_{axis}"] = draw(st.sampled_from((1, 1, 2, 3, 4, 16, 300)))
        least = max(axes[f"dilation_{axis}"] * (axes[taps] - 1) + 1 - 2 * axes[f"pad_{axis}"], 1)
        axes[size] = least - 1 + draw(st.sampled_from((1, 2, 7, 13, 16, 29)))
    groups = draw(st.sampled_from((1, 1, 2, 3, 32, 65535, 65536)))
    channels = filters = 1
    if groups < 100 and draw(st.booleans()):
        channels, filters = draw(EDGE), draw(EDGE)
    sizes = axes | {"N": draw(st.sampled_from((1, 1, 2, 13, 64))), "C": groups * channels, "K": groups * filters}
    if draw(st.integers(0, 3)) == 0:
        name = draw(st.sampled_from(sorted(sizes.keys() & {"N", "C", "K", "Di", "Hi", "Wi"})))
        large = draw(st.sampled_from(LARGE))
        sizes[name] = groups * large if name in "CK" else max(large, sizes[name])
    assume(sizes["N"] * sizes["C"] * sizes["K"] * sizes["Hi"] * sizes["Wi"] * sizes.get("Di", 1) < 2**50)
    return GroupedConvProblem(G=groups, **sizes)


def problems(op: str) -> st.SearchStrategy[Problem]:
    return gemms() if op == "gemm" else convs()


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@settings(max_examples=25)
@given(data=st.data())
def test_every_kernel_is_refused_with_a_reason_or_well_formed(target: Target, data: st.DataObject) -> None:
    problem = data.draw(problems(target.op))
    pool = wide_pool(target)
    mask = pool.supported(problem)
    for kernel, supported in zip(pool.kernels, mask, strict=True):
        reason = unsupported(kernel, problem, target.variant, target.dtype)
        assert (reason is None) == supported
        if reason is None:
            check(kernel, problem, target)
        else:
            assert len(reason) > 10


def check(kernel: Kernel, problem: Problem, target: Target) -> None:
    """Check that CUDA and Triton accept the launches, and that their programs are those compiled ahead."""
    family, dtype = family_of(target.op, target.variant), target.dtype
    elements = family.workspace_elements(kernel, problem)
    shape = family.result(problem)
    result = torch.empty(shape, device="meta", dtype=TORCH_TYPES[RESULT_TYPES[dtype]])
    shares = -(-kernel.split_k * result.numel() // 4) * 4 if kernel.split_k > 1 else 0
    copied = sum(prod(s[:-1]) * -(-s[-1] // 8) * 8 for s in family.operands(problem) if s[-1] % 8)
    copied *= kernel.pipeline == "relay"
    assert elements == shares + copied // 2
    assert 4 * shares <= MAX_WORKSPACE_BYTES
    assert 2 * copied <= MAX_WORKSPACE_BYTES
    workspace = torch.empty(elements, device="meta")
    operands = [torch.empty(s, device="meta", dtype=TORCH_TYPES[dtype]) for s in family.operands(problem)]
    launches = family.launches(kernel, problem, dtype, *operands, result, workspace)
    assert tuple(item.program for item in launches) == family.programs(kernel, problem, dtype)
    assert len(launches) == 1 + (kernel.split_k > 1) + (copied > 0)
    for item in launches:
        check_launch(item)


def check_launch(item: Launch) -> None:
    program, (x, y, z) = item.program, item.grid
    assert 1 <= x < INT32
    assert 1 <= y <= MAX_GRID_YZ
    assert 1 <= z <= MAX_GRID_YZ
    for (name, kind), tensor in zip(program.pointers, item.tensors, strict=True):
        if tensor is None:
            assert kind == ABSENT
        elif kind.startswith("tensordesc<"):
            assert isinstance(tensor, TensorDescriptor)
            element = kind.removeprefix("tensordesc<").partition("[")[0]
            *outer, inner = tensor.strides
            block = tensor.block_shape
            assert kind == descriptor(element, block) or kind == swizzled_descriptor(element, block)
            assert tensor.base.dtype == TYPES[element], name
            assert inner == 1
            assert all(stride * tensor.base.element_size() % 16 == 0 for stride in outer)
            assert max(tensor.block_shape) <= 256  # of a box of the tensor memory accelerator
            assert len(tensor.shape) == len(tensor.block_shape) <= 5
            assert all(size > 0 for size in tensor.shape)
            if tensor.base._base is None:
                assert prod(tensor.shape) == tensor.base.numel()
            else:  # every second pixel of an image, or a copy in the workspace
                furthest = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
                assert furthest < tensor.base.numel()
        else:
            assert tensor.dtype == TYPES[kind] or name.endswith("_rest"), name
    for name, size in zip(program.sizes, item.sizes, strict=True):
        assert 0 <= size < INT32, name
        assert size % dict(program.divisors).get(name, 1) == 0, name
