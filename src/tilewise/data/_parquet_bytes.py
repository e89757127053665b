"""Parquet files: equal rows and metadata give equal bytes, with page checksums, in however many parts they come."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from tilewise._ahead import ahead
from tilewise.data._derived import without_implied
from tilewise.ops import OPS

GROUP_ROWS = 1 << 20  # rows of a row group, as pyarrow has by default


def parquet_bytes(frame: pd.DataFrame, metadata: Mapping[bytes, bytes] | None = None) -> bytes:
    """Return the parquet file of `frame`, with `metadata` and without pandas' own.

    Later columns with only defaults are left out, as in :func:`tilewise.data.table_hash`.
    """
    for op in set(frame["op"].dropna().astype(str)) & set(OPS) if "op" in frame else ():
        frame = without_implied(frame, op)
    buffer = io.BytesIO()
    write_parts(buffer, [frame], metadata)
    return buffer.getvalue()


def write_parts(file: BinaryIO, parts: Iterable[pd.DataFrame], metadata: Mapping[bytes, bytes] | None = None) -> None:
    """Write rows that come in parts of equal columns and types, of which there is at least one."""
    writer: pq.ParquetWriter | None = None
    for group in ahead(_groups(parts)):
        group = group.replace_schema_metadata(dict(metadata or {}) or None)
        writer = writer or pq.ParquetWriter(file, group.schema, compression="zstd", write_page_checksum=True)
        writer.write_table(group, row_group_size=GROUP_ROWS)
    assert writer is not None
    writer.close()


def _groups(parts: Iterable[pd.DataFrame]) -> Iterator[pa.Table]:
    """Yield the rows of the parts again, in tables of whole row groups; the last one may be shorter."""
    left: pa.Table | None = None
    for part in parts:
        table = pa.Table.from_pandas(part, preserve_index=False)
        table = table if left is None else pa.concat_tables([left, table.cast(left.schema)])
        whole = len(table) // GROUP_ROWS * GROUP_ROWS
        if whole:
            yield table.slice(0, whole)
        left = table.slice(whole)
    assert left is not None
    yield left
