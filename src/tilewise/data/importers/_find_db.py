"""Importer of MIOpen's find databases: a measurement for each time of a solver, a candidate known by its name.

A database lists only the up to four fastest solvers of a problem. Solvers that are not listed were slower, or do not
compute the problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tilewise.data._columns import DERIVED_COLUMNS, measurement_columns, problem_columns
from tilewise.data.importers._ck_csv import overlong_losses
from tilewise.data.importers._convert import ARROW
from tilewise.data.importers._find_db_line import Conv, Timing, parse_line
from tilewise.data.importers._reader import Coded, Ints, Loss, coded, cut
from tilewise.data.importers._source import LineBlocks, Source
from tilewise.errors import DataError
from tilewise.kernels import BACKEND_COLUMN
from tilewise.kernels.miopen import NAME, Solver

COLUMNS = tuple(c for c in measurement_columns("grouped_conv", NAME) if c.name not in DERIVED_COLUMNS)
SCHEMA = pa.schema([pa.field(c.name, ARROW[c.kind], c.nullable) for c in COLUMNS])

# MIOpen's GetDbBasename: the arch, then the compute units in hexadecimal, or _ and decimal where there are at most 64.
_NAME = re.compile(r"(gfx(?:9[0-9a-f]{2}|1[0-9]{3}))(?:_([0-9]{1,2})|([0-9a-f]{2,3}))\..*u?fdb\.txt(?:\.bz2|\.gz)?")
_SIZES = tuple(c.name for c in problem_columns("grouped_conv") if c.kind == "int")


@dataclass
class SolverConverter:
    """Converter of a find database's lines to rows.

    Attributes:
        arch, compute_units: of the GPU that the file is for.
        run_id, origin: values of the columns of these names.
    """

    arch: str
    compute_units: int
    run_id: str
    origin: str

    def __call__(self, rows: list[tuple[Conv, list[Timing]]]) -> pa.Table:
        """Return the table of the timings of some problems."""
        convs, timings = [conv for conv, _ in rows], [t for _, found in rows for t in found]
        repeats = np.array([len(found) for _, found in rows], dtype=np.int64)

        def words(values: list[str]) -> pa.Array:
            return _dictionary(coded(values), repeats)

        sizes = [[getattr(c.problem, name) for name in _SIZES] for c in convs]
        dims = np.repeat(np.array(sizes, dtype=np.int64), repeats, axis=0)
        flops = np.repeat(np.array([c.problem.flops for c in convs], dtype=np.float64), repeats)
        latency = np.array([t.latency_ms for t in timings], dtype=np.float64)
        with np.errstate(divide="ignore", over="ignore"):
            tflops = flops / latency / 1e9
        ok = (latency > 0) & (tflops > 0) & np.isfinite(tflops)
        names = [f"grouped_conv_{c.variant}_{c.dtype}_" for c in convs]
        solvers = [Solver(t.solver).config for t in timings]
        named = [name + solver for name, solver in zip(np.repeat(names, repeats).tolist(), solvers, strict=True)]
        errors = ["" if good else f"the latency is {t.latency_ms:g} ms" for good, t in zip(ok, timings, strict=True)]
        columns: dict[str, pa.Array] = {
            "variant": words([c.variant for c in convs]),
            "dtype": words([c.dtype for c in convs]),
            **{name: pa.array(dims[:, i]) for i, name in enumerate(_SIZES)},
            # A 2D problem that is called as a 3D one is measured again, with other solvers.
            "run_id": words([f"{self.run_id}-3d" if c.ndim > c.problem.ndim else self.run_id for c in convs]),
            "layout": words([c.problem.layout for c in convs]),
            "kernel_name": _dictionary(coded(named)),
            "algorithm": _dictionary(coded([t.solver for t in timings])),
            "latency_ms": pa.array(latency, mask=~ok),
            "status": _dictionary(coded(np.where(ok, "ok", "runtime_error").tolist())),
            "error": _dictionary(coded(errors), is_null=ok),
            "is_valid": pa.array(ok),
        }
        same = {"op": "grouped_conv", "arch": self.arch, BACKEND_COLUMN: NAME}
        same |= {"origin": self.origin, "hw_device": f"{self.arch} with {self.compute_units} compute units"}
        columns |= {name: _dictionary(coded([word] * len(latency))) for name, word in same.items()}
        arrays = [columns[f.name] if f.name in columns else pa.nulls(len(latency), f.type) for f in SCHEMA]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def read_find_db(source: Source, convert: SolverConverter) -> Iterator[tuple[pa.Table | None, list[Loss]]]:
    """Yield the rows and losses of a find database."""
    blocks = LineBlocks(source)
    for first, data in blocks:
        rows: list[tuple[Conv, list[Timing]]] = []
        losses = overlong_losses(blocks)
        for number, raw in enumerate(data.split(b"\n")[:-1], first):
            text = raw.decode(errors="replace").strip("\r\ufeff \t")
            if not text:
                continue
            line = parse_line(text)
            losses += [Loss(number, reason, cut(part)) for reason, part in line.faults]
            if line.conv is not None and line.timings:
                rows.append((line.conv, line.timings))
        yield convert(rows) if rows else None, losses
    yield None, overlong_losses(blocks)


def device_of_name(path: Path) -> tuple[str, int]:
    """Return the arch and the compute units that a find database's name states; its lines state neither.

    Raises:
        DataError: the name is not of MIOpen's form.
    """
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise DataError(
            f"{path}: the name of a find database must state the GPU as MIOpen writes it, such as "
            "gfx942130.HIP.fdb.txt.bz2 (gfx942, 0x130 compute units) or gfx906_60.HIP.fdb.txt; rename the file"
        )
    return match[1], int(match[2]) if match[2] else int(match[3], 16)


def _dictionary(values: Coded, repeats: Ints | None = None, is_null: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    codes = values.codes if repeats is None else np.repeat(values.codes, repeats)
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=is_null), pa.array(values.words, pa.string()))
