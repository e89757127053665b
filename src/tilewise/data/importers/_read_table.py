"""Measurements from a table, or straight from a file that another tool wrote."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pandas as pd

from tilewise.data._schema import read_measurements
from tilewise.data.importers._ingest import ImportReport, ingest_file
from tilewise.ops import Target


def read_table_or_import(path: Path, target: Target) -> tuple[pd.DataFrame, ImportReport | None]:
    """Return the measurements of a target, and the report of the import if there was one.

    Args:
        path: a measurement table or a folder of them; or one file of any other ending, which is imported without
            writing a table: CK Tile's benchmark CSV, benchmark JSON or log.
        target: target of the rows.

    Raises:
        DataError: the file cannot be read or imported, or has no row of the target.
    """
    if path.is_dir() or path.suffix == ".parquet":
        return read_measurements(path, target), None
    with tempfile.TemporaryDirectory() as scratch:
        report = ingest_file(path, target, Path(scratch) / "table.parquet")
        return read_measurements(report.path, target), report
