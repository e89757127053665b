"""Import of measurements by other tools as a measurement table; one module per file format.

Takes CK Tile's benchmark CSV, benchmark JSON and streaming log, or a parquet table, and writes a measurement table;
takes MIOpen's find databases, and writes a table of solvers. A quarantine file keeps what could not be read.
Imports the columns and schema of `data`, `kernels` and `ops`.
Used by `data.quality` (reading parquet), `tilewise ingest` and benchmarks.
"""

from __future__ import annotations

from tilewise.data.importers._column_choice import StatedColumns
from tilewise.data.importers._flat_tables import open_parquet
from tilewise.data.importers._ingest import ingest_file
from tilewise.data.importers._own_op_tables import define_from_table, ingest_own_op
from tilewise.data.importers._read_table import read_table_or_import
from tilewise.data.importers._source import content_hash
from tilewise.data.importers._table_file import ImportReport, quarantine_path

__all__ = [
    "ImportReport",
    "StatedColumns",
    "content_hash",
    "define_from_table",
    "ingest_file",
    "ingest_own_op",
    "open_parquet",
    "quarantine_path",
    "read_table_or_import",
]
