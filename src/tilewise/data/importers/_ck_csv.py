"""Reader of CK Tile's benchmark CSV, with one measurement per line.

Blocks of lines go through pyarrow's CSV reader at full speed. A block that it refuses, or in which it counts another
number of lines, is parsed line by line: so an error costs only its own line, and line numbers stay right.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pacsv

from tilewise.data.importers._reader import EMPTY, Block, Coded, Floats, Ints, Loss, Reader, Records, cut, split_names
from tilewise.data.importers._source import LineBlocks, Source
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

# Optional for a problem, but present in every file of CK Tile. If one were missing, its default could be wrong.
_ALWAYS = {"grouped_conv": ("stride_h", "stride_w", "pad_h", "pad_w")}
_FLOATS = ("latency_ms", "tflops")
# pyarrow reads 0x10 as 16, which no tool writes: such a cell is damaged. The kernels' names hold "0x" as well.
_HEX_CELL = re.compile(rb"(?:^|[,\n])[ \t]*[+-]?0[xX]")
_HEX = r"^[ \t]*[+-]?0[xX]"
_WHOLE = re.compile(r"[ \t]*([+-]?[0-9]{1,18})(?:\.0*)?[ \t]*")
_WORD = pa.dictionary(pa.int32(), pa.string())


def read_csv(source: Source, target: Target) -> Reader:
    """Yield the records of a CSV file.

    Raises:
        DataError: the header lacks a column, or a column name is not unique.
    """
    blocks = LineBlocks(source)
    columns: _Columns | None = None
    for line, data in blocks:
        if columns is None:
            line, header, data = _header(line, data)
            if not header:
                continue
            columns = _Columns(header, target, source)
        yield from _overlong_lines(blocks)
        if data:
            yield _read_block(line, data, columns)
    yield from _overlong_lines(blocks)


def _overlong_lines(blocks: LineBlocks) -> Reader:
    if losses := overlong_losses(blocks):
        yield Block(None, losses)


def overlong_losses(blocks: LineBlocks) -> list[Loss]:
    """Return the overlong lines found since the last call as losses."""
    losses = [
        Loss(n, "the line is longer than 1 MiB", cut(t[:4096].decode(errors="replace"))) for n, t in blocks.overlong
    ]
    blocks.overlong.clear()
    return losses


def _header(line: int, data: bytes) -> tuple[int, bytes, bytes]:
    """Return the number of the line after the header, the header (the first line with text), and the remaining data."""
    while data:
        first, _, data = data.partition(b"\n")
        line += 1
        if first.strip(b"\xef\xbb\xbf \t\r"):
            return line, first.removeprefix(b"\xef\xbb\xbf"), data
    return line, b"", b""


class _Columns:
    """The columns of a header, and their pyarrow types."""

    def __init__(self, header: bytes, target: Target, source: Source) -> None:
        text = header.decode(errors="replace").rstrip("\r")
        try:
            self.names = [n.strip() for n in next(csv.reader([text], strict=True))]
        except csv.Error as e:
            raise DataError(f"{source.path}: line 1: the header must be one line of CSV: {e}") from e
        fields = OPS[target.op].column_names()
        needed = set(required_columns(target))
        self.words = [n for n in self.names if n in ("kernel", "kernel_name", "layout")]
        self.ints = [n for n in self.names if n in (*fields, "non_zero", "split_k") and n not in self.words]
        self.floats = [n for n in self.names if n in _FLOATS]
        known = [*self.words, *self.ints, *self.floats]
        repeated = sorted({n for n in known if known.count(n) > 1})
        if repeated:
            shown = ", ".join(repeated)
            raise DataError(f"{source.path}: line 1: column names must be unique, got {shown} more than once")
        self.kernel = "kernel" if "kernel" in self.words else "kernel_name"
        missing = [n for n in (self.kernel, *sorted(needed), "latency_ms") if n not in known]
        if missing:
            raise DataError(
                f"{source.path}: line 1: column {', '.join(missing)} is missing; a CSV of {target.op} needs kernel, "
                f"{', '.join(required_columns(target))} and latency_ms"
            )
        self.problem = [n for n in (*self.ints, *self.words) if n in fields]

    def types(self) -> dict[str, pa.DataType]:
        return {
            **dict.fromkeys(self.words, _WORD),
            **dict.fromkeys(self.ints, pa.int64()),
            **dict.fromkeys(self.floats, pa.float64()),
        }

    def parse(self, data: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        return pacsv.read_csv(
            pa.BufferReader(data),
            pacsv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=self.names),
            pacsv.ParseOptions(quote_char=False, newlines_in_values=False),
            pacsv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=["", "nan", "NaN"],
                strings_can_be_null=True,
            ),
        )


def required_columns(target: Target) -> tuple[str, ...]:
    """Return the problem columns that every table must have; a GEMM kernel's name states the layout."""
    fields = dataclasses.fields(OPS[target.op])
    always = _ALWAYS.get(target.op, ())
    return tuple(f.name for f in fields if f.default is dataclasses.MISSING or f.name in always)


