"""The contract that every op's problem type fulfils.

Formulas are written once, as module functions over *anything with the dimensions as attributes*: a frozen problem
(attributes are ints) or a :class:`types.SimpleNamespace` of numpy arrays (features over a whole table). Only integer
arithmetic with ``//`` is used, so both give the same numbers.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple, Self

from tilewise.errors import ProblemError

INT64_MAX = 2**63 - 1


class GemmDims(NamedTuple):
    """The (implicit) matrix product that a kernel walks: `batch` independent products of ``m x k`` by ``k x n``."""

    m: Any  # int, or int64 array of shape (rows,)
    n: Any
    k: Any
    batch: Any


@dataclasses.dataclass(frozen=True)
class Problem(ABC):
    """One shape of one op: frozen, hashable, validated on construction.

    Subclasses are frozen dataclasses whose fields are the problem columns of the measurement table, in its order.
    """

    op: ClassVar[str]
    variants: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep what look-ups call: a dataclass would make methods that go through all fields each time."""
        super().__init_subclass__(**kwargs)
        cls.__hash__ = Problem.__hash__  # type: ignore[method-assign]
        cls.__eq__ = Problem.__eq__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        """The same op and the same dimensions."""
        return other.__class__ is self.__class__ and self.values() == other.values()

    def __hash__(self) -> int:
        """Computed once: problems are looked up far more often than made."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash(self.values())
        return known

    def values(self) -> tuple[Any, ...]:
        """All dimensions, in the order of the columns."""
        known: tuple[Any, ...] | None = self.__dict__.get("_values")
        if known is None:
            known = self.__dict__["_values"] = _values(type(self))(self)
        return known

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: another process hashes texts differently."""
        return self.to_dict()

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Names of the problem columns, in the order of the fields."""
        return _columns(cls)

    @classmethod
    def column_kinds(cls) -> dict[str, Literal["int", "str"]]:
        """What each problem column holds, in order."""
        return {f.name: "str" if f.type in (str, "str") else "int" for f in dataclasses.fields(cls)}

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the dimensions; numpy's integers become ints.

        Raises:
            ProblemError: one is impossible; `.field` names it.
        """

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from a mapping; absent optional dimensions take their defaults.

        Raises:
            ProblemError: a dimension is unknown, missing or impossible; `.field` names it.
        """
        known, needed = _names(cls)
        if not known.issuperset(values):
            name = next(name for name in values if name not in known)
            raise ProblemError(str(name), f"not a dimension of {cls.op}; known are {', '.join(cls.column_names())}")
        if not values.keys() >= needed:
            name = next(name for name in cls.column_names() if name in needed and name not in values)
            raise ProblemError(name, f"missing; {cls.op} needs it")
        problem = object.__new__(cls)  # the constructor of a frozen dataclass takes five times as long
        problem.__dict__.update(_defaults(cls), **values)
        problem.__post_init__()
        return problem

    def to_dict(self) -> dict[str, Any]:
        """The problem columns as a plain dict."""
        return {name: getattr(self, name) for name in self.column_names()}  # asdict would take ten times as long

    @classmethod
    def in_words(cls, values: Mapping[str, Any]) -> str:
        """Problem columns as text, e.g. ``M=16 N=1536 K=7168``; those that have their default are left out."""
        defaults = {f.name: f.default for f in dataclasses.fields(cls)}
        return " ".join(f"{name}={value}" for name, value in values.items() if value != defaults[name])

    @property
    @abstractmethod
    def group_key(self) -> tuple[int, ...]:
        """The dimensions that make two rows the same shape; never split across folds."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations (a multiply-add counts two)."""

    @abstractmethod
    def min_bytes(self, dtype: str) -> int:
        """Fewest bytes that move: each input read once, the output written once."""

    @abstractmethod
    def implicit_gemm(self, variant: str) -> GemmDims:
        """The matrix product that a kernel of `variant` walks."""


@cache
def _columns(kind: type[Problem]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def _defaults(kind: type[Problem]) -> dict[str, Any]:
    """All dimensions, in the order of the columns; those that have no default are to be overwritten."""
    return {f.name: f.default for f in dataclasses.fields(kind)}


@cache
def _values(kind: type[Problem]) -> Callable[[Problem], tuple[Any, ...]]:
    """What gives all dimensions of a problem at once."""
    return attrgetter(*_columns(kind))


@cache
def _names(kind: type[Problem]) -> tuple[frozenset[str], frozenset[str]]:
    """All dimensions of an op, and those without a default."""
    fields = dataclasses.fields(kind)
    needed = frozenset(f.name for f in fields if f.default is dataclasses.MISSING)
    return frozenset(f.name for f in fields), needed


def require_int(problem: Problem, names: tuple[str, ...], *, at_least: int) -> None:
    """Check that the fields are ints of at least `at_least`; numpy integers are accepted and stored as ints."""
    fields = problem.__dict__
    for name in names:
        value = fields[name]
        if type(value) is int and at_least <= value <= INT64_MAX:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ProblemError(name, f"must be an integer, got {value!r}")
        value = value.__index__()
        if value < at_least:
            raise ProblemError(name, f"must be at least {at_least}, got {value}")
        if value > INT64_MAX:
            raise ProblemError(name, f"exceeds int64, got {value}")
        object.__setattr__(problem, name, value)


def require_int64(field: str, what: str, value: int) -> None:
    """Refuse a product that no kernel could index."""
    if value > INT64_MAX:
        raise ProblemError(field, f"{what} is {value}, beyond int64")
