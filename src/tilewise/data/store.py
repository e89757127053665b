"""A table as the bytes of a parquet file: the same for the same table and metadata, with page checksums."""

from __future__ import annotations

import io
from collections.abc import Mapping

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(frame: pd.DataFrame, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """The parquet file of `frame`, with `metadata` of ours and none of pandas."""
    buffer = io.BytesIO()
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(dict(metadata or {}) or None)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()
