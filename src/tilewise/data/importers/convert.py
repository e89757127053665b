"""Records -> rows of the measurement table: names parsed, problems checked, figures recomputed from the latency.

Everything that repeats (a kernel's name, a problem) is looked at once; rows are arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tilewise.arch import known_archs, load_arch
from tilewise.data.columns import PROVENANCE, TARGET, measurement_columns
from tilewise.data.importers._base import EMPTY, Coded, Floats, Ints, Loss, Records
from tilewise.errors import DataError, KernelError, ProblemError
from tilewise.kernels.backends import KernelBase, backend_of_target
from tilewise.kernels.ck.kernel import CkKernel, parse_name
from tilewise.ops import OPS, Target
from tilewise.ops.gemm import LAYOUTS

FOLLOWS = 0.02  # relative; stated TFLOPS that are further off belong to another problem or latency ...
STATED_STEP = 0.006  # ... than rounding to two decimals explains,
LATENCY_STEP_MS = 0.0006  # and that of the latency to three
_MAX_PROBLEMS = 1 << 16  # kept in memory, about a kilobyte each
_MAX_KERNELS = 1 << 16

# Words are codes in memory; on disk they are plain strings.
ARROW = {"str": pa.dictionary(pa.int32(), pa.string()), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


@dataclass(frozen=True)
class ParsedName:
    """A kernel's name taken apart: what it says of the target, and the kernel."""

    op: str
    variant: str
    dtype: str
    kernel: KernelBase

    @property
    def canonical(self) -> str:
        """The name that the table gets."""
        return self.kernel.name(self.op, self.variant, self.dtype)


def parse_kernel(name: str, target: Target) -> ParsedName:
    """Take a kernel's name apart, as the backend of the target's arch writes it.

    Raises:
        KernelError: it is no such name.
    """
    backend = backend_of_target(target)
    if backend.kernel is CkKernel:
        parsed = parse_name(name)
        return ParsedName(parsed.op, parsed.variant, parsed.dtype, parsed.kernel)
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    if not name.startswith(prefix):
        raise KernelError(f"{name[:200]!r} is no {backend.name} kernel of {prefix[:-1]}")
    return ParsedName(target.op, target.variant, target.dtype, backend.kernel.from_config(name.removeprefix(prefix)))


