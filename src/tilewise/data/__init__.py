"""Measurement tables: their columns, schema and reader, row selection, labels, and the holdout split.

Takes parquet files and frames; gives checked frames, one label per problem and kernel, group keys and holdout masks.
Imports `kernels` and `ops`. Members load lazily: columns need no pandas, which a measuring machine may lack.
Used by `collect`, `train`, `evaluate`, `registry`, `campaigns`, `dispatch`, `cli` and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.data._backends import backend_of_frame as backend_of_frame
    from tilewise.data._ck_files import to_ck_text as to_ck_text
    from tilewise.data._columns import DERIVED_COLUMNS as DERIVED_COLUMNS
    from tilewise.data._columns import PROGRAMS_COLUMN as PROGRAMS_COLUMN
    from tilewise.data._columns import TARGET_COLUMNS as TARGET_COLUMNS
    from tilewise.data._columns import Column as Column
    from tilewise.data._columns import measurement_columns as measurement_columns
    from tilewise.data._derived import without_implied as without_implied
    from tilewise.data._digest import keys_digest as keys_digest
    from tilewise.data._digest import table_hash as table_hash
    from tilewise.data._labels import judge_runs as judge_runs
    from tilewise.data._labels import labelled as labelled
    from tilewise.data._labels import valid_labels as valid_labels
    from tilewise.data._measurements import Measurements as Measurements
    from tilewise.data._measurements import chunks_of as chunks_of
    from tilewise.data._measurements import open_measurements as open_measurements
    from tilewise.data._parquet_bytes import parquet_bytes as parquet_bytes
    from tilewise.data._row_source import CHUNK_ROWS as CHUNK_ROWS
    from tilewise.data._row_source import RowSource as RowSource
    from tilewise.data._row_source import open_rows as open_rows
    from tilewise.data._rows import Bools as Bools
    from tilewise.data._rows import is_of as is_of
    from tilewise.data._rows import is_supported as is_supported
    from tilewise.data._rows import pool_index as pool_index
    from tilewise.data._rows import problem_index as problem_index
    from tilewise.data._rows import problems_of as problems_of
    from tilewise.data._rows import sort_rows as sort_rows
    from tilewise.data._rows import support as support
    from tilewise.data._schema import QUARANTINED as QUARANTINED
    from tilewise.data._schema import read_measurements as read_measurements
    from tilewise.data._schema import read_raw_measurements as read_raw_measurements
    from tilewise.data._splits import group_keys as group_keys
    from tilewise.data._splits import held_out as held_out
    from tilewise.data._splits import holdout_mask as holdout_mask
    from tilewise.data._splits import is_primary as is_primary
    from tilewise.data._splits import split_keys as split_keys
    from tilewise.data._splits import split_rule as split_rule
    from tilewise.data._target_table import TargetTable as TargetTable
    from tilewise.data._text import stacked as stacked

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_backends": ("backend_of_frame",),
        "_ck_files": ("to_ck_text",),
        "_columns": (
            "Column",
            "DERIVED_COLUMNS",
            "PROGRAMS_COLUMN",
            "TARGET_COLUMNS",
            "measurement_columns",
        ),
        "_derived": ("without_implied",),
        "_digest": ("keys_digest", "table_hash"),
        "_labels": (
            "judge_runs",
            "labelled",
            "valid_labels",
        ),
        "_parquet_bytes": ("parquet_bytes",),
        "_measurements": (
            "Measurements",
            "chunks_of",
            "open_measurements",
        ),
        "_row_source": (
            "CHUNK_ROWS",
            "RowSource",
            "open_rows",
        ),
        "_rows": (
            "Bools",
            "is_of",
            "is_supported",
            "pool_index",
            "problem_index",
            "problems_of",
            "sort_rows",
            "support",
        ),
        "_schema": (
            "QUARANTINED",
            "read_measurements",
            "read_raw_measurements",
        ),
        "_splits": (
            "group_keys",
            "held_out",
            "holdout_mask",
            "is_primary",
            "split_keys",
            "split_rule",
        ),
        "_target_table": ("TargetTable",),
        "_text": ("stacked",),
    },
)
