"""Lines of MIOpen's find databases: a convolution problem, and the times of its fastest solvers.

``C-H-W-YxX-K-Ho-Wo-N-PADxPAD-SxS-DxD-BIAS-LAYOUT-DTYPE-DIRECTION[_gGROUPS]=SOLVER:MS,WORKSPACE,ALGORITHM;...``. In 3D
the depth comes before the height, and before the width in ``ZxYxX``. LAYOUT is three words, of input, filter and
output, where they are not all the default.

A line of direction B or W names the tensor that MIOpen reads first, which is the output's gradient: its ``C-H-W`` are
the K, Ho and Wo of the convolution, its ``K-Ho-Wo`` the C, H and W. Read otherwise, strided problems are impossible.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tilewise.errors import ProblemError
from tilewise.ops import CHANNELS_FIRST, CHANNELS_LAST, GroupedConvProblem

VARIANTS = {"F": "forward", "B": "bwd_data", "W": "bwd_weight"}
DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}
# MIOpen's layouts by spatial dimensions, in tilewise's words.
LAYOUTS = {
    2: {"NCHW": CHANNELS_FIRST, "NHWC": CHANNELS_LAST},
    3: {"NCDHW": CHANNELS_FIRST, "NDHWC": CHANNELS_LAST},
}
_ALGORITHMS = {"Fwd": "forward", "BwdData": "bwd_data", "BwdWeights": "bwd_weight"}

_N = r"(0|[1-9][0-9]{0,17})"


def _key(ndim: int) -> re.Pattern[str]:
    size, across = "-".join([_N] * (ndim + 1)), "x".join([_N] * ndim)
    tail = r"([A-Za-z0-9]+(?:-[A-Za-z0-9]+-[A-Za-z0-9]+)?)-([A-Z][A-Z0-9]*)-([FBW])(?:_g([1-9][0-9]{0,17}))?"
    return re.compile("-".join([size, across, size, _N, across, across, across, "([0-9]+)", tail]))


_KEYS = {ndim: _key(ndim) for ndim in LAYOUTS}
_TIMING = re.compile(
    r"([A-Za-z][\w<>-]{0,99}):([0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]{1,2})?),([0-9]{1,18})"
    r",miopenConvolution(Fwd|BwdData|BwdWeights)Algo([A-Za-z0-9]{1,40})",
    re.ASCII,
)


class Conv(NamedTuple):
    """A problem of a find database.

    Attributes:
        variant, dtype: of the target.
        problem: the problem.
        ndim: spatial dimensions of the line. MIOpen has other solvers for a 2D problem that is called as a 3D one.
    """

    variant: str
    dtype: str
    problem: GroupedConvProblem
    ndim: int


class Timing(NamedTuple):
    """The time of one solver on a problem, in milliseconds; `workspace` in bytes."""

    solver: str
    latency_ms: float
    workspace: int
    algorithm: str


class Line(NamedTuple):
    """A parsed line.

    Attributes:
        conv: its problem, None if `faults` has all of its timings.
        timings: its timings, in the order of the line.
        faults: reason and text of each timing that cannot be read.
    """

    conv: Conv | None
    timings: list[Timing]
    faults: list[tuple[str, str]]


def parse_line(text: str) -> Line:
    """Parse a line; whatever it holds, each of its timings becomes a timing or a fault."""
    key, equals, value = text.partition("=")
    if not equals:
        return Line(None, [], [("a line must be PROBLEM=SOLVER:MS,WORKSPACE,ALGORITHM;..., this one has no '='", text)])
    parts = value.split(";")
    conv = parse_key(key)
    if isinstance(conv, str):
        return Line(None, [], [(conv, f"{key}={part}") for part in parts])
    timings: list[Timing] = []
    faults: list[tuple[str, str]] = []
    seen: set[str] = set()
    for part in parts:
        timing = _timing(part, conv.variant)
        if isinstance(timing, Timing) and timing.solver in seen:
            timing = f"the line has solver {timing.solver!r} already"
        if isinstance(timing, str):
            faults.append((timing, f"{key}={part}"))
        else:
            seen.add(timing.solver)
            timings.append(timing)
    return Line(conv, timings, faults)


def parse_key(key: str) -> Conv | str:
    """Return the problem that a key states, or the rule that it breaks."""
    ndim = 3
    match = _KEYS[3].fullmatch(key)
    if match is None:
        ndim, match = 2, _KEYS[2].fullmatch(key)
    if match is None:
        return (
            f"a problem must be C-H-W-YxX-K-Ho-Wo-N-PAD-STRIDE-DILATION-BIAS-LAYOUT-DTYPE-DIRECTION, got {key[:120]!r}"
        )
    *numbers, bias, layouts, dtype, direction, groups = match.groups()
    if bias != "0":
        return f"only convolutions without a bias are imported, got bias {bias[:40]}"
    if dtype not in DTYPES:
        return f"dtype must be one of {', '.join(DTYPES)}, got {dtype[:40]!r}"
    layout = _common_layout(layouts)
    if layout not in LAYOUTS[ndim]:
        return f"layout of all tensors must be one of {', '.join(LAYOUTS[ndim])} in {ndim}D, got {layouts[:60]!r}"
    try:
        problem = _problem([int(n) for n in numbers], ndim, direction != "F", int(groups or 1), LAYOUTS[ndim][layout])
    except ProblemError as e:
        return str(e)
    if not isinstance(problem, GroupedConvProblem):
        return problem
    return Conv(VARIANTS[direction], DTYPES[dtype], problem, ndim)


def _common_layout(layouts: str) -> str:
    words = set(layouts.split("-"))
    return words.pop() if len(words) == 1 else layouts


def _problem(numbers: list[int], ndim: int, is_backward: bool, groups: int, layout: str) -> GroupedConvProblem | str:
    """Return the problem with these sizes, or the rule that they break.

    Raises:
        ProblemError: a size is impossible.
    """
    first, second = numbers[: ndim + 1], numbers[2 * ndim + 1 : 3 * ndim + 2]
    (c, *inputs), (k, *outputs) = (second, first) if is_backward else (first, second)
    filters = numbers[ndim + 1 : 2 * ndim + 1]
    batch, *rest = numbers[3 * ndim + 2 :]
    pads, strides, dilations = (rest[i * ndim : (i + 1) * ndim] for i in range(3))
    sizes: dict[str, Any] = {}
    for i, axis in enumerate("dhw"[3 - ndim :]):
        sizes |= {f"{axis.upper()}i": inputs[i], {"d": "Z", "h": "Y", "w": "X"}[axis]: filters[i]}
        sizes |= {f"stride_{axis}": strides[i], f"pad_{axis}": pads[i], f"dilation_{axis}": dilations[i]}
    problem = GroupedConvProblem(batch, c, k, groups, **sizes, layout=layout)
    computed = list(problem.output_sizes)[-ndim:]
    if computed != outputs:
        shown = ["x".join(map(str, stated)) for stated in (outputs, computed)]
        return f"the output is stated as {shown[0]}, but the other sizes give {shown[1]}"
    return problem


def _timing(text: str, variant: str) -> Timing | str:
    """Return the timing that a text states, or the rule that it breaks."""
    match = _TIMING.fullmatch(text)
    if match is None:
        return f"a timing must be SOLVER:MS,WORKSPACE,ALGORITHM with MIOpen's names, got {text[:120]!r}"
    solver, ms, workspace, direction, algorithm = match.groups()
    if _ALGORITHMS[direction] != variant:
        return f"an algorithm of {_ALGORITHMS[direction]} cannot have run a problem of {variant}"
    return Timing(solver, float(ms), int(workspace), algorithm)
