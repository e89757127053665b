"""The contract of a feature table.

A feature is described once: name, unit, meaning, role and formula. The matrix, the documentation and the schema hash
derive from that description, so rewording a meaning retires trained models. Formulas are pure, run over NumPy arrays
that broadcast, and read only an :class:`Inputs`. A row depends on that row alone: a table computed at once equals its
rows computed one by one, bit for bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Literal, Self, TypedDict, Unpack, get_args

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile
from tilewise.errors import ArtefactError, KernelError, ProblemError
from tilewise.kernels import BACKEND_COLUMN, Array, Backend, Pool, Traits, backend_of_columns
from tilewise.ops import OPS, OpDefinition

Role = Literal["problem", "kernel", "interaction", "hardware"]
ROLES: tuple[Role, ...] = get_args(Role)
Columns = Mapping[str, npt.ArrayLike]
Floats = npt.NDArray[np.float64]

# Goes up when a formula changes its values without a change of name, unit or meaning.
SCHEMA_VERSION = 4


class Conditions(TypedDict):
    """The circumstances that all rows of a matrix share.

    Attributes:
        variant: variant of the op.
        dtype: element type of the operands.
        arch: the hardware.
    """

    variant: str
    dtype: str
    arch: HardwareProfile


class Inputs:
    """The inputs of formulas. Ops extend it with properties for intermediate results, each computed once per table.

    Attributes:
        p: problem columns by name, int64 (or text) arrays of shape (rows,) or (1,).
        k: kernel columns by name, likewise, with the common columns of :class:`tilewise.kernels.Backend`.
        backend: the backend of the kernels, None without kernels.
        variant: variant of the op.
        dtype: element type of the operands.
        arch: the hardware.
        n_rows: rows that problem and kernel broadcast to.
    """

    n_rows: int

    def __init__(
        self, p: SimpleNamespace, k: SimpleNamespace, backend: Backend | None, **conditions: Unpack[Conditions]
    ) -> None:
        self.p, self.backend = p, backend
        self.k = k if backend is None else backend.common_columns(k)
        self.variant, self.dtype, self.arch = conditions["variant"], conditions["dtype"], conditions["arch"]

    @property
    def flops(self) -> Array:
        """The problem's floating-point operations."""
        raise NotImplementedError

    @property
    def program_class(self) -> npt.NDArray[np.int64]:
        """Number of the compiled program that serves the row: (rows,). Costs differ between programs by factors."""
        return np.zeros(self.n_rows, dtype=np.int64)

    @cached_property
    def traits(self) -> Traits:
        """The traits of the kernels."""
        if self.backend is None:
            raise KernelError("there are no kernels, so features of kernels cannot be computed; give kernel columns")
        return self.backend.traits(self.k)

    def column(self, name: str, otherwise: Array) -> Array:
        """Return a kernel column that only one backend has; `otherwise` for the kernels of another."""
        known = self.backend is not None and name in self.backend.column_kinds()
        return vars(self.k)[name] if known else otherwise

    def check_kernels(self) -> None:
        """Check the values of the kernel columns that formulas rely on.

        Raises:
            KernelError: a kernel has a value that no formula covers.
        """


@dataclass(frozen=True)
class Feature:
    """One column of the matrix.

    `role` names its inputs: the problem (and hardware), the kernel (and hardware), both, or the hardware alone.
    `compute` returns an array that broadcasts to (rows,). A feature `across_archs` is learnt only where targets of
    several archs are learnt together: within one arch it is a constant, or another feature with a constant added.
    """

    name: str
    unit: str
    meaning: str
    role: Role
    compute: Callable[[Any], Array]
    across_archs: bool = False


@dataclass(frozen=True)
class Term:
    """One column of the cost model: a cost in clocks, or a driver of the error that the sum of costs leaves.

    `compute` returns an array that broadcasts to (rows,).
    """

    name: str
    meaning: str
    compute: Callable[[Any], Array]