def _read_block(line: int, data: bytes, columns: _Columns) -> Block:
    """Read a block of whole lines whose first one has the number `line`."""
    lines: Sequence[bytes] | None = None
    numbers: Ints = line + np.arange(data.count(b"\n"), dtype=np.int64)
    losses: list[Loss] = []
    table: pa.Table | None = None
    if b'"' not in data and data.count(b"\r") == data.count(b"\r\n") and not _has_hex(data):
        try:
            table = columns.parse(data, columns.types())
        except (pa.ArrowInvalid, pa.ArrowKeyError):
            table = None
    if table is None or table.num_rows != len(numbers):
        numbers, lines, losses = _sound_lines(line, data, len(columns.names))
        if not lines:
            return Block(None, losses)
        table, faults = _parse_exactly(columns, b"\n".join(lines) + b"\n")
        keep = np.array([fault == "" for fault in faults], dtype=bool)
        losses += [Loss(int(numbers[i]), faults[i], _text(lines[i])) for i in np.flatnonzero(~keep)]
        if not keep.any():
            return Block(None, losses)
        table, numbers = table.filter(pa.array(keep)), numbers[keep]
        lines = [t for t, k in zip(lines, keep, strict=True) if k]
    return Block(_records(table, numbers, columns, _Texts(data, lines)), losses)


def _has_hex(data: bytes) -> bool:
    """Return whether a cell begins like a hexadecimal number."""
    return (b"0x" in data or b"0X" in data) and _HEX_CELL.search(data) is not None


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    """Convert texts to decimal numbers.

    Raises:
        pa.ArrowInvalid: a text is not a decimal number of this type.
    """
    if pc.any(pc.match_substring_regex(values, _HEX)).as_py():
        raise pa.ArrowInvalid("hexadecimal numbers are not read")
    return pc.cast(values, type_)


class _Texts:
    """The texts of a block's rows, split on first use."""

    def __init__(self, data: bytes, lines: Sequence[bytes] | None) -> None:
        self._data = data
        self._lines = lines

    @cached_property
    def _all(self) -> Sequence[bytes]:
        return self._data.split(b"\n") if self._lines is None else self._lines

    def __call__(self, row: int) -> str:
        return _text(self._all[row])


def _text(line: bytes) -> str:
    return cut(line.decode(errors="replace").rstrip("\r"))


def _sound_lines(line: int, data: bytes, columns: int) -> tuple[Ints, list[bytes], list[Loss]]:
    """Return the numbers and texts of lines with the right number of values, and the other lines as losses.

    Blank lines are skipped.
    """
    numbers, lines, losses = [], [], []
    for number, raw in enumerate(data.split(b"\n")[:-1], line):
        text = raw.rstrip(b"\r")
        if not text.strip():
            continue
        fault = ""
        if b'"' in text:
            text, fault = _unquoted(text)
        if not fault and (b"\r" in text or b"\0" in text):
            fault = "holds a control character"
        if not fault and text.count(b",") != columns - 1:
            fault = f"has {text.count(b',') + 1} values, the header {columns}"
        if not fault and not _is_utf8(text):
            fault = "is not UTF-8 text"
        if fault:
            losses.append(Loss(number, f"the line {fault}", _text(raw)))
        else:
            numbers.append(number)
            lines.append(text)
    return np.array(numbers, dtype=np.int64), lines, losses


