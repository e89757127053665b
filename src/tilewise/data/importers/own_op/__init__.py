"""Import of any table as measurements of an op of the user's own.

Takes CSV, JSON, parquet, or caches of ``triton.autotune``; gives the op's definition, and a measurement table.
Imports the columns and schema of `data`, the importers' table file, `kernels` and `ops`. Used by `tilewise ingest`.
"""

from __future__ import annotations

from tilewise.data.importers.own_op._column_choice import StatedColumns
from tilewise.data.importers.own_op._own_op_tables import define_from_table, ingest_own_op

__all__ = ["StatedColumns", "define_from_table", "ingest_own_op"]
