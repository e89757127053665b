"""Parquet files as bytes: equal tables and metadata give equal bytes, with page checksums."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.data._derived import without_implied
from tilewise.ops import OPS


def parquet_bytes(frame: pd.DataFrame, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the parquet file of `frame`, with `metadata` and without pandas' own.

    Later columns with only defaults are left out, as in :func:`tilewise.data.table_hash`.
    """
    for op in set(frame["op"].dropna().astype(str)) & set(OPS) if "op" in frame else ():
        frame = without_implied(frame, op)
    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(dict(metadata or {}) or None)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()
