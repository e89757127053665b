"""Hypothesis strategies: valid problems and kernels, small and large, every option of the op; damages to files."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from mutate import KINDS, TOKENS, Damage
from tilewise.kernels import load_pool
from tilewise.kernels.triton import Kernel
from tilewise.ops import CHANNELS_LAST, GEMM_LAYOUTS, GemmProblem, GroupedConvProblem, Target

CONV_TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
CONV_POOL = load_pool(CONV_TARGET)
GEMM_POOL = load_pool(Target.parse("gemm_universal_bf16_sm90"))


@st.composite
def conv_problems(
    draw: st.DrawFn,
    *,
    max_size: int = 256,
    dims: tuple[int, ...] = (2, 3),
    layouts: tuple[str, ...] = (CHANNELS_LAST,),
) -> GroupedConvProblem:
    """Return a valid convolution; `max_size` bounds image sides and the channels of a group."""
    axes = {}
    for size, filt, name in (("Di", "Z", "d"), ("Hi", "Y", "h"), ("Wi", "X", "w")):
        if name == "d" and draw(st.sampled_from(dims)) == 2:
            continue
        axes[filt] = draw(st.integers(1, 7))
        axes[f"dilation_{name}"] = draw(st.integers(1, 3))
        axes[f"pad_{name}"] = draw(st.integers(0, 3))
        axes[f"stride_{name}"] = draw(st.integers(1, 3))
        reach = axes[f"dilation_{name}"] * (axes[filt] - 1) + 1
        least = max(reach - 2 * axes[f"pad_{name}"], 1)
        axes[size] = draw(st.integers(least, least + max_size))
    groups = draw(st.sampled_from([1, 1, 2, 3, 32]))
    channels, filters = draw(st.integers(1, max_size)), draw(st.integers(1, max_size))
    layout = draw(st.sampled_from(layouts))
    counts = {"N": draw(st.integers(1, 64)), "C": groups * channels, "K": groups * filters, "G": groups}
    return GroupedConvProblem(**counts, **axes, layout=layout)


def gemm_problems() -> st.SearchStrategy[GemmProblem]:
    """Return a valid matrix product."""
    sizes = st.integers(1, 8192)
    return st.builds(GemmProblem, M=sizes, N=sizes, K=sizes, layout=st.sampled_from(GEMM_LAYOUTS))


def conv_kernels() -> st.SearchStrategy[Kernel]:
    """Return a kernel of the shipped pool."""
    return st.sampled_from(CONV_POOL.kernels)


def gemm_kernels() -> st.SearchStrategy[Kernel]:
    """Return a kernel of the shipped pool of matrix products."""
    return st.sampled_from(GEMM_POOL.kernels)


def damages() -> st.SearchStrategy[list[Damage]]:
    """One to four small damages to a file."""
    damage = st.builds(
        Damage,
        st.sampled_from(KINDS),
        st.floats(0, 1, exclude_max=True),
        st.sampled_from([1, 2, 5, 30, 200]),
        st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=8)),
    )
    return st.lists(damage, min_size=1, max_size=4)


def without_idle_depth(problem: GroupedConvProblem) -> GroupedConvProblem:
    """Return a problem whose depth, if it has none, is not strided or dilated: texts of 2D problems do not state it."""
    return problem if problem.ndim == 3 else dataclasses.replace(problem, stride_d=1, pad_d=0, dilation_d=1)