class Converter:
    """Makes measurement rows of records.

    Attributes:
        schema: of the tables it makes.
        provenance: the columns that say where rows come from.
        others: what the file holds beside the target's kernels, as ``op variant dtype``.

    Args:
        target: what the rows are to be of.
        run_id: see the measurement columns.
        origin: likewise.
    """

    def __init__(self, target: Target, run_id: str, origin: str) -> None:
        self._target = target
        self._of = backend_of_target(target)
        self._columns = measurement_columns(target.op, self._of.name)
        self.provenance = {"run_id": run_id, "origin": origin}
        self._constants = {**{c.name: getattr(target, c.name) for c in TARGET}, **self.provenance}
        self.schema = pa.schema([pa.field(c.name, ARROW[c.kind], c.nullable) for c in self._columns])
        self.others: set[str] = set()
        self._kernels = _Kernels(target, self.others)
        self._problems = _Problems(target)

    def __call__(self, records: Records) -> tuple[pa.Table, list[Loss]]:
        """Rows, and what of the records could not become one."""
        kernel = self._kernels.look_up(records.kernel)
        columns = self._problem_columns(records, kernel)
        problem = self._problems.look_up(columns)
        faults = self._faults(records, kernel, problem, columns)
        losses = [Loss(int(records.line[i]), text, records.text(i)) for i, text in faults.items()]
        keep = np.ones(len(records), dtype=bool)
        keep[list(faults)] = False
        rows = np.flatnonzero(keep)
        return self._table(records, kernel, problem, columns, rows), losses

    def _problem_columns(self, records: Records, kernel: Ints) -> dict[str, Ints]:
        """All problem columns as integers; a layout is an index into LAYOUTS, -1 where it is none."""
        made: dict[str, Ints] = {}
        for field in dataclasses.fields(OPS[self._target.op]):
            stated = records.problem.get(field.name)
            if field.name == "layout":
                made[field.name] = self._layouts(stated, kernel)
            elif stated is None:
                default = EMPTY if field.default is dataclasses.MISSING else field.default
                made[field.name] = np.full(len(records), default, dtype=np.int64)
            else:
                assert not isinstance(stated, Coded)
                made[field.name] = stated
        return made

    def _layouts(self, stated: Ints | Coded | None, kernel: Ints) -> Ints:
        if isinstance(stated, Coded):
            place = {name: i for i, name in enumerate(LAYOUTS)}
            return np.array([place.get(w, -1) for w in stated.words], dtype=np.int64)[stated.codes]
        named = self._kernels.layouts
        if named is None:  # this backend's names do not tell
            return np.zeros(len(kernel), dtype=np.int64)
        return named[kernel]

    def _faults(self, records: Records, kernel: Ints, problem: _Facts, columns: Mapping[str, Ints]) -> dict[int, str]:
        """Why a record cannot become a row, by its index; the first reason counts."""
        faults: dict[int, str] = {}
        bad = np.array([bool(f) for f in self._kernels.faults])[kernel]
        faults |= {i: self._kernels.faults[kernel[i]] for i in np.flatnonzero(bad).tolist()}
        faults = problem.faults | faults
        if self._target.op == "grouped_conv" and self._kernels.ndim is not None:
            ndim = self._kernels.ndim[kernel]
            for i in np.flatnonzero((ndim == 2) & ((columns["Di"] > 1) | (columns["Z"] > 1))).tolist():
                faults.setdefault(i, "a 2d kernel cannot have run a problem with depth (Di or Z above 1)")
        if self._kernels.layouts is not None and "layout" in columns:
            named = self._kernels.layouts[kernel]
            for i in np.flatnonzero(named != columns["layout"]).tolist():
                faults.setdefault(i, f"the layout is not that of the kernel, {LAYOUTS[named[i]]}")
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            expected = problem.flops / records.latency_ms / 1e9
            slack = (FOLLOWS + LATENCY_STEP_MS / records.latency_ms) * expected + STATED_STEP
            off = (records.latency_ms > 0) & (records.tflops > 0) & (np.abs(records.tflops - expected) > slack)
        for i in np.flatnonzero(off).tolist():
            if i not in records.outcomes:
                faults.setdefault(
                    i,
                    f"tflops {records.tflops[i]:.6g} does not follow from latency_ms and the problem: "
                    f"expected {expected[i]:.6g}",
                )
        return faults

    def _table(
        self, records: Records, kernel: Ints, problem: _Facts, columns: Mapping[str, Ints], rows: Ints
    ) -> pa.Table:
        kernel, latency = kernel[rows], records.latency_ms[rows]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            tflops = problem.flops[rows] / latency / 1e9
            bandwidth = problem.bytes[rows] / latency / 1e6
        status, error = self._outcomes(records, rows, latency, tflops, bandwidth)
        ok = status.codes == 0
        given: dict[str, Any] = {name: columns[name][rows] for name in columns if name != "layout"}
        if "layout" in columns:
            given["layout"] = Coded(columns["layout"][rows].astype(np.int32), LAYOUTS)
        given |= {name: _Masked(v, ok) for name, v in (("latency_ms", latency), ("tflops", tflops))}
        given |= {"bandwidth_gb_s": _Masked(bandwidth, ok), "status": status, "is_valid": ok}
        given["error"] = _Masked(error, error.codes > 0)
        given |= self._kernels.columns(kernel)
        nothing = {c.name for c in PROVENANCE} - set(self._constants)
        arrays = []
        for column in self._columns:
            if column.name in self._constants:
                arrays.append(_repeated(self._constants[column.name], len(rows)))
            elif column.name in nothing:
                arrays.append(pa.nulls(len(rows), ARROW[column.kind]))
            else:
                arrays.append(_array(given[column.name]))
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _outcomes(
        self, records: Records, rows: Ints, latency: Floats, tflops: Floats, bandwidth: Floats
    ) -> tuple[Coded, Coded]:
        """Status and error of the rows; the first word of either is that of a row without fault."""
        stated = records.tflops[rows]
        told = np.zeros(len(records), dtype=bool)
        told[list(records.outcomes)] = True
        with np.errstate(invalid="ignore"):
            good = (latency > 0) & np.isfinite(latency) & (np.isnan(stated) | ((stated > 0) & np.isfinite(stated)))
            good &= np.isfinite(tflops) & (tflops > 0) & np.isfinite(bandwidth) & (bandwidth > 0)
        statuses, errors = {"ok": 0}, {"": 0}
        status = np.zeros(len(rows), dtype=np.int32)
        error = np.zeros(len(rows), dtype=np.int32)
        for i in np.flatnonzero(told[rows] | ~good).tolist():
            kind, why = records.outcomes.get(int(rows[i])) or _failure(latency[i], stated[i])
            status[i] = statuses.setdefault(kind, len(statuses))
            error[i] = errors.setdefault(why, len(errors))
        return Coded(status, tuple(statuses)), Coded(error, tuple(errors))


