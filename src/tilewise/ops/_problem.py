"""Contract of every op's problem type.

Each formula is written once, as a module function over any object that has the dimensions as attributes: a problem,
whose attributes are ints, or a :class:`types.SimpleNamespace` of int64 arrays for the rows of a table. The formulas use
integer arithmetic with ``//`` only, so both give the same numbers.
"""

from __future__ import annotations

import dataclasses
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tilewise.errors import ProblemError

INT64_MAX = 2**63 - 1

Size: TypeAlias = Any  # an int of one problem, or an int64 array of shape (rows,); no common type has their arithmetic
Dimensions: TypeAlias = Any  # a problem, or a types.SimpleNamespace of arrays with the same attributes


class GemmDims(NamedTuple):
    """Sizes of the (implicit) matrix product of a problem: `batch` independent products of ``m x k`` by ``k x n``."""

    m: Size
    n: Size
    k: Size
    batch: Size


@dataclasses.dataclass(frozen=True)
class Problem(ABC):
    """Base of all problems: the dimensions of one op, frozen, hashable and validated on construction.

    Subclasses are frozen dataclasses. Their fields are the problem columns of the measurement table, in the same order.

    Attributes:
        layouts: the values of the text column `layout`, its default first; empty for an op without one.
        later_columns: columns that tables of earlier versions lack. Reading adds them with their default.
    """

    op: ClassVar[str]
    variants: ClassVar[tuple[str, ...]]
    layouts: ClassVar[tuple[str, ...]] = ()
    later_columns: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Keep the cached hash and comparison; a dataclass would generate methods that visit all fields per call."""
        super().__init_subclass__(**kwargs)
        cls.__hash__ = Problem.__hash__  # type: ignore[method-assign]
        cls.__eq__ = Problem.__eq__  # type: ignore[method-assign]

    def __eq__(self, other: object) -> bool:
        """Compare the op and all dimensions."""
        return other.__class__ is self.__class__ and self.values() == other.values()

    def __hash__(self) -> int:
        """Return the hash, computed once: a problem is looked up far more often than it is created."""
        known: int | None = self.__dict__.get("_hash")
        if known is None:
            known = self.__dict__["_hash"] = hash(self.values())
        return known

    def values(self) -> tuple[int | str, ...]:
        """Return all dimensions in the order of the columns."""
        known: tuple[int | str, ...] | None = self.__dict__.get("_values")
        if known is None:
            known = self.__dict__["_values"] = _values(type(self))(self)
        return known

    def __getstate__(self) -> dict[str, int | str]:
        """Return the fields without the cached hash: another process hashes strings differently."""
        return self.to_dict()

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Return the names of the problem columns in the order of the fields."""
        return _columns(cls)

    @classmethod
    def column_kinds(cls) -> dict[str, Literal["int", "str"]]:
        """Return the kind of each problem column by name, in order."""
        return {f.name: "str" if f.type in (str, "str") else "int" for f in dataclasses.fields(cls)}

    @classmethod
    def defaults(cls) -> dict[str, int | str]:
        """Return the defaults of the optional dimensions, by name."""
        return {n: v for n, v in _defaults(cls).items() if isinstance(v, int | str)}

    @abstractmethod
    def __post_init__(self) -> None:
        """Check the dimensions and convert NumPy integers to ints.

        Raises:
            ProblemError: a dimension is impossible; `.field` names it.
        """

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a problem from a mapping; absent optional dimensions take their defaults.

        Raises:
            ProblemError: `values` is no mapping, or a dimension is unknown, missing or impossible; `.field` names it.
        """
        stated: object = values
        if type(stated) is not dict and not isinstance(stated, Mapping):
            kind = type(stated).__name__
            raise ProblemError(
                "problem", f"must be a {cls.__name__} or a mapping of dimensions such as {{'N': 8}}, got {kind}"
            )
        known, needed = _names(cls)
        if not known.issuperset(values):
            name = next(name for name in values if name not in known)
            raise ProblemError(str(name), f"not a dimension of {cls.op}; known are {', '.join(cls.column_names())}")
        if not values.keys() >= needed:
            name = next(name for name in cls.column_names() if name in needed and name not in values)
            raise ProblemError(name, f"missing; {cls.op} needs it")
        problem = object.__new__(cls)  # a frozen dataclass's constructor takes five times as long
        problem.__dict__.update(_defaults(cls), **values)
        problem.__post_init__()
        return problem

    def to_dict(self) -> dict[str, Any]:
        """Return the problem columns as a dict."""
        return {name: getattr(self, name) for name in self.column_names()}  # asdict would take ten times as long

    def stated(self) -> dict[str, Any]:
        """Return :meth:`to_dict` without later columns that have their default: the form of stored problems.

        Files, keys and digests of problems stay as they were before the op had these columns.
        """
        values = self.to_dict()
        for name in self.later_columns:
            if values[name] == _defaults(type(self))[name]:
                del values[name]
        return values

    @classmethod
    def in_words(cls, values: Mapping[str, Any]) -> str:
        """Format problem columns, e.g. ``M=16 N=1536 K=7168``; leave out those that have their default."""
        defaults = {f.name: f.default for f in dataclasses.fields(cls)}
        return " ".join(f"{name}={value}" for name, value in values.items() if value != defaults[name])

    @property
    @abstractmethod
    def group_key(self) -> tuple[int, ...]:
        """Dimensions that identify a shape: rows with equal keys always lie in the same fold."""

    @classmethod
    def layer_keys(cls, group_keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the dimensions that identify a layer of a network, of shape (rows, fewer or equally many dimensions).

        Args:
            group_keys: of shape (rows, dimensions).
        """
        return group_keys

    @property
    @abstractmethod
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""

    @abstractmethod
    def min_bytes(self, dtype: str) -> int:
        """Return the fewest bytes to move: each input read once, the output written once."""

    @abstractmethod
    def implicit_gemm(self, variant: str) -> GemmDims:
        """Return the sizes of the matrix product that a kernel of `variant` computes."""


