"""The columns of the measurement table: name, type, unit and meaning, each described once.

The collector writes them with pyarrow alone; the schema check and the documentation derive from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tilewise.arch import DEFAULT_BACKEND
from tilewise.kernels import backend, backend_of_columns
from tilewise.ops import OPS

Kind = Literal["str", "int", "float", "bool"]

STATUSES = ("ok", "unsupported", "compile_error", "runtime_error", "timeout", "wrong_result")


@dataclass(frozen=True)
class Column:
    """A column. A `nullable` one may have empty cells: a failed kernel has no latency, an import no provenance."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    nullable: bool = False


TARGET_COLUMNS = tuple(Column(n, "str", "", f"{n} of the target") for n in ("op", "variant", "dtype", "arch"))

RESULT = (
    Column("latency_ms", "float", "ms", "median time of one launch (p50 over the samples)", nullable=True),
    Column("tflops", "float", "TFLOPS", "the problem's FLOPs / latency_ms", nullable=True),
    Column("bandwidth_gb_s", "float", "GB/s", "the problem's fewest bytes / latency_ms", nullable=True),
    Column("status", "str", "", f"outcome: one of {', '.join(STATUSES)}"),
    Column("error", "str", "", "the reason if the status is not ok", nullable=True),
    Column("is_valid", "bool", "", "status is ok"),
)

# Columns that follow from latency_ms and the problem: a file may omit them, and reading adds them.
DERIVED_COLUMNS = ("tflops", "bandwidth_gb_s")

PROGRAMS_COLUMN = "programs_version"  # a later column: files omit it where all rows of a table have an empty cell

PROVENANCE = (
    Column("run_id", "str", "", "the collecting run; equal rows of two runs are repeats, not contradictions"),
    Column("origin", "str", "", "source of the problem: a network's name, a generator, an imported file"),
    Column("hw_device", "str", "", "the driver's name of the GPU", nullable=True),
    Column("hw_uuid", "str", "", "the GPU's unique id", nullable=True),
    Column("driver", "str", "", "version of the GPU driver", nullable=True),
    Column(
        "libraries", "str", "", "versions of the libraries that build the kernels: torch, triton, CUDA", nullable=True
    ),
    Column("measured_at", "str", "UTC", "time of the measurement, ISO 8601", nullable=True),
    Column("regime", "str", "", "timing method, e.g. cold_l2+graph", nullable=True),
    Column("unrolled", "int", "launches", "launches per sample", nullable=True),
    Column("repeats", "int", "samples", "number of samples", nullable=True),
    Column("latency_min_ms", "float", "ms", "fastest sample", nullable=True),
    Column("latency_p20_ms", "float", "ms", "20th percentile", nullable=True),
    Column("latency_p80_ms", "float", "ms", "80th percentile", nullable=True),
    Column(
        "sm_clock_mhz", "int", "MHz", "clock of the multiprocessors, median over the samples' rounds", nullable=True
    ),
    Column(
        PROGRAMS_COLUMN,
        "int",
        "",
        "version of tilewise's programs of the op; empty: 1, or none of them",
        nullable=True,
    ),
)


def problem_columns(op: str) -> tuple[Column, ...]:
    """Return the problem columns of an op, in the order of its fields."""
    return tuple(Column(name, kind, "", f"{op} dimension {name}") for name, kind in OPS[op].column_kinds().items())


def kernel_columns(backend_name: str = DEFAULT_BACKEND) -> tuple[Column, ...]:
    """Return ``kernel_name`` and the kernel parameters of a backend (see :mod:`tilewise.kernels`)."""
    kinds = backend(backend_name).column_kinds()
    return (
        Column("kernel_name", "str", "", "unique name of the kernel"),
        *(Column(name, kind, "", f"kernel parameter {name}") for name, kind in kinds.items()),
    )


@cache
def measurement_columns(op: str, backend_name: str = DEFAULT_BACKEND) -> tuple[Column, ...]:
    """Return all columns of an op's measurement table with kernels of a backend, in order."""
    return (*TARGET_COLUMNS, *problem_columns(op), *kernel_columns(backend_name), *RESULT, *PROVENANCE)


def table_columns(op: str, names: Iterable[str], tags: Iterable[str] = ()) -> tuple[Column, ...]:
    """Return the measurement columns for a table.

    Args:
        op: of the table.
        names: of its columns.
        tags: the values of its column ``backend``, if it has one.
    """
    return measurement_columns(op, backend_of_columns(names, tags).name)
