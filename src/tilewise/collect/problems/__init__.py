"""Problem sets: named lists of problems to measure, kept as CSV files beside the generators that wrote them.

Takes an op and names of sets, or of the user's files (CSV, or MIOpenDriver's command lines), and gives plan items in
their order. Imports the standard library, :mod:`tilewise.ops` and :class:`tilewise.collect.Item` only. Used by the
commands that make plans.
"""

from __future__ import annotations

from tilewise.collect.problems._conv_sets import grouped_conv_1
from tilewise.collect.problems._gemm_sets import gemm_1
from tilewise.collect.problems._kinds import problem_labels
from tilewise.collect.problems._problem_files import dump_problem_set
from tilewise.collect.problems._sets import DEFAULT_SETS, SETS, ProblemSet, load_problem_set

__all__ = [
    "DEFAULT_SETS",
    "SETS",
    "ProblemSet",
    "dump_problem_set",
    "gemm_1",
    "grouped_conv_1",
    "load_problem_set",
    "problem_labels",
]