def _failure(latency: float, tflops: float) -> tuple[str, str]:
    if np.isnan(latency):
        return "runtime_error", "the file has no latency"
    if not (latency > 0 and np.isfinite(latency)):
        return "runtime_error", f"the latency is {latency:g} ms"
    if not (tflops > 0 and np.isfinite(tflops)):
        return "runtime_error", f"the file says {tflops:g} TFLOPS"
    return "runtime_error", f"a latency of {latency:g} ms is impossible"


class _Kernels:
    """The kernels seen so far, numbered; look-ups by name."""

    def __init__(self, target: Target, others: set[str]) -> None:
        self._target = target
        self._others = others
        self._place: dict[str, int] = {}
        self._names: list[str] = []
        self._parsed: list[KernelBase] = []
        self.faults: list[str] = []
        self._blank = self._example()

    def _example(self) -> KernelBase:
        """Stands where a name did not parse, so that columns have a value; its rows are lost anyway."""
        kind = backend_of_target(self._target).kernel
        blank: dict[str, Any] = {"int": 0, "str": "", "bool": False}
        return kind.from_dict({name: blank[k] for name, k in kind.column_kinds().items()})

    def look_up(self, names: Coded) -> Ints:
        """(rows,) the number of each row's kernel."""
        places = [self._place[w] if w in self._place else self._add(w) for w in names.words]
        return np.array(places, dtype=np.int64)[names.codes]

    def _add(self, name: str) -> int:
        kernel, canonical, fault = self._blank, "", ""
        try:
            parsed = parse_kernel(name, self._target) if name else None
            if parsed is None:
                fault = "the kernel's name is empty"
            elif (parsed.op, parsed.variant, parsed.dtype) != (
                self._target.op,
                self._target.variant,
                self._target.dtype,
            ):
                what = f"{parsed.op} {parsed.variant} {parsed.dtype}"
                self._others.add(what)
                fault = f"the kernel is one of {what}"
            else:
                kernel, canonical = parsed.kernel, parsed.canonical
        except KernelError as e:
            fault = str(e)
            self._look_elsewhere(name)
        if len(self.faults) > _MAX_KERNELS:
            raise DataError(f"more than {_MAX_KERNELS} different kernel names: not a table of measurements")
        self._place[name] = len(self.faults)
        self._names.append(canonical)
        self._parsed.append(kernel)
        self.faults.append(fault)
        return self._place[name]

    def _look_elsewhere(self, name: str) -> None:
        """Note CK Tile's names where the arch has other kernels: the caller forgot to say the arch."""
        if backend_of_target(self._target).kernel is CkKernel:
            return
        try:
            parsed = parse_name(name)
        except KernelError:
            return
        archs = " or ".join(f"arch={a}" for a in known_archs() if load_arch(a).backend == "ck_tile")
        self._others.add(f"CK Tile's {parsed.op} {parsed.variant} {parsed.dtype} (say {archs})")

    @property
    def layouts(self) -> Ints | None:
        """(kernels,) layout that the name says, as an index into LAYOUTS; None where names say none."""
        if self._target.op != "gemm" or not hasattr(self._blank, "gemm_layout"):
            return None
        return np.array(
            [LAYOUTS.index(getattr(k, "gemm_layout", "") or LAYOUTS[0]) for k in self._parsed], dtype=np.int64
        )

    @property
    def ndim(self) -> Ints | None:
        """(kernels,) spatial dimensions that the name says; None where names say none."""
        if not hasattr(self._blank, "ndim"):
            return None
        return np.array([getattr(k, "ndim", 0) for k in self._parsed], dtype=np.int64)

    def columns(self, rows: Ints) -> dict[str, Any]:
        """The kernel columns of rows, which name their kernels by number."""
        made: dict[str, Any] = {"kernel_name": Coded(rows.astype(np.int32), tuple(self._names))}
        for name, kind in type(self._blank).column_kinds().items():
            values = [getattr(k, name) for k in self._parsed]
            if kind == "str":
                words = {w: i for i, w in enumerate(dict.fromkeys(values))}
                codes = np.array([words[v] for v in values], dtype=np.int32)
                made[name] = Coded(codes[rows] if len(codes) else codes, tuple(words))
            else:
                made[name] = np.array(values, dtype=bool if kind == "bool" else np.int64)[rows]
        return made