@dataclass(frozen=True)
class FeatureTable:
    """The features of one op, in the order of the matrix's columns; immutable, safe to share between threads.

    :class:`tilewise.features.CostModel` calibrates `costs` and `drivers`; a selection of features keeps both. Those of
    an op of the user's own derive from `definition`.

    Raises:
        ValueError: two features share a name, or a role is unknown.
    """

    op: str
    features: tuple[Feature, ...]
    inputs: type[Inputs]
    costs: tuple[Term, ...] = ()
    drivers: tuple[Term, ...] = ()
    definition: OpDefinition | None = None

    def __post_init__(self) -> None:
        names = [f.name for f in self.features]
        if len(set(names)) < len(names):
            raise ValueError(f"features of {self.op} must have distinct names, got {names}")
        for feature in self.features:
            if feature.role not in ROLES:
                raise ValueError(f"role must be one of {', '.join(ROLES)}, got {feature.role!r} for {feature.name}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The columns of the matrix, in order."""
        return tuple(f.name for f in self.features)

    @cached_property
    def across_archs(self) -> bool:
        """True if a feature reads the figures of :data:`tilewise.arch.LATER_FIGURES`."""
        return any(f.across_archs for f in self.features)

    def within_arch(self) -> Self:
        """Return the table without the features that only tell archs apart."""
        return replace(self, features=tuple(f for f in self.features if not f.across_archs))

    @cached_property
    def schema_hash(self) -> str:
        """SHA-256 of op, version, and each feature's name, unit and meaning, in order: a model relies on them."""
        described = [[f.name, f.unit, f.meaning] for f in self.features]
        return hashlib.sha256(json.dumps([self.op, SCHEMA_VERSION, described]).encode()).hexdigest()

    def select(self, names: Iterable[str]) -> Self:
        """Return the table of these features, in this order.

        Raises:
            ArtefactError: this op has no feature of some name.
        """
        known = {f.name: f for f in self.features}
        names = tuple(names)
        unknown = [n for n in names if n not in known]
        if unknown:
            raise ArtefactError(
                f"no feature of {self.op}: {', '.join(unknown)}; this library computes {', '.join(known)}"
            )
        return replace(self, features=tuple(known[n] for n in names))

    def of_role(self, *roles: Role) -> Self:
        """Return the table of the features with one of these roles, in this table's order."""
        return replace(self, features=tuple(f for f in self.features if f.role in roles))

    def matrix(self, problem: Columns, kernel: Columns, **conditions: Unpack[Conditions]) -> Floats:
        """Compute the features.

        Args:
            problem: every problem column of the op: arrays of one length, or single values. Other keys are ignored.
            kernel: the kernel columns of a backend, likewise; may be empty where no feature needs a kernel.
            **conditions: variant, dtype and arch.

        Returns:
            float64, (rows, len(names)): problem and kernel broadcast, so one problem with k kernels gives k rows.

        Raises:
            ProblemError: a problem column is missing, or not of integers.
            KernelError: a kernel column is missing or not of integers, a pipeline is unknown, or lengths do not fit.
        """
        return self.compute(self.rows_of(problem, kernel, **conditions))

    def rows_of(self, problem: Columns, kernel: Columns, **conditions: Unpack[Conditions]) -> Inputs:
        """Return the inputs of the formulas, for features and cost model alike; arguments and errors as for matrix."""
        p = _columns(problem, OPS[self.op].column_kinds(), _problem_error)
        k, backend = SimpleNamespace(), None
        if kernel:
            backend = backend_of_columns(kernel, np.atleast_1d(kernel.get(BACKEND_COLUMN, ())).tolist())
            k = _columns({**backend.later_columns, **kernel}, backend.column_kinds(), _kernel_error)
        lengths = {len(column) for column in (*vars(p).values(), *vars(k).values())} - {1}
        if len(lengths) > 1:
            raise KernelError(f"problem and kernel columns must have one length (or be single), got {sorted(lengths)}")
        inputs = self.inputs(p, k, backend, **conditions)
        inputs.n_rows = next(iter(lengths), 1)
        if kernel:
            inputs.check_kernels()
        return inputs

    def rows_of_pool(self, problem: SimpleNamespace, pool: Pool, arch: HardwareProfile) -> Inputs:
        """Return the inputs for a pool's kernels and one problem whose columns are symbols; see :mod:`tilewise.core`.

        Raises:
            KernelError: a pipeline is unknown.
        """
        k = _columns(pool.columns, pool.backend.column_kinds(), _kernel_error)
        inputs = self.inputs(problem, k, pool.backend, variant=pool.variant, dtype=pool.dtype, arch=arch)
        inputs.n_rows = len(pool)
        inputs.check_kernels()
        return inputs

    def compute(self, rows: Inputs) -> Floats:
        """Compute the features of :meth:`rows_of`: float64, (rows, len(names))."""
        return stack(self.features, rows)

    def of_pool(self, pool: Pool, arch: HardwareProfile) -> Floats:
        """Compute a pool's features, which must all have the role "kernel": float64, (len(pool), len(names))."""
        a_problem = dict.fromkeys(OPS[self.op].column_names(), 1)
        return self.matrix(a_problem, pool.columns, variant=pool.variant, dtype=pool.dtype, arch=arch)

    def check_distinct(self, pool: Pool, arch: HardwareProfile) -> None:
        """Check that features distinguish all kernels of a pool.

        Raises:
            KernelError: two kernels of the pool share all features of role "kernel"; names both.
        """
        rows = self.of_role("kernel").of_pool(pool, arch)
        first: dict[bytes, str] = {}
        for row, name in zip(rows, pool.names, strict=True):
            other = first.setdefault(row.tobytes(), name)
            if other != name:
                raise KernelError(f"{other} and {name} share all kernel features; add a feature that tells them apart")

    def markdown(self) -> str:
        """Return the features as a table for documentation."""
        lines = ["| feature | unit | role | meaning |", "| --- | --- | --- | --- |"]
        lines += [f"| `{f.name}` | {f.unit} | {f.role} | {f.meaning} |" for f in self.features]
        return "\n".join(lines) + "\n"


def stack(columns: Iterable[Feature | Term], rows: Inputs) -> Floats:
    """Compute columns side by side: float64, (rows, len(columns))."""
    columns = tuple(columns)
    matrix = np.empty((rows.n_rows, len(columns)))
    for i, column in enumerate(columns):
        matrix[:, i] = column.compute(rows)
    return matrix


def _columns(values: Columns, kinds: Mapping[str, str], error: Callable[[str, str], Exception]) -> SimpleNamespace:
    return SimpleNamespace(**{name: _column(values, name, kind == "str", error) for name, kind in kinds.items()})


def _column(values: Columns, name: str, text: bool, error: Callable[[str, str], Exception]) -> npt.NDArray[Any]:
    try:
        column = np.atleast_1d(np.asarray(values[name]))
    except KeyError:
        raise error(name, "the column is missing") from None
    if column.ndim > 1:
        raise error(name, f"columns have one axis, got {column.ndim}")
    if text:
        return column
    if column.dtype == object:  # nullable integer columns of pandas
        column = np.array(column.tolist())
    try:
        return column.astype(np.int64, casting="same_kind", copy=False)
    except TypeError as e:
        raise error(name, f"must be integers, got {column.dtype}") from e


def _problem_error(name: str, message: str) -> Exception:
    return ProblemError(name, message)


def _kernel_error(name: str, message: str) -> Exception:
    return KernelError(f"{name}: {message}")
