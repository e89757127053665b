"""The promises that every importer keeps for any bytes, checked on damaged files; the fuzzer uses them as well."""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

import ck_files
from mutate import Damage, damaged
from tilewise.data import read_raw_measurements
from tilewise.data._schema import row_faults
from tilewise.data.importers import ingest_file
from tilewise.data.importers._find_db import COLUMNS
from tilewise.errors import DataError
from tilewise.ops import GroupedConvProblem, Target

CONV = Target.parse("grouped_conv_forward_bf16_gfx950")
GEMM = Target.parse("gemm_universal_fp8_gfx950")
READERS = ("csv", "json", "log", "parquet", "own", "gzip", "find_db", "bzip2")
FIND_DB = Path(__file__).parent / "miopen" / "gfx90a68.HIP.fdb.txt"


@dataclass(frozen=True)
class Sample:
    """An intact file, with its number of measurements that can be imported.

    Damage between two parts harms both. Formats that are read as a whole are lost as a whole.
    """

    content: bytes
    parts: int
    target: Target
    whole_or_nothing: bool = False
    name: str = "input"


@cache
def sample(reader: str) -> Sample:
    """Return the file to damage."""
    conv, gemm = ck_files.conv_problems(3), ck_files.gemm_problems(3)
    kernels = ck_files.GEMM_KERNELS[:4]
    if reader == "csv":
        return Sample("".join(f"{line}\n" for line in ck_files.csv_lines(conv)).encode(), 72, CONV)
    if reader == "json":
        return Sample(json.dumps(ck_files.benchmark_json(gemm, kernels), indent=1).encode(), 12, GEMM)
    if reader == "log":
        return Sample("".join(ck_files.log_pieces(gemm, kernels)).encode(), 12, GEMM)
    if reader == "find_db":
        return Sample(FIND_DB.read_bytes(), 21, CONV, name=FIND_DB.name)
    if reader == "bzip2":
        return Sample(bz2.compress(FIND_DB.read_bytes()), 21, CONV, whole_or_nothing=True, name=FIND_DB.name)
    if reader == "gzip":
        return Sample(gzip.compress(sample("log").content, mtime=0), 12, GEMM, whole_or_nothing=True)
    buffer = io.BytesIO()
    table = pacsv.read_csv(pa.BufferReader(sample("csv").content))
    if reader == "own":
        path = Path("own.csv")
        table = _imported(path)
    pq.write_table(table, buffer, write_page_checksum=True)
    return Sample(buffer.getvalue(), 72, CONV, whole_or_nothing=True)


def _imported(path: Path) -> pa.Table:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder) / path, Path(folder) / "own.parquet"
        source.write_bytes(sample("csv").content)
        ingest_file(source, CONV, output)
        return pq.read_table(output)


def check(reader: str, damages: Sequence[Damage], folder: Path, *, schema: bool = True) -> str:
    """Damage a file and check an importer's promises, as :func:`read`; also, untouched parts are imported."""
    whole = sample(reader)
    outcome, rows = read(reader, damaged(whole.content, damages), folder, schema=schema)
    # A damaged header costs every line below it, each with a loss.
    header = whole.content.index(b"\n") if reader == "csv" else -1
    below = all(int(d.at * len(whole.content)) > header for d in damages)
    whole_or_nothing = outcome == "refused" or whole.whole_or_nothing
    if not whole_or_nothing and below and not any(d.kind in ("truncate", "duplicate") for d in damages):
        touched = sum(2 + (d.length if d.kind == "delete" else len(d.token)) // 20 for d in damages)
        assert rows >= whole.parts - touched * _reach(reader), f"{rows} of {whole.parts} rows"
    return outcome


def read(reader: str, content: bytes, folder: Path, *, schema: bool = True) -> tuple[str, int]:
    """Import any content and check an importer's promises; return "refused" or "imported", and the number of rows.

    The promises: every error is a DataError; every imported row fulfils the schema; rows and losses make up all parts;
    each loss is in the quarantine with its line. Without `schema` the slowest check, that of all rows against the
    schema, is left out.
    """
    whole = sample(reader)
    source, output = folder / whole.name, folder / "out.parquet"
    quarantine = folder / "out.quarantined.jsonl"
    output.unlink(missing_ok=True)
    quarantine.unlink(missing_ok=True)
    source.write_bytes(content)
    try:
        report = ingest_file(source, whole.target, output)
    except DataError as e:
        message = str(e)
        assert not output.exists(), "a refused import leaves no table"
        assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == [], "no unfinished file is left"
        assert message, "an error must say something"
        return "refused", 0
    losses = [json.loads(line) for line in quarantine.read_text().splitlines()] if report.quarantine else []
    assert len(losses) == report.lost == sum(report.kinds.values())
    assert all(loss["reason"] and isinstance(loss["line"], int) and len(loss["text"]) <= 2003 for loss in losses)
    assert pq.ParquetFile(output).metadata.num_rows == report.rows == report.parts - report.lost
    if report.rows and schema and whole.name == FIND_DB.name:
        check_solvers(pq.read_table(output))
    elif report.rows and schema:
        frame = read_raw_measurements(output, whole.target)
        faults = row_faults(frame)
        assert (faults == "").all(), faults[faults != ""].iloc[0]
    return "imported", report.rows


def check_solvers(table: pa.Table) -> None:
    """Check that a table of solvers has its columns, possible problems, and a time in each valid row."""
    assert table.column_names == [c.name for c in COLUMNS]
    for column in COLUMNS:
        assert column.nullable or table[column.name].null_count == 0, column.name
    for row in table.to_pylist():
        GroupedConvProblem.from_dict({name: row[name] for name in GroupedConvProblem.column_names()})
        assert row["is_valid"] == (row["status"] == "ok") == (row["error"] is None)
        assert not row["is_valid"] or row["latency_ms"] > 0


def _reach(reader: str) -> int:
    """Return the most measurements that one damage costs; a Shape line, configuration or problem costs all below it."""
    return {"csv": 1, "json": 3, "log": 4, "find_db": 4}[reader]
