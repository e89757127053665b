"""A fixed sample of kernels and problems is refused for the same reasons as ever: recorded tables hold them.

A digest differs if a rule, its limit or its text changed. If that is meant, tables that were recorded under the old
rule need another look; then take the digest from the failure.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kernels.shapes import BEYOND_CONFIGS, REAL, TINY, TINY_BOXES, TINY_CONFIGS, TINY_MERGED, TINY_STRIPS
from tilewise.arch import load_arch
from tilewise.kernels import illegal, unsupported
from tilewise.kernels.ck import CkKernel
from tilewise.kernels.ck._ck_rules import SUFFIXES, illegal_reason, name_fault, shape_of
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.pipelines import PIPELINES
from tilewise.ops import GEMM_LAYOUTS, GemmProblem, GroupedConvProblem, Problem, Target

TRITON_VALUES: dict[str, tuple[Any, ...]] = {
    "tile_m": (1, 8, 16, 48, 64, 128, 256),
    "tile_n": (4, 16, 24, 32, 64, 96, 128, 192, 256),
    "tile_k": (1, 2, 8, 16, 32, 64, 128, 256),
    "pipeline": tuple(PIPELINES),
    "num_warps": (1, 2, 3, 4, 8, 16),
    "num_stages": (0, 1, 2, 3, 4, 6, 9),
    "group_m": (0, 1, 2, 8),
    "split_k": (0, 1, 2, 3, 16, 200),
}
CK_VALUES: dict[str, tuple[Any, ...]] = {
    "tile_m": (0, 32, 96, 128, 256),
    "tile_n": (16, 64, 96, 256),
    "tile_k": (16, 24, 64, 256, 512),
    "scheduler": ("", "intrawave", "interwave"),
    "epilogue": ("", "cshuffle", "fancy"),
    "double_smem_buffer": (False, True),
    "store_immediate": (False, True),
    **{f"vector_{x}": (0, 1, 2, 3, 8, 16) for x in "abc"},
    **{f"warp_{x}": (0, 1, 2, 3, 8) for x in "mnk"},
    **{f"warp_tile_{x}": (0, 16, 32, 64) for x in "mnk"},
    **{f"pad_{x}": (False, True) for x in "mnk"},
    "num_groups_to_merge": (0, 1, 2, 4),
    "suffix": ("", "vec4", "splitk2", "2_vec4", "x"),
}


def digest(reasons: Iterable[object]) -> str:
    """Return a digest of reasons in their order; a sample must meet several, and None as well."""
    given = list(reasons)
    assert None in given
    assert len(set(given)) > 3
    return hashlib.sha256("\n".join(map(str, given)).encode()).hexdigest()[:10]


def changed(kernel: Any, values: dict[str, tuple[Any, ...]], rng: random.Random) -> Any:
    """Return a kernel with up to two other values."""
    names = rng.sample(sorted(values), rng.randint(0, 2))
    return replace(kernel, **{name: rng.choice(values[name]) for name in names})


def some_problems(op: str, number: int, rng: random.Random) -> Iterator[Problem]:
    """Yield real, tiny and drawn problems, some of them at the limits of an index."""
    yield from (*REAL[op].values(), *TINY[op].values())
    if op == "gemm":
        sizes = (1, 7, 16, 100, 1024, 1000, 4096, 2**16)
        for _ in range(number):
            m, n, k = (rng.choice(sizes) for _ in range(3))
            yield GemmProblem(m, n, k, rng.choice(GEMM_LAYOUTS))
        return
    yield from (*TINY_BOXES.values(), *TINY_STRIPS.values(), *TINY_MERGED.values())
    for _ in range(number):
        groups, side = rng.choice((1, 1, 2, 8, 64, 2**16)), rng.choice((7, 14, 33, 56, 512))
        each, images = (rng.choice((1, 1, 3, 8, 64)) for _ in range(2)), rng.choice((1, 3, 64, 2**10))
        channels, filters = (groups * n for n in each)
        y, x, stride, dilation = (rng.choice(c) for c in ((1, 3, 5), (1, 3, 11, 12), (1, 1, 2, 3), (1, 1, 2)))
        reach = dilation * (max(y, x) - 1) + 1
        yield GroupedConvProblem(
            images, channels, filters, groups, max(side, reach), max(side, reach), y, x, stride,
            rng.choice((1, stride)), rng.choice((0, y // 2)), rng.choice((0, x // 2)), dilation, dilation,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("grouped_conv_forward_bf16_sm90", "legality 6f505c18c2, support 588bc2db7a"),
        ("grouped_conv_bwd_data_bf16_sm90", "legality b5c5a84fcc, support 778555c3d9"),
        ("grouped_conv_bwd_weight_bf16_sm90", "legality 665e70a194, support 2898d7b577"),
        ("gemm_universal_fp8_sm90", "legality e356623b06, support a3824b463b"),
    ],
)
def test_triton(target: str, expected: str) -> None:
    parsed, rng = Target.parse(target), random.Random(target)
    configs = (*TINY_CONFIGS[parsed.op, parsed.variant], *BEYOND_CONFIGS)
    arch, pool = load_arch(parsed.arch), [Kernel.from_config(config) for config in configs]
    kernels = [changed(rng.choice(pool), TRITON_VALUES, rng) for _ in range(1500)]
    reasons = [illegal(kernel, parsed, arch) for kernel in kernels]
    sound = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if reason is None]
    problems = list(some_problems(parsed.op, 300, rng))
    pairs = [(rng.choice(sound), rng.choice(problems)) for _ in range(4000)]
    support = digest(unsupported(kernel, problem, parsed.variant) for kernel, problem in pairs)
    assert f"legality {digest(reasons)}, support {support}" == expected


def ck_kernels(op: str, dtype: str, arch: Any) -> list[CkKernel]:
    """Return a kernel for each tile that a matrix instruction divides, of every pipeline."""
    found = []
    for tile, pipeline in product(product((16, 64, 96, 256), (16, 32, 128), (32, 64)), SUFFIXES):
        if shape := shape_of(tile, dtype, arch):
            stated: dict[str, Any] = {"ndim": 2} if op == "grouped_conv" else {"gemm_layout": "rcr"}
            for name, part in (("warp", shape.warps), ("warp_tile", shape.warp_tile)):
                stated |= {f"{name}_{x}": n for x, n in zip("mnk", part, strict=True)}
            stated |= {f"vector_{x}": n for x, n in zip("abc", shape.vectors, strict=True)}
            found.append(CkKernel(*tile, pipeline, scheduler="intrawave", **stated))
    return found


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (
            "grouped_conv_forward_bf16_gfx950",
            "shapes b4a33030b1, names 606b07b417, legality bc589e6f59, support a9f0176ce7",
        ),
        (
            "grouped_conv_bwd_weight_fp16_gfx942",
            "shapes b4a33030b1, names 7669f8d4ac, legality 3cc230ea01, support ef762e6fec",
        ),
        ("gemm_universal_fp8_gfx950", "shapes 726d5a30b8, names 5b7c4ec8a2, legality 3b0ee9b336, support 1ab7d951fb"),
    ],
)
def test_ck(target: str, expected: str) -> None:
    parsed, rng = Target.parse(target), random.Random(target)
    arch = load_arch(parsed.arch)
    tiles = product((8, 16, 48, 64, 96, 128, 256), (16, 32, 64, 192, 256), (8, 16, 32, 64, 128))
    shapes = digest(shape_of(tile, parsed.dtype, arch) for tile in tiles)
    pool = ck_kernels(parsed.op, parsed.dtype, arch)
    kernels = [changed(rng.choice(pool), CK_VALUES, rng) for _ in range(3000)]
    reasons = [illegal_reason(kernel, parsed, arch) for kernel in kernels]
    sound = [kernel for kernel, reason in zip(kernels, reasons, strict=True) if reason is None]
    if parsed.op == "gemm":
        sound = [replace(kernel, split_k=rng.choice((0, 0, 2, 3, 16))) for kernel in sound]
    problems = list(some_problems(parsed.op, 300, rng))
    pairs = [(rng.choice(sound), rng.choice(problems)) for _ in range(4000)]
    support = digest(unsupported(kernel, problem, parsed.variant) for kernel, problem in pairs)
    names = digest(map(name_fault, kernels))
    assert f"shapes {shapes}, names {names}, legality {digest(reasons)}, support {support}" == expected
