"""Named problem sets. Their files are measured; their generators document how the files were made.

A set never changes once something was measured on it. Another choice of problems is another set, with the next number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewise.collect._plan import Item
from tilewise.collect.problems._conv_sets import grouped_conv_1
from tilewise.collect.problems._gemm_sets import gemm_1
from tilewise.collect.problems._large_sets import (
    gemm_3,
    gemm_4,
    gemm_5,
    gemm_6,
    grouped_conv_3,
    grouped_conv_4,
    grouped_conv_5,
    grouped_conv_6,
)
from tilewise.collect.problems._miopen_driver import ENDINGS, load_driver_file
from tilewise.collect.problems._more_conv_sets import grouped_conv_2
from tilewise.collect.problems._more_gemm_sets import gemm_2
from tilewise.collect.problems._problem_files import dump_problem_set, load_problem_file
from tilewise.errors import ConfigError

_FOLDER = Path(__file__).parent / "sets"


@dataclass(frozen=True)
class ProblemSet:
    """Problem set that is part of tilewise.

    Attributes:
        name: ``{op}-{number}``.
        op: op of its problems.
        about: description of its problems, for the top of the file. The committed files never change, so this text
            names the generator by the module path it had when the file was written.
        generate: makes its problems in order.
    """

    name: str
    op: str
    about: str
    generate: Callable[[], tuple[Item, ...]]

    @property
    def path(self) -> Path:
        """File that the set is read from."""
        return _FOLDER / f"{self.name}.csv"

    def text(self) -> str:
        """Return the expected content of the file: the generated problems, and how to generate them."""
        items = self.generate()
        written = "Written by `python -m tilewise.cli.problems write`; never changed once something was measured on it."
        return dump_problem_set(self.op, items, f"{self.name}: {len(items)} problems.\n{self.about}\n{written}")


SETS: dict[str, ProblemSet] = {
    s.name: s
    for s in (
        ProblemSet(
            "grouped_conv-1",
            "grouped_conv",
            "Layers of 25 networks at two of eight batch sizes each, and random problems of five kinds.\n"
            "Generator: tilewise.collect.problems.conv.grouped_conv_1, order drawn.",
            grouped_conv_1,
        ),
        ProblemSet(
            "grouped_conv-2",
            "grouped_conv",
            "Disjoint from grouped_conv-1: network layers at other batches and image sizes (NETWORK@PIXELS), video\n"
            "networks, random problems by kind, tiny and huge ones, edge sizes.\n"
            "Generator: tilewise.collect.problems.conv_more.grouped_conv_2, order drawn.",
            grouped_conv_2,
        ),
        ProblemSet(
            "grouped_conv-3",
            "grouped_conv",
            "Disjoint from both: five times the kinds of grouped_conv-2, layers at other batches and random problems\n"
            "as in grouped_conv-1. To learn from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.grouped_conv_3, order drawn.",
            grouped_conv_3,
        ),
        ProblemSet(
            "grouped_conv-4",
            "grouped_conv",
            "Disjoint from all three, and made like grouped_conv-3: eight times the kinds of grouped_conv-2. To learn\n"
            "from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.grouped_conv_4, order drawn.",
            grouped_conv_4,
        ),
        ProblemSet(
            "grouped_conv-5",
            "grouped_conv",
            "Disjoint from all four: the kinds that models ranked worst after grouped_conv-4. 1x1s of few channels,\n"
            "depthwise with several filters a channel, groups, strides, 3D. To learn from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.grouped_conv_5, order drawn.",
            grouped_conv_5,
        ),
        ProblemSet(
            "grouped_conv-6",
            "grouped_conv",
            "Disjoint from all five: as many again of the kinds of grouped_conv-5. To learn from, with few kernels\n"
            "each.\n"
            "Generator: tilewise.collect.problems.many.grouped_conv_6, order drawn.",
            grouped_conv_6,
        ),
        ProblemSet(
            "gemm-1",
            "gemm",
            "Projections of language models (MODEL/PROJECTION, and its gradients dgrad and wgrad), squares,\n"
            "skinny and random products, edge sizes.\n"
            "Generator: tilewise.collect.problems.gemm.gemm_1, order drawn.",
            gemm_1,
        ),
        ProblemSet(
            "gemm-2",
            "gemm",
            "Disjoint from gemm-1: projections at other numbers of tokens and their gradients, narrow products, a K\n"
            "that no tile divides, random products in every layout.\n"
            "Generator: tilewise.collect.problems.gemm_more.gemm_2, order drawn.",
            gemm_2,
        ),
        ProblemSet(
            "gemm-3",
            "gemm",
            "Disjoint from both: ten times as many of the kinds of gemm-2. To learn from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.gemm_3, order drawn.",
            gemm_3,
        ),
        ProblemSet(
            "gemm-4",
            "gemm",
            "Disjoint from all three: 24 times as many of the kinds of gemm-2. To learn from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.gemm_4, order drawn.",
            gemm_4,
        ),
        ProblemSet(
            "gemm-5",
            "gemm",
            "Disjoint from all four: more of the kinds of gemm-1, which sets 2 to 4 have none of. To learn\n"
            "from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.gemm_5, order drawn.",
            gemm_5,
        ),
        ProblemSet(
            "gemm-6",
            "gemm",
            "Disjoint from all five: three times as many of the kinds of gemm-5, eight times as many of those of\n"
            "gemm-2. To learn from, with few kernels each.\n"
            "Generator: tilewise.collect.problems.many.gemm_6, order drawn.",
            gemm_6,
        ),
    )
}
# Sets that `tilewise collect` measures by default, by op.
DEFAULT_SETS: dict[str, str] = {"grouped_conv": "grouped_conv-1", "gemm": "gemm-1"}


def load_problem_set(op: str, names: str | Sequence[str] | None = None) -> tuple[Item, ...]:
    """Read the problems to measure, in the order of their files.

    Args:
        op: op of the problems.
        names: a set of :data:`SETS`, the path of a problem set (``.csv``) or of command lines of MIOpenDriver
            (``.txt``, ``.log``), or a sequence of these; None for the op's set of :data:`DEFAULT_SETS`.

    Raises:
        ConfigError: the op has no set of this name.
        DataError: a file cannot be read or is not a problem set of `op`; the message names file and line.
    """
    wanted = DEFAULT_SETS.get(op) if names is None else names
    if wanted is None:
        raise ConfigError(f"{op} is no built-in op, so it has no set of problems; name a file of them, such as a.csv")
    return tuple(
        item for name in ([wanted] if isinstance(wanted, str) else wanted) for item in _load_one(op, str(name))
    )


def _load_one(op: str, name: str) -> tuple[Item, ...]:
    if name.endswith(".csv"):
        return load_problem_file(Path(name), op)
    if name.endswith(ENDINGS):
        return load_driver_file(Path(name), op)
    known = [s.name for s in SETS.values() if s.op == op]
    if name not in known:
        raise ConfigError(
            f"{name!r} is not a problem set of {op}; known are {', '.join(known)}, or give the path of a .csv file "
            f"(or of MIOpenDriver's command lines: {' or '.join(ENDINGS)})"
        )
    return load_problem_file(SETS[name].path, op)
