"""Import of measurements by other tools as a measurement table; one module per file format.

Takes CK Tile's benchmark CSV, benchmark JSON and streaming log, or a parquet table, and writes a measurement table;
takes MIOpen's find databases, and writes a table of solvers. A quarantine file keeps what could not be read.
Imports the columns and schema of `data`, `kernels` and `ops`.
Used by `data.quality` (reading parquet), `tilewise ingest` and benchmarks.
"""

from __future__ import annotations

from tilewise.data.importers._flat_tables import open_parquet
from tilewise.data.importers._ingest import ImportReport, ingest_file, quarantine_path
from tilewise.data.importers._read_table import read_table_or_import
from tilewise.data.importers._source import content_hash

__all__ = [
    "ImportReport",
    "content_hash",
    "ingest_file",
    "open_parquet",
    "quarantine_path",
    "read_table_or_import",
]
