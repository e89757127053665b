"""The mixture of several backends, which is a backend itself: each part answers for its own rows.

A part sees its own columns alone. In the rows of other parts it sees the values of one of its own rows, so that no rule
or formula meets a fill value; those rows of its answer are then ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels._contract import BACKEND_COLUMN, Backend, KernelBase, ParsedName, Rules
from tilewise.kernels._epilogue import EpilogueKind
from tilewise.kernels._formulas import Array, FeatureInputs, Formula, Formulas, Traits, unchanged
from tilewise.ops import Problem, Target

SEPARATOR = "+"  # between the names of a mixture's parts

Mask = npt.NDArray[np.bool_]


class _Numbers(Mapping[str, int]):
    """The numbers of all parts' pipelines; the first part that knows a pipeline answers."""

    def __init__(self, parts: tuple[Mapping[str, int], ...]) -> None:
        self._parts = parts

    def __getitem__(self, pipeline: str) -> int:
        for numbers in self._parts:
            if pipeline in numbers:
                return numbers[pipeline]
        raise KeyError(pipeline)

    def __iter__(self) -> Iterator[str]:
        for numbers in self._parts:
            yield from numbers

    def __len__(self) -> int:
        return sum(map(len, self._parts))


@dataclass(frozen=True)
class _Mixture:
    """The answers of a mixture, each by the part that a kernel or row belongs to."""

    parts: tuple[Backend, ...]

    @property
    def label(self) -> str:
        return " and ".join(part.label for part in self.parts)

    @property
    def dtypes(self) -> dict[str, tuple[str, ...]]:
        ops = dict.fromkeys(op for part in self.parts for op in part.dtypes)
        return {op: tuple(dict.fromkeys(d for p in self.parts for d in p.dtypes.get(op, ()))) for op in ops}

    def illegal(self, kernel: KernelBase, target: Target, arch: HardwareProfile) -> str | None:
        return self._part_of(kernel).illegal(kernel, target, arch)

    def leaves(self, kernel: KernelBase, problem: Problem, target: Target, kind: EpilogueKind) -> EpilogueKind:
        return self._part_of(kernel).leaves(kernel, problem, target, kind)

    def store_factor(self, kernel: KernelBase) -> float:
        return self._part_of(kernel).store_factor(kernel)

    def is_one_launch(self, kernel: KernelBase, problem: Problem, variant: str) -> bool:
        return self._part_of(kernel).is_one_launch(kernel, problem, variant)

    def checks(self, columns: Any, problem: Problem, variant: str, dtype: str) -> Rules:
        if isinstance(columns, KernelBase):
            yield from self._part_of(columns).checks(columns, problem, variant, dtype)
            return
        for part, own, mask in self._split(columns):
            for broken, reason in part.checks(own, problem, variant, dtype):
                yield mask & broken, reason

    def common_columns(self, columns: SimpleNamespace) -> SimpleNamespace:
        common = dict(vars(columns))
        for part, own, mask in self._split(columns):
            for name, values in vars(part.common_columns(own)).items():
                common[name] = np.where(mask, values, common[name]) if name in common else np.asarray(values)
        return SimpleNamespace(**common)

    def traits(self, columns: SimpleNamespace) -> Traits:
        found = Traits.plain(columns)
        for part, own, mask in self._split(columns, common=True):
            own_traits = part.traits(own)
            names = (f.name for f in fields(Traits))
            found = Traits(**{n: np.where(mask, getattr(own_traits, n), getattr(found, n)) for n in names})
        return found

    def pipelines(self, op: str) -> Mapping[str, int]:
        return _Numbers(tuple(part.pipelines(op) for part in self.parts))

    def formulas(self) -> tuple[Formulas, ...]:
        return tuple(_limited(part, formulas) for part in self.parts for formulas in part.formulas())

    def parse_name(self, name: str) -> ParsedName:
        for part in self.parts:
            if part.parse_name is not None:
                return part.parse_name(name)
        raise KernelError(f"{name[:200]!r} is no name of a kernel of {self.label}")

    def _part_of(self, kernel: KernelBase) -> Backend:
        return next(part for part in self.parts if type(kernel) is part.kernel)

    def _split(self, columns: SimpleNamespace, common: bool = False) -> Iterator[tuple[Backend, SimpleNamespace, Mask]]:
        """Yield each part that has rows, its view of the columns, and the mask of its rows: (rows,).

        Args:
            columns: the kernel columns of the mixture.
            common: whether a part sees the common columns too, and not only its own.
        """
        for part in self.parts:
            mask = np.asarray(getattr(columns, BACKEND_COLUMN)) == part.name
            if not mask.any():
                continue
            first = int(np.argmax(mask))
            names = vars(columns) if common else part.kernel.column_names()
            yield part, SimpleNamespace(**{n: _own(getattr(columns, n), mask, first) for n in names}), mask


def mixture(parts: tuple[Backend, ...]) -> Backend:
    """Return the backend of pools and tables with kernels of all `parts`, which are at least two.

    Raises:
        KernelError: two parts have a column of the same name and different kinds.
    """
    _check_kinds(parts)
    mixed = _Mixture(parts)
    return Backend(
        name=SEPARATOR.join(part.name for part in parts),
        label=mixed.label,
        kernel=KernelBase,  # type: ignore[type-abstract]
        illegal=mixed.illegal,
        checks=mixed.checks,
        dtypes=mixed.dtypes,
        pipelines=mixed.pipelines,
        parse_name=mixed.parse_name if any(part.parse_name for part in parts) else None,
        common_columns=mixed.common_columns,
        traits=mixed.traits,
        formulas=mixed.formulas,
        leaves=mixed.leaves,
        store_factor=mixed.store_factor,
        is_one_launch=mixed.is_one_launch,
        compiled_here=all(part.compiled_here for part in parts),
        timed_in_background=all(part.timed_in_background for part in parts),
        lists_fastest=any(part.lists_fastest for part in parts),
        tagged=True,
        parts=parts,
    )


def _check_kinds(parts: tuple[Backend, ...]) -> None:
    kinds: dict[str, str] = {}
    for part in parts:
        for name, kind in part.kernel.column_kinds().items():
            if kinds.setdefault(name, kind) != kind:
                raise KernelError(f"the kernel column {name} is {kind} in {part.name}, and {kinds[name]} elsewhere")


def _own(column: npt.NDArray[Any], mask: Mask, first: int) -> npt.NDArray[Any]:
    return np.where(mask, column, column[first])


def _limited(part: Backend, formulas: Formulas) -> Formulas:
    """Return a part's formulas, limited to its own rows."""

    def limited(formula: Formula) -> Formula:
        if formula is unchanged:
            return unchanged

        def of_own_rows(inputs: FeatureInputs, value: Array) -> Array:
            return np.where(getattr(inputs.k, BACKEND_COLUMN) == part.name, formula(inputs, value), value)

        return of_own_rows

    changed: dict[str, Any] = {f.name: limited(getattr(formulas, f.name)) for f in fields(Formulas) if f.name != "name"}
    return replace(formulas, **changed)