def _unquoted(text: bytes) -> tuple[bytes, str]:
    """Return a line without its quotes and "", or the line and its fault."""
    try:
        (values,) = csv.reader([text.decode()], strict=True)
    except (csv.Error, ValueError) as e:
        return text, f"has quotes that do not match: {e}"
    if any(c in v for v in values for c in ',"\n'):
        return text, "has a comma or quote inside a value"
    return ",".join(values).encode(), ""


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parse_exactly(columns: _Columns, data: bytes) -> tuple[pa.Table, list[str]]:
    """Return the lines as a table, with empty cells for values that cannot be converted, and each line's fault."""
    types = columns.types()
    raw = columns.parse(data, dict.fromkeys(types, pa.string()))
    faults = [""] * raw.num_rows
    converted = {}
    for name, type_ in types.items():
        values = raw[name].combine_chunks()
        try:
            converted[name] = values.dictionary_encode() if type_ == _WORD else _cast(values, type_)
        except pa.ArrowInvalid:
            convert = _read_whole if type_ == pa.int64() else _read_real
            converted[name] = pa.array(
                [_converted(v, name, convert, faults, i) for i, v in enumerate(values.to_pylist())], type_
            )
    return pa.table(converted), faults


def _converted(
    value: str | None, name: str, convert: Callable[[str], float | None], faults: list[str], row: int
) -> float | None:
    """Convert a cell; note a fault of its row if that is impossible."""
    if value is None:
        return None
    found = convert(value)
    if found is None and not faults[row]:
        kind = "a whole number" if convert is _read_whole else "a number"
        faults[row] = f"{name} must be {kind}, got {value[:40]!r}"
    return found


def _read_whole(value: str) -> int | None:
    match = _WHOLE.fullmatch(value)
    return int(match[1]) if match else None


def _read_real(value: str) -> float | None:
    try:
        return float(value) if "_" not in value else None
    except ValueError:
        return None


def _records(table: pa.Table, numbers: Ints, columns: _Columns, text: _Texts) -> Records:
    """Return a table's rows as records; empty cells become EMPTY, "" and NaN."""
    rows = len(numbers)

    def ints(name: str) -> Ints:
        return cast(Ints, pc.fill_null(table[name].combine_chunks(), EMPTY).to_numpy(zero_copy_only=False))

    def floats(name: str) -> Floats:
        if name not in columns.floats:
            return np.full(rows, np.nan)
        return cast(Floats, pc.fill_null(table[name].combine_chunks(), np.nan).to_numpy(zero_copy_only=False))

    outcomes: dict[int, tuple[str, str]] = {}
    if "non_zero" in columns.ints:
        failed = np.flatnonzero(ints("non_zero") == 0)
        outcomes = dict.fromkeys(failed.tolist(), ("wrong_result", "the kernel computed nothing: non_zero is 0"))
    problem = {n: coded_column(table[n]) if n in columns.words else ints(n) for n in columns.problem}
    kernel, faults = coded_column(table[columns.kernel]), dict[int, str]()
    if "split_k" in columns.ints:
        kernel, faults = split_names(kernel, ints("split_k"))
    return Records(numbers, kernel, problem, floats("latency_ms"), floats("tflops"), outcomes, text, faults)


def coded_column(values: pa.ChunkedArray) -> Coded:
    """Encode a column of words; an empty cell becomes the word ""."""
    array = values.combine_chunks()
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    codes = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False).astype(np.int32)
    words = ["" if w is None else str(w) for w in array.dictionary.to_pylist()]
    return Coded(cast("npt.NDArray[np.int32]", np.where(codes < 0, len(words), codes)), (*words, ""))
