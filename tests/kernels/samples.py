"""Fixed samples of kernels, legal and not, and of problems, up to the limits of an index."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from kernels.shapes import BEYOND_CONFIGS, REAL, TINY, TINY_BOXES, TINY_CONFIGS, TINY_MERGED, TINY_PATCHES, TINY_STRIPS
from tilewise.arch import load_arch
from tilewise.kernels.ck import CkKernel
from tilewise.kernels.ck._ck_rules import SUFFIXES, shape_of
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


def triton_kernels(target: Target, number: int, rng: random.Random) -> list[Kernel]:
    """Return so many kernels: those of tests, with up to two other values."""
    configs = (*TINY_CONFIGS[target.op, target.variant], *BEYOND_CONFIGS)
    pool = [Kernel.from_config(config) for config in configs]
    return [changed(rng.choice(pool), TRITON_VALUES, rng) for _ in range(number)]


def ck_kernels(target: Target, number: int, rng: random.Random) -> list[CkKernel]:
    """Return so many kernels: of each tile that a matrix instruction divides, with up to two other values."""
    found, arch = [], load_arch(target.arch)
    for tile, pipeline in product(product((16, 64, 96, 256), (16, 32, 128), (32, 64)), SUFFIXES):
        if shape := shape_of(tile, target.dtype, arch):
            stated: dict[str, Any] = {"ndim": 2} if target.op == "grouped_conv" else {"gemm_layout": "rcr"}
            for name, part in (("warp", shape.warps), ("warp_tile", shape.warp_tile)):
                stated |= {f"{name}_{x}": n for x, n in zip("mnk", part, strict=True)}
            stated |= {f"vector_{x}": n for x, n in zip("abc", shape.vectors, strict=True)}
            found.append(CkKernel(*tile, pipeline, scheduler="intrawave", **stated))
    return [changed(rng.choice(found), CK_VALUES, rng) for _ in range(number)]


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
    yield from (*TINY_BOXES.values(), *TINY_STRIPS.values(), *TINY_MERGED.values(), *TINY_PATCHES.values())
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
