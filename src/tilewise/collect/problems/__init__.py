"""The problems that are measured: named sets, kept as files beside the generators that wrote them."""

from tilewise.collect.problems.sets import DEFAULT_SETS, SETS, ProblemSet, problem_set

__all__ = ["DEFAULT_SETS", "SETS", "ProblemSet", "problem_set"]
