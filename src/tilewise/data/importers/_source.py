"""Files to import: opened (gzip, bzip2 or plain), recognised by their content, and read in blocks of bounded size."""

from __future__ import annotations

import bz2
import codecs
import hashlib
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

from tilewise.errors import DataError

Format = Literal["csv", "json", "log", "parquet", "find database"]

HEAD_BYTES = 1 << 20
BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
_PACKED_BYTES = 1 << 14  # small, since damage costs everything before it within the same read
_GZIP = 31  # zlib's code for a gzip header and trailer

_BZIP2 = re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")  # the head of a stream, then of its first block or its end

_FIND_DB = re.compile(rb"^[0-9x-]{15,200}(?:-[A-Za-z0-9]+){1,3}-[A-Z0-9]+-[FBW](?:_g[0-9]+)?=", re.MULTILINE)
_SHAPE = re.compile(rb"^[ \t]*Shape \d+:", re.MULTILINE)


class Source:
    """An open file; use it as a context manager.

    Reading raises no error for a damaged compressed stream: it ends there, and `fault` states the reason.

    Args:
        path: the file.
        progress: called with (bytes read, bytes in the file), as stored.

    Raises:
        DataError: the file cannot be opened.
    """

    def __init__(self, path: Path, progress: Callable[[int, int], None] | None = None) -> None:
        self.path = path
        self.fault: str | None = None
        self._progress = progress
        try:
            self._raw: IO[bytes] = path.open("rb")
            self.size = path.stat().st_size
            beginning = self._raw.read(10)
            self._raw.seek(0)
        except OSError as e:
            raise DataError(f"{path}: the file cannot be read: {e.strerror or e}") from e
        self._unpack: _Gunzip | _Bunzip | None = None
        if beginning.startswith(b"\x1f\x8b"):
            self._unpack = _Gunzip(self._raw)
        elif _BZIP2.match(beginning):
            self._unpack = _Bunzip(self._raw)
        self._head = b""
        while len(self._head) < HEAD_BYTES and (block := self._read(HEAD_BYTES - len(self._head))):
            self._head += block

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    @property
    def head(self) -> bytes:
        """The beginning of the content, up to :data:`HEAD_BYTES`."""
        return self._head

    def read(self, size: int = BLOCK_BYTES) -> bytes:
        """Return the next bytes of the content, b"" at its end. The first bytes are those of :attr:`head`."""
        if self._head:
            block, self._head = self._head, b""
        else:
            block = self._read(size)
        if self._progress and block:
            self._progress(self._raw.tell(), self.size)
        return block

    def _read(self, size: int) -> bytes:
        if self.fault:
            return b""
        try:
            return self._unpack.read(size) if self._unpack else self._raw.read(size)
        except (EOFError, OSError, zlib.error) as e:
            self.fault = f"the {'compressed stream' if self._unpack else 'file'} is damaged from here on: {e}"
            return b""


class _Gunzip:
    """A gzip stream that returns all content before the damage, unlike :class:`gzip.GzipFile`."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._packed = b""
        self._member = zlib.decompressobj(wbits=_GZIP)

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, b"" at the end of the stream.

        Raises:
            EOFError: the stream is cut off.
            zlib.error: the stream is damaged.
        """
        while True:
            if self._member.eof:
                self._packed = self._member.unused_data or self._raw.read(_PACKED_BYTES)
                if not self._packed.strip(b"\0"):  # zero padding, as tapes have it
                    return b""
                self._member = zlib.decompressobj(wbits=_GZIP)
            self._packed = self._packed or self._raw.read(_PACKED_BYTES)
            if not self._packed:
                raise EOFError("it ends early")
            block = self._member.decompress(self._packed, size)
            self._packed = self._member.unconsumed_tail
            if block:
                return block


class _Bunzip:
    """A bzip2 file, one stream or several, that returns all content before the damage, unlike :class:`bz2.BZ2File`."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._stream = bz2.BZ2Decompressor()

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, b"" at the end of the file.

        Raises:
            EOFError: the stream is cut off.
            OSError: the stream is damaged.
        """
        while True:
            packed = b""
            if self._stream.eof:
                packed = self._stream.unused_data or self._raw.read(_PACKED_BYTES)
                if not packed.strip(b"\0"):
                    return b""
                self._stream = bz2.BZ2Decompressor()
            elif self._stream.needs_input:
                packed = self._raw.read(_PACKED_BYTES)
                if not packed:
                    raise EOFError("it ends early")
            if block := self._stream.decompress(packed, size):
                return block


