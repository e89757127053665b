"""The measurement table's columns, described once: name, type, unit, meaning.

Collecting writes them with pyarrow alone, the schema check and the documentation derive from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from tilewise.kernels.backends import backend, backend_of_columns
from tilewise.ops import OPS

Kind = Literal["str", "int", "float", "bool"]

STATUSES = ("ok", "unsupported", "compile_error", "runtime_error", "timeout", "wrong_result")


@dataclass(frozen=True)
class Column:
    """One column; `nullable` ones may be empty (a failed kernel has no latency, an import no provenance)."""

    name: str
    kind: Kind
    unit: str
    meaning: str
    nullable: bool = False


TARGET = tuple(Column(n, "str", "", f"{n} of the target") for n in ("op", "variant", "dtype", "arch"))

RESULT = (
    Column("latency_ms", "float", "ms", "median time of one launch (p50 over the samples)", nullable=True),
    Column("tflops", "float", "TFLOPS", "the problem's FLOPs / latency_ms", nullable=True),
    Column("bandwidth_gb_s", "float", "GB/s", "the problem's fewest bytes / latency_ms", nullable=True),
    Column("status", "str", "", f"outcome: one of {', '.join(STATUSES)}"),
    Column("error", "str", "", "why the status is not ok", nullable=True),
    Column("is_valid", "bool", "", "status is ok"),
)

# A file need not store what follows from latency_ms and the problem: reading adds it.
DERIVED = ("tflops", "bandwidth_gb_s")

PROVENANCE = (
    Column("run_id", "str", "", "the collecting run; rows of two runs repeat each other, they do not contradict"),
    Column("origin", "str", "", "where the problem comes from: a network's name, a generator, an imported file"),
    Column("hw_device", "str", "", "the GPU as its driver names it", nullable=True),
    Column("hw_uuid", "str", "", "the GPU's unique id", nullable=True),
    Column("driver", "str", "", "version of the GPU driver", nullable=True),
    Column("libraries", "str", "", "versions that make the kernels: torch, triton, CUDA", nullable=True),
    Column("measured_at", "str", "UTC", "when, ISO 8601", nullable=True),
    Column("regime", "str", "", "how it was timed, e.g. cold_l2+graph", nullable=True),
    Column("unrolled", "int", "launches", "launches a sample", nullable=True),
    Column("repeats", "int", "samples", "samples kept", nullable=True),
    Column("latency_min_ms", "float", "ms", "fastest sample", nullable=True),
    Column("latency_p20_ms", "float", "ms", "20th percentile", nullable=True),
    Column("latency_p80_ms", "float", "ms", "80th percentile", nullable=True),
    Column(
        "sm_clock_mhz", "int", "MHz", "clock of the multiprocessors, median over the samples' rounds", nullable=True
    ),
)


def problem_columns(op: str) -> tuple[Column, ...]:
    """The problem columns of an op, in the order of its fields."""
    return tuple(Column(name, kind, "", f"{op} dimension {name}") for name, kind in OPS[op].column_kinds().items())


def kernel_columns(of: str = "triton") -> tuple[Column, ...]:
    """``kernel_name`` and the fields of the kernels of a backend (see :mod:`tilewise.kernels.backends`)."""
    kinds = backend(of).kernel.column_kinds()
    return (
        Column("kernel_name", "str", "", "unique name of the kernel"),
        *(Column(name, kind, "", f"kernel parameter {name}") for name, kind in kinds.items()),
    )


@cache
def measurement_columns(op: str, of: str = "triton") -> tuple[Column, ...]:
    """All columns of an op's measurement table with kernels of the backend `of`, in order."""
    return (*TARGET, *problem_columns(op), *kernel_columns(of), *RESULT, *PROVENANCE)


def table_columns(op: str, names: Iterable[str]) -> tuple[Column, ...]:
    """The measurement columns of a table that has columns of these names: those of the backend that it is of."""
    return measurement_columns(op, backend_of_columns(names).name)
