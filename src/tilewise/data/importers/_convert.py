"""Conversion of records to rows of the measurement table: names are parsed, problems checked, rates recomputed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tilewise.data._columns import PROVENANCE, TARGET_COLUMNS, measurement_columns
from tilewise.data.importers._kernel_lookup import KernelColumn, KernelLookup
from tilewise.data.importers._problem_lookup import ProblemFacts, ProblemLookup
from tilewise.data.importers._reader import EMPTY, Coded, Floats, Ints, Loss, Records
from tilewise.kernels import backend_of_target
from tilewise.ops import OPS, Target

# Stated TFLOPS beyond these tolerances belong to another problem or latency.
TFLOPS_TOLERANCE = 0.02  # relative
TFLOPS_STEP = 0.006  # rounding to two decimals
LATENCY_STEP_MS = 0.0006  # rounding to three decimals

# Words are codes in memory; on disk they are plain strings.
ARROW = {"str": pa.dictionary(pa.int32(), pa.string()), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


@dataclass(frozen=True)
class _Masked:
    """A column with empty cells where `is_present` is false."""

    values: Floats | Coded
    is_present: npt.NDArray[np.bool_]


_Column: TypeAlias = "KernelColumn | _Masked"


@dataclass(frozen=True)
class _Looked:
    """Records with everything looked up about them; arrays of shape (rows,).

    Attributes:
        records: the records.
        kernel: number of each row's kernel.
        problem: facts about each row's problem.
        columns: problem columns as integers; a layout is an index into the op's layouts, -1 for an unknown one.
    """

    records: Records
    kernel: Ints
    problem: ProblemFacts
    columns: Mapping[str, Ints]


class Converter:
    """Converter of records to measurement rows of one target.

    Attributes:
        target: the target of the rows.
        schema: schema of the tables.
        provenance: values of the columns `run_id` and `origin`.
        others: targets of other kernels in the file, as ``op variant dtype``.

    Args:
        target: the target of the rows.
        run_id: value of the column of this name.
        origin: value of the column of this name.
        hardware: values of further provenance columns; the other columns stay empty.
    """

    def __init__(
        self, target: Target, run_id: str, origin: str, hardware: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.target = target
        self._layout_names = OPS[target.op].layouts
        self._columns = measurement_columns(target.op, backend_of_target(target).name)
        self.provenance = {"run_id": run_id, "origin": origin}
        of_target = {c.name: str(getattr(target, c.name)) for c in TARGET_COLUMNS}
        self._constants = {**of_target, **self.provenance, **hardware}
        self.schema = pa.schema([pa.field(c.name, ARROW[c.kind], c.nullable) for c in self._columns])
        self.others: set[str] = set()
        self._kernels = KernelLookup(target, self.others)
        self._problems = ProblemLookup(target)

    def __call__(self, records: Records) -> tuple[pa.Table, list[Loss]]:
        """Return the rows, and the records that could not become one."""
        kernel = self._kernels.look_up(records.kernel)
        columns = self._problem_columns(records, kernel)
        looked = _Looked(records, kernel, self._problems.look_up(columns), columns)
        faults = self._faults(looked)
        losses = [Loss(int(records.line[i]), text, records.text(i)) for i, text in faults.items()]
        keep = np.ones(len(records), dtype=bool)
        keep[list(faults)] = False
        return self._table(looked, np.flatnonzero(keep)), losses

    def _problem_columns(self, records: Records, kernel: Ints) -> dict[str, Ints]:
        """Return all problem columns as integers; a layout is an index into the op's layouts, -1 for an unknown one."""
        found: dict[str, Ints] = {}
        for field in dataclasses.fields(OPS[self.target.op]):
            stated = records.problem.get(field.name)
            if field.name == "layout":
                found[field.name] = self._layouts(stated, kernel)
            elif stated is None:
                default = EMPTY if field.default is dataclasses.MISSING else field.default
                found[field.name] = np.full(len(records), default, dtype=np.int64)
            else:
                assert not isinstance(stated, Coded)
                found[field.name] = stated
        return found

    def _layouts(self, stated: Ints | Coded | None, kernel: Ints) -> Ints:
        if isinstance(stated, Coded):
            place = {name: i for i, name in enumerate(self._layout_names)}
            return np.array([place.get(w, -1) for w in stated.words], dtype=np.int64)[stated.codes]
        named = self._kernels.layouts
        return np.zeros(len(kernel), dtype=np.int64) if named is None else named[kernel]

    def _faults(self, looked: _Looked) -> dict[int, str]:
        """Return the first reason why a record cannot become a row, by the record's index."""
        faults: dict[int, str] = {}
        kernel = looked.kernel
        is_faulty = np.array([bool(f) for f in self._kernels.faults])[kernel]
        faults |= {i: self._kernels.faults[kernel[i]] for i in np.flatnonzero(is_faulty).tolist()}
        faults = looked.problem.faults | faults | dict(looked.records.faults)
        columns = looked.columns
        if self.target.op == "grouped_conv" and self._kernels.ndim is not None:
            ndim = self._kernels.ndim[kernel]
            has_depth = (columns["Di"] > 1) | (columns["Z"] > 1)
            has_height = has_depth | (columns["Hi"] > 1) | (columns["Y"] > 1)
            for broken, fault in (
                ((ndim == 2) & has_depth, "a 2d kernel cannot have run a 3D problem (Di or Z above 1)"),
                ((ndim == 3) & ~has_depth, "a 3d kernel cannot have run a 2D problem (Di and Z are 1)"),
                ((ndim == 1) & has_height, "a 1d kernel cannot have run a problem of more dimensions"),
            ):
                for i in np.flatnonzero(broken).tolist():
                    faults.setdefault(i, fault)
        if self._kernels.layouts is not None and "layout" in columns:
            named = self._kernels.layouts[kernel]
            for i in np.flatnonzero(named != columns["layout"]).tolist():
                faults.setdefault(i, f"the layout must be the kernel's, {self._layout_names[named[i]]}")
        for i, fault in _rate_faults(looked.records, looked.problem).items():
            faults.setdefault(i, fault)
        return faults

    def _table(self, looked: _Looked, rows: Ints) -> pa.Table:
        """Return the table of the records with these indices."""
        latency = looked.records.latency_ms[rows]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            tflops = looked.problem.flops[rows] / latency / 1e9
            bandwidth = looked.problem.bytes[rows] / latency / 1e6
        status, error = _outcomes(looked.records, rows, latency, tflops, bandwidth)
        ok = status.codes == 0
        found: dict[str, _Column] = {name: v[rows] for name, v in looked.columns.items() if name != "layout"}
        if "layout" in looked.columns:
            found["layout"] = Coded(looked.columns["layout"][rows].astype(np.int32), self._layout_names)
        found |= {"latency_ms": _Masked(latency, ok), "tflops": _Masked(tflops, ok)}
        found |= {"bandwidth_gb_s": _Masked(bandwidth, ok), "status": status, "is_valid": ok}
        found["error"] = _Masked(error, error.codes > 0)
        found |= self._kernels.columns(looked.kernel[rows])
        unknown = {c.name for c in PROVENANCE} - set(self._constants)
        arrays = []
        for column in self._columns:
            if column.name in self._constants:
                arrays.append(_repeated(self._constants[column.name], len(rows)))
            elif column.name in unknown:
                arrays.append(pa.nulls(len(rows), ARROW[column.kind]))
            else:
                arrays.append(_array(found[column.name]))
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _rate_faults(records: Records, problem: ProblemFacts) -> dict[int, str]:
    """Return a fault for each record whose stated TFLOPS do not follow from its latency and problem, by index."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        expected = problem.flops / records.latency_ms / 1e9
        slack = (TFLOPS_TOLERANCE + LATENCY_STEP_MS / records.latency_ms) * expected + TFLOPS_STEP
        is_off = (records.latency_ms > 0) & (records.tflops > 0) & (np.abs(records.tflops - expected) > slack)
    return {
        i: f"tflops {records.tflops[i]:.6g} does not follow from latency_ms and the problem: expected {expected[i]:.6g}"
        for i in np.flatnonzero(is_off).tolist()
        if i not in records.outcomes
    }


def _outcomes(records: Records, rows: Ints, latency: Floats, tflops: Floats, bandwidth: Floats) -> tuple[Coded, Coded]:
    """Return status and error of each row; code 0 of either is a row without fault."""
    stated = records.tflops[rows]
    has_outcome = np.zeros(len(records), dtype=bool)
    has_outcome[list(records.outcomes)] = True
    with np.errstate(invalid="ignore"):
        good = (latency > 0) & np.isfinite(latency) & (np.isnan(stated) | ((stated > 0) & np.isfinite(stated)))
        good &= np.isfinite(tflops) & (tflops > 0) & np.isfinite(bandwidth) & (bandwidth > 0)
    statuses, errors = {"ok": 0}, {"": 0}
    status = np.zeros(len(rows), dtype=np.int32)
    error = np.zeros(len(rows), dtype=np.int32)
    for i in np.flatnonzero(has_outcome[rows] | ~good).tolist():
        kind, reason = records.outcomes.get(int(rows[i])) or _failure(latency[i], stated[i])
        status[i] = statuses.setdefault(kind, len(statuses))
        error[i] = errors.setdefault(reason, len(errors))
    return Coded(status, tuple(statuses)), Coded(error, tuple(errors))


def _failure(latency: float, tflops: float) -> tuple[str, str]:
    if np.isnan(latency):
        return "runtime_error", "the file has no latency"
    if not (latency > 0 and np.isfinite(latency)):
        return "runtime_error", f"the latency is {latency:g} ms"
    if not (tflops > 0 and np.isfinite(tflops)):
        return "runtime_error", f"the file says {tflops:g} TFLOPS"
    return "runtime_error", f"a latency of {latency:g} ms is impossible"


def _array(column: _Column) -> pa.Array:
    mask = None
    values: KernelColumn | Floats
    if isinstance(column, _Masked):
        values, mask = column.values, ~column.is_present
    else:
        values = column
    if isinstance(values, Coded):
        return pa.DictionaryArray.from_arrays(pa.array(values.codes, mask=mask), pa.array(values.words, pa.string()))
    return pa.array(values, mask=mask)


def _repeated(word: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), pa.array([word], pa.string()))
