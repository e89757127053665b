"""Descriptions as tables of text, for a terminal and for a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewise.data.describe._description import LONG_MS, Description

MOST_REASONS = 12
_LONG = f"{LONG_MS * 1e3:.0f} us"


@dataclass(frozen=True)
class TextTable:
    """A table of text, with `words` columns of words followed by columns of figures."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    note: str = ""


def text_tables(described: Sequence[Description]) -> tuple[TextTable, ...]:
    """Return all tables, including those without rows."""
    return (_targets(described), _runs(described), _failures(described), _repeats(described))


def _targets(described: Sequence[Description]) -> TextTable:
    rows = []
    for d in described:
        validation = int(d.problems["validation"].sum())
        failed = d.rows - d.by_status.get("ok", 0) - d.by_status.get("unsupported", 0)
        counts = (len(d.problems), len(d.problems) - validation, validation, len(d.kernels))
        statuses = (d.by_status.get("ok", 0), d.by_status.get("unsupported", 0), failed)
        spreads = (_percent(d.spread()), _percent(d.spread(above_ms=LONG_MS)))
        rows.append((d.target.name, *(f"{n:,}" for n in (*counts, *statuses)), *spreads))
    header = ("target", "problems", "training", "validation", "kernels", "ok", "unsupported", "failed")
    return TextTable(
        "targets",
        "Targets",
        (*header, "spread", f"above {_LONG}"),
        tuple(rows),
        1,
        f"spread: median over the valid rows of (p80 - p20) / p50 of a kernel's samples; the last column: rows of at "
        f"least {_LONG}. unsupported: excluded by a rule before measuring; failed: every other status that is not ok.",
    )


def _runs(described: Sequence[Description]) -> TextTable:
    rows = [
        (
            d.target.name,
            run.run_id,
            run.measured_on,
            ", ".join(run.devices) or "-",
            ", ".join(run.libraries) or "-",
            f"{run.problems:,}",
            f"{run.rows:,}",
            f"{run.valid:,}",
            "-" if run.rate is None else f"{run.rate:.0f}",
            _percent(run.spread),
        )
        for d in described
        for run in d.runs
    ]
    header = ("target", "run", "on", "devices", "libraries", "problems", "rows", "valid", "valid/s", "spread")
    return TextTable(
        "runs",
        "Runs",
        header,
        tuple(rows),
        5,
        "valid/s: valid rows per second of measuring, all devices together, without the pauses of a resumed run.",
    )


def _failures(described: Sequence[Description]) -> TextTable:
    rows = []
    for d in described:
        for row in d.failures.head(MOST_REASONS).itertuples(index=False):
            rows.append((d.target.name, row.status, row.reason or "-", f"{row.rows:,}", _percent(row.rows / d.rows)))
        if left := int(d.failures["rows"].iloc[MOST_REASONS:].sum()):
            rows.append((d.target.name, "others", "-", f"{left:,}", _percent(left / d.rows)))
    header = ("target", "status", "reason", "rows", "of all")
    return TextTable("failures", "Rows without a time, by reason", header, tuple(rows), 3)


def _repeats(described: Sequence[Description]) -> TextTable:
    rows = [
        (
            d.target.name,
            f"{r.problems:,}",
            f"{r.changed:.1%}",
            _percent(r.cost),
            _percent(r.p10),
            _percent(r.least),
            _percent(r.difference),
            _percent(r.difference_long),
        )
        for d in described
        if (r := d.repeats)
    ]
    header = ("target", "problems", "oracle changes", "costs", "P10", "least", "latency apart", f"above {_LONG}")
    return TextTable(
        "repeats",
        "Repeats: another run of the same problems",
        header,
        tuple(rows),
        1,
        "oracle changes: share of problems whose fastest kernel differs; costs: mean efficiency lost by picking "
        "by one run and judging by the other; P10 and least: efficiency reached; latency apart: median over the "
        "kernels.",
    )


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{share:.2%}"
