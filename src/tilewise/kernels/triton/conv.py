"""What the three convolution families share: their arguments' names and values, and pixel coordinates."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable

import triton
import triton.language as tl  # noqa: F401  the interpreter wants it beside every function

from tilewise.kernels.triton.program import VECTOR
from tilewise.ops import GroupedConvProblem

FILTER = ("Z", "Y", "X")
STRIDE = ("stride_d", "stride_h", "stride_w")
REACH = ("pad_d", "pad_h", "pad_w", "dilation_d", "dilation_h", "dilation_w")
SPACE = ("Di", "Hi", "Wi", "Do", "Ho", "Wo")
CHANNELS = ("C", "K", "Cg", "Kg")


@triton.jit
def pixels(row, D, H, W):
    """Pixel index -> (n, d, h, w)."""
    w = row % W
    rest = row // W
    h = rest % H
    rest = rest // H
    return rest // D, rest % D, h, w


def sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """The dimensions, the output's, and the channels of one group."""
    return {
        **problem.to_dict(),
        **problem.output_sizes._asdict(),
        "Cg": problem.C // problem.G,
        "Kg": problem.K // problem.G,
    }


def aligned_channels(sizes: dict[str, int], names: tuple[str, ...]) -> frozenset[str]:
    """The channel counts among `names` that allow the widest loads."""
    return frozenset(n for n in CHANNELS if n in names and sizes[n] % VECTOR == 0)


def alignment(problem: GroupedConvProblem, dtype: str) -> Hashable:
    """Problems of equal alignment share their programs, whatever the kernel."""
    sizes = sizes_of(problem)
    return aligned_channels(sizes, CHANNELS)