class _Fact(NamedTuple):
    """What rows need of their problem."""

    fault: str
    flops: float
    bytes: float


class _Problems:
    """Problems seen so far; rows of one problem mostly follow each other, so each stretch of them is looked up once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, ...], _Fact] = {}

    def look_up(self, columns: Mapping[str, Ints]) -> _Facts:
        """What is known of each row's problem."""
        if len(self._known) > _MAX_PROBLEMS:
            self._known.clear()
        values = list(columns.values())
        new = np.zeros(len(values[0]), dtype=bool)
        new[:1] = True
        for column in values:
            new[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(new)
        facts = []
        for key in zip(*(column[starts].tolist() for column in values), strict=True):
            fact = self._known.get(key)
            if fact is None:
                fact = self._known[key] = self._fact(key)
            facts.append(fact)
        return _Facts(facts, np.diff(np.append(starts, len(new))))

    def _fact(self, key: tuple[int, ...]) -> _Fact:
        kind = OPS[self._target.op]
        values: dict[str, Any] = dict(zip(kind.column_names(), key, strict=True))
        empty = [n for n, v in values.items() if v == EMPTY]
        if "layout" in values:
            values["layout"] = LAYOUTS[values["layout"]] if values["layout"] >= 0 else "none that is known"
        try:
            if empty:
                raise ProblemError(empty[0], "is empty")
            problem = kind(**values)
            return _Fact("", float(problem.flops), float(problem.min_bytes(self._target.dtype)))
        except ProblemError as e:
            return _Fact(str(e), 1.0, 1.0)


class _Facts:
    """Facts of stretches of rows, spread over the rows."""

    def __init__(self, facts: Sequence[_Fact], lengths: Ints) -> None:
        self.flops: Floats = np.repeat(np.array([f.flops for f in facts], dtype=np.float64), lengths)
        self.bytes: Floats = np.repeat(np.array([f.bytes for f in facts], dtype=np.float64), lengths)
        starts = np.append(0, np.cumsum(lengths))
        self.faults = {
            row: fact.fault
            for i, fact in enumerate(facts)
            if fact.fault
            for row in range(int(starts[i]), int(starts[i + 1]))
        }


@dataclass(frozen=True)
class _Masked:
    """A column that is empty where not `there`."""

    values: Floats | Coded
    there: npt.NDArray[np.bool_]


def _array(values: Any) -> pa.Array:
    mask = None
    if isinstance(values, _Masked):
        values, mask = values.values, ~values.there
    if isinstance(values, Coded):
        return pa.DictionaryArray.from_arrays(pa.array(values.codes, mask=mask), pa.array(values.words, pa.string()))
    return pa.array(values, mask=mask)


def _repeated(word: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, dtype=np.int32), pa.array([word], pa.string()))