def content_hash(path: Path) -> str:
    """Return the SHA-256 of the stored file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def recognise(source: Source) -> Format:
    """Return the format of a file, by its content.

    Raises:
        DataError: tilewise does not import the format.
    """
    head = source.head.removeprefix(codecs.BOM_UTF8)
    if head.startswith(b"PAR1"):
        return "parquet"
    text = head.lstrip()
    if not text:
        return "log"
    columns = {c.strip(b' \t\r"') for c in text.split(b"\n", 1)[0].split(b",")}
    if {b"kernel", b"kernel_name"} & columns and len(columns) > 2:
        return "csv"
    if text[:1] == b"{" and (b'"kernel_config"' in text or re.match(rb'\{\s*"(metadata|results)"', text)):
        return "json"
    if b'"perf_result"' in text or _SHAPE.search(text):
        return "log"
    if _FIND_DB.search(text):
        return "find database"
    first = text.split(b"\n", 1)[0][:60].decode(errors="replace")
    raise DataError(
        f"{source.path}: not a format that tilewise imports (CK Tile's benchmark CSV, benchmark JSON or streaming log, "
        f"MIOpen's find database, or a parquet table of measurements); it begins with {first!r}"
    )


class LineBlocks:
    """The content in blocks of whole lines.

    Iteration yields (number of the first line, bytes). It leaves out lines of more than :data:`MAX_LINE_BYTES` and adds
    their numbers and beginnings to `overlong`.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self.overlong: list[tuple[int, bytes]] = []

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        line, rest, is_skipping = 1, b"", False
        while block := self._source.read():
            if is_skipping:
                end = block.find(b"\n")
                if end < 0:
                    continue
                block, is_skipping, line = block[end + 1 :], False, line + 1
            block = rest + block
            end = block.rfind(b"\n") + 1
            rest = block[end:]
            if end:
                yield from self._whole(line, block[:end])
                line += block.count(b"\n", 0, end)
            if len(rest) > MAX_LINE_BYTES:
                self.overlong.append((line, rest[:MAX_LINE_BYTES]))
                rest, is_skipping = b"", True
        if rest:
            yield from self._whole(line, rest + b"\n")

    def _whole(self, line: int, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the block without overlong lines."""
        if not _has_long_line(block):
            yield line, block
            return
        first, kept_lines = line, list[bytes]()
        for number, text in enumerate(block.split(b"\n")[:-1], line):
            if len(text) <= MAX_LINE_BYTES:
                kept_lines.append(text + b"\n")
                continue
            self.overlong.append((number, text))
            if kept_lines:
                yield first, b"".join(kept_lines)
            first, kept_lines = number + 1, []
        if kept_lines:
            yield first, b"".join(kept_lines)


def _has_long_line(block: bytes) -> bool:
    at = 0
    while len(block) - at > MAX_LINE_BYTES:
        end = block.rfind(b"\n", at, at + MAX_LINE_BYTES + 1)
        if end < 0:
            return True
        at = end + 1
    return False


class TextWindow:
    """A window of text that moves forward over the content and knows its line numbers.

    Bytes that are not UTF-8 become U+FFFD, so they break no other part than their own.

    Attributes:
        text: the text in the window.
        over: whether the window has reached the end of the content.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._line, self._counted = 1, 0
        self.text = ""
        self.over = False

    def more(self, size: int = BLOCK_BYTES) -> bool:
        """Append the next block; return False at the end of the content."""
        if self.over:
            return False
        block = self._source.read(size)
        self.over = not block
        self.text += self._decoder.decode(block, final=self.over)
        return True

    def line_at(self, at: int) -> int:
        """Return the line of a position in `text`. Positions must not decrease between calls."""
        self._line += self.text.count("\n", self._counted, at)
        self._counted = max(self._counted, at)
        return self._line

    def drop(self, at: int) -> None:
        """Drop the text before position `at`, which becomes position 0."""
        self.line_at(at)
        self.text = self.text[at:]
        self._counted = 0
