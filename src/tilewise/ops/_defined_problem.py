"""The problem type of a definition."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import ClassVar, cast

from tilewise.errors import ProblemError
from tilewise.ops._definition import VARIANT, OpDefinition
from tilewise.ops._problem import INT64_MAX, Dimensions, GemmDims, Problem, Size, require_int

# The work of a problem without an expression: small enough that no rate looks like one above a GPU's peak.
NOMINAL_FLOPS = 10**6
NOMINAL_BYTES = 10**3


@dataclasses.dataclass(frozen=True)
class DefinedProblem(Problem):
    """A problem of an op of the user's own; its columns are those of :attr:`definition`.

    Attributes:
        definition: the registered definition. Its expressions may change, its columns may not.
    """

    definition: ClassVar[OpDefinition]
    variants: ClassVar[tuple[str, ...]] = (VARIANT,)

    def __post_init__(self) -> None:
        for name, kind in self.definition.problem:
            if kind == "int":
                require_int(self, (name,), at_least=0)
            elif kind == "bool":
                self._require_flag(name)
            elif getattr(self, name) not in kind:
                raise ProblemError(name, f"must be one of {', '.join(kind)}, got {getattr(self, name)!r:.60}")

    def _require_flag(self, name: str) -> None:
        value = getattr(self, name)
        if value not in (0, 1):  # True and False are equal to these, NumPy's too
            raise ProblemError(name, f"must be true or false, got {value!r:.60}")
        object.__setattr__(self, name, int(value))

    @property
    def group_key(self) -> tuple[int, ...]:
        """The integers; problems that differ in flags and categories only are of one shape."""
        return _group_key(self, self.definition.sizes)

    @property
    def flops(self) -> int:
        """The definition's FLOPs, or a nominal number."""
        return self._work("flops", NOMINAL_FLOPS)

    def min_bytes(self, dtype: str) -> int:
        """Return the definition's bytes, or a nominal number."""
        return self._work("bytes", NOMINAL_BYTES)

    def _work(self, field: str, nominal: int) -> int:
        formula = self.definition.formulas.get(field)
        if formula is None:
            return nominal
        value = formula(self.__dict__)
        if not 1 <= value <= INT64_MAX:
            raise ProblemError(field, f"{formula.text!r} must be from 1 to 2**63 for {self.to_dict()}, got {value}")
        return int(value)

    def implicit_gemm(self, variant: str) -> GemmDims:
        """Return sizes of 1: a definition does not tell which columns form a matrix product."""
        return GemmDims(1, 1, 1, 1)

    def __reduce__(self) -> tuple[Callable[..., Problem], tuple[object, ...]]:
        return _restored, (self.definition, self.values())


def _group_key(columns: Dimensions, sizes: tuple[str, ...]) -> tuple[Size, ...]:
    """Return the sizes of a problem, or of the rows of a table."""
    return tuple(getattr(columns, name) for name in sizes)


def _restored(definition: OpDefinition, values: tuple[int | str, ...]) -> Problem:
    from tilewise.ops._registry import adopt

    return adopt(definition)(*values)


@cache
def problem_type(interface: tuple[object, ...]) -> type[DefinedProblem]:
    """Return the problem type of all definitions with this :attr:`OpDefinition.interface`."""
    name, columns = cast(str, interface[0]), cast("tuple[tuple[str, object], ...]", interface[1])
    sizes = tuple(column for column, kind in columns if kind == "int")
    fields = [(column, str if isinstance(kind, tuple) else int) for column, kind in columns]
    made = dataclasses.make_dataclass(
        f"Problem_{name}",
        fields,
        bases=(DefinedProblem,),
        namespace={"op": name, "group_key": property(lambda self: _group_key(self, sizes))},  # of tables, too
        frozen=True,
    )
    return cast("type[DefinedProblem]", made)