@cache
def _columns(kind: type[Problem]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


@cache
def _defaults(kind: type[Problem]) -> dict[str, object]:
    """Return the default of each dimension in column order, or ``dataclasses.MISSING``, which the caller overwrites."""
    return {f.name: f.default for f in dataclasses.fields(kind)}


@cache
def _values(kind: type[Problem]) -> Callable[[Problem], tuple[int | str, ...]]:
    """Return a function that reads all dimensions of a problem at once."""
    names = _columns(kind)
    if len(names) == 1:  # attrgetter would return the bare value
        return lambda problem: (getattr(problem, names[0]),)
    read: Callable[[Problem], tuple[int | str, ...]] = operator.attrgetter(*names)
    return read


@cache
def _names(kind: type[Problem]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of all dimensions of an op, and of those without a default."""
    fields = dataclasses.fields(kind)
    needed = frozenset(f.name for f in fields if f.default is dataclasses.MISSING)
    return frozenset(f.name for f in fields), needed


def require_int(problem: Problem, names: tuple[str, ...], *, at_least: int) -> None:
    """Check that fields are integers of at least `at_least`, and convert NumPy integers to ints.

    Raises:
        ProblemError: a field is not an integer, too small or beyond int64.
    """
    fields = problem.__dict__
    for name in names:
        value = fields[name]
        if type(value) is int and at_least <= value <= INT64_MAX:
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ProblemError(name, f"must be an integer, got {value!r}")
        value = _integer(name, value)
        if value < at_least:
            raise ProblemError(name, f"must be at least {at_least}, got {value}")
        if value > INT64_MAX:
            raise ProblemError(name, f"exceeds int64, got {value}")
        object.__setattr__(problem, name, value)


def _integer(field: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:  # an array or tensor of several elements
        raise ProblemError(field, f"must be one integer, got {type(value).__name__} {value!r:.60}") from None


def require_layout(layout: object, layouts: tuple[str, ...]) -> None:
    """Check that a layout is one of the op's.

    Raises:
        ProblemError: it is not; `.field` is ``layout``.
    """
    if not isinstance(layout, str) or layout not in layouts:
        raise ProblemError("layout", f"must be one of {', '.join(layouts)}, got {layout!r}")


def require_int64(field: str, quantity: str, value: int) -> None:
    """Check that a product of dimensions fits in int64, the widest index of a kernel.

    Raises:
        ProblemError: it does not; `.field` is `field`.
    """
    if value > INT64_MAX:
        raise ProblemError(field, f"{quantity} is {value}, beyond int64")
