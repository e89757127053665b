"""Reader of CK Tile's streaming log: free text with ``Shape`` lines, each followed by JSON objects over several lines.

The log is read in a window that moves forward, so its size does not affect memory. An object begins at a line that
begins with a brace. An object that is not valid JSON ends at the next object or Shape line, so damage costs only one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewise.data.importers._reader import Block, Coded, Ints, Loss, Reader, Records, coded, cut, number, split_name
from tilewise.data.importers._source import Source, TextWindow
from tilewise.errors import DataError
from tilewise.ops import Target

_START = re.compile(r"^[ \t\r]*(?:(Shape\b[^\n]*)|[\[,]?[ \t]*(\{))", re.MULTILINE)
_NEXT = re.compile(r"[ \t\r,\]]*(\{)")
_SHAPE = re.compile(r"Shape \d+:((?:\s+\w+=\S+)+)\s*")
_DECODE = json.JSONDecoder().raw_decode
_AHEAD = 1 << 16  # characters to hold beyond an object's beginning, so that it is usually complete
MAX_OBJECT = 1 << 20  # characters
ROWS = 1 << 13  # records per block
_LETTERS = {"RowMajor": "r", "ColumnMajor": "c", "R": "r", "C": "c"}

_JsonObject: TypeAlias = dict[str, Any]


def read_log(source: Source, target: Target) -> Reader:
    """Yield the records of a log.

    Raises:
        DataError: the target is not a matrix product.
    """
    if target.op != "gemm":
        raise DataError(f"{source.path}: a streaming log is for gemm, not for {target.op}; give op=gemm and its dtype")
    rows = _Rows(target)
    for part in _parts(TextWindow(source)):
        rows.add_part(part)
        if len(rows) >= ROWS:
            yield rows.block()
    yield rows.block()


class _Part(NamedTuple):
    """A Shape line or an object. A Shape line, and text that is not valid JSON, have no `value`."""

    line: int
    text: str
    value: _JsonObject | None = None
    is_shape: bool = False
    fault: str = ""


def _parts(window: TextWindow) -> Iterator[_Part]:
    """Yield the Shape lines and objects of a log in order."""
    at = 0
    while True:
        if len(window.text) - at < _AHEAD and not window.over:
            window.drop(at)
            at = 0
            window.more()
            continue
        match = _START.search(window.text, at)
        if match is None:
            if window.over:
                return
            at = _skip_text(window, at)
            continue
        if match[1] is not None:
            if match.end() == len(window.text) and not window.over:  # the line may go on
                window.drop(match.start())
                at = 0
                window.more()
                continue
            yield _Part(window.line_at(match.start(1)), match[1], is_shape=True)
            at = match.end()
            continue
        brace: int | None = match.start(2)
        while brace is not None:
            part, at, brace = _object(window, brace)
            if part is not None:
                yield part


def _skip_text(window: TextWindow, at: int) -> int:
    """Drop text without a beginning of a part, except the last line, which may go on; return the new position.

    Of a last line that is too long, only the last character remains.
    """
    last = window.text.rfind("\n", at) + 1 or at
    if len(window.text) - last > MAX_OBJECT:
        last = len(window.text) - 1  # so that the rest of the line is not taken for a new line
    window.drop(last)
    window.more()
    return 0


def _object(window: TextWindow, brace: int) -> tuple[_Part | None, int, int | None]:
    """Return the object at a brace, the position after it, and the brace of the next object on the same line.

    If the window was too short, extend it and return no part, with the brace's new position.
    """
    text = window.text
    fault = ""
    try:
        value, end = _DECODE(text, brace)
    except json.JSONDecodeError as e:
        fault = f"not a JSON object: {e.msg}"
    except (ValueError, RecursionError) as e:
        fault = f"not a JSON object: {str(e).splitlines()[0]}"
    if not fault:
        following = _NEXT.match(text, end)
        part = _Part(window.line_at(brace), text[brace:end], value)
        return part, end, following.start(1) if following else None
    other = _START.search(text, brace + 1)
    if other is None and not window.over and len(text) - brace <= MAX_OBJECT:
        window.drop(brace)
        window.more()
        return None, 0, 0
    end = other.start() if other else min(len(text), brace + MAX_OBJECT)
    return _Part(window.line_at(brace), cut(text[brace:end].rstrip()), fault=fault), max(end, brace + 1), None


@dataclass
class _Rows:
    """The records and losses collected for the next block, and the Shape line that applies.

    Attributes:
        shape: pairs of the Shape line.
        shape_fault: the reason why the Shape line contradicts the target, "" if it does not.
    """

    target: Target
    line: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    layout: list[str] = field(default_factory=list)
    m: list[int] = field(default_factory=list)
    n: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    tflops: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    shape: dict[str, str] = field(default_factory=dict)
    shape_fault: str = ""

    def __len__(self) -> int:
        return len(self.line) + len(self.losses)

    def add_part(self, part: _Part) -> None:
        """Add a part as a record or a loss, or note a Shape line."""
        if part.is_shape:
            self._note_shape(part)
            return
        fault = part.fault or self.shape_fault or self._add(part)
        if fault:
            self.losses.append(Loss(part.line, fault, cut(part.text)))

    def _note_shape(self, part: _Part) -> None:
        match = _SHAPE.fullmatch(part.text)
        self.shape, self.shape_fault = {}, ""
        if match is None:
            self.losses.append(
                Loss(part.line, "a malformed Shape line; the objects below are read without it", part.text)
            )
            return
        self.shape = dict(pair.split("=", 1) for pair in match[1].split())
        dtype = self.shape.get("dtype", self.target.dtype)
        if dtype != self.target.dtype:
            self.shape_fault = f"the Shape line states dtype={dtype}, but the target is of {self.target.dtype}"

    def _add(self, part: _Part) -> str:
        """Add an object's values as a record; return its fault, "" if it has none."""
        value: Any = part.value
        try:
            name, problem, result = value["name"], value["problem"], value["perf_result"]
            m, n, k = problem["m"], problem["n"], problem["k"]
            latency, tflops = result["latency(ms)"], result["tflops(TFlops)"]
            split_k = problem.get("split_k")
        except (KeyError, TypeError, AttributeError) as e:
            return f"the object has no {e}" if isinstance(e, KeyError) else "the object is not a measurement"
        if type(name) is not str:
            return f"name must be a text, got {str(name)[:40]!r}"
        for size in (m, n, k):
            if type(size) is not int or not 0 < size < 1 << 62:
                return f"m, n and k must be positive whole numbers, got {str(size)[:40]!r}"
        name, fault = split_name(name, split_k)
        if fault:
            return fault
        fault, layout = self._agrees(problem, m, n, k)
        if fault:
            return fault
        self.line.append(part.line)
        self.name.append(name)
        self.layout.append(layout)
        self.m.append(m)
        self.n.append(n)
        self.k.append(k)
        self.latency.append(latency if type(latency) is float else number(latency))
        self.tflops.append(tflops if type(tflops) is float else number(tflops))
        self.text.append(part.text)
        return ""

    def _agrees(self, problem: _JsonObject, m: int, n: int, k: int) -> tuple[str, str]:
        """Compare an object with its Shape line and the target; return its fault ("" if it agrees) and its layout."""
        shape = self.shape
        for key, size in (("M", m), ("N", n), ("K", k)):
            if key in shape and shape[key] != str(size):
                return f"{key.lower()} is {size}, the Shape line above states {shape[key]}", ""
        dtype = problem.get("dtype_a", self.target.dtype)
        if dtype != self.target.dtype:
            return f"dtype_a is {str(dtype)[:40]!r}, but the target is of {self.target.dtype}", ""
        named = (problem.get("layout_a"), problem.get("layout_b"), problem.get("layout_c"))
        try:
            layout = "".join(_LETTERS[x] for x in named if x is not None)
        except (KeyError, TypeError):
            return f"layouts must be RowMajor or ColumnMajor, got {str(named)[:80]}", ""
        if layout and "layout" in shape and layout != shape["layout"]:
            return f"the layout is {layout}, the Shape line above states {shape['layout']}", ""
        return "", layout or shape.get("layout", "")

    def block(self) -> Block:
        """Return the collected records and losses, and start the next block under the same Shape line."""
        losses, self.losses = self.losses, []
        if not self.line:
            return Block(None, losses)
        texts = self.text
        problem: dict[str, Ints | Coded] = {
            c: np.array(v, dtype=np.int64) for c, v in (("M", self.m), ("N", self.n), ("K", self.k))
        }
        if all(self.layout):
            problem["layout"] = coded(self.layout)
        records = Records(
            np.array(self.line, dtype=np.int64),
            coded(self.name),
            problem,
            np.array(self.latency, dtype=np.float64),
            np.array(self.tflops, dtype=np.float64),
            {},
            lambda i: cut(texts[i]),
        )
        self.line, self.name, self.layout, self.m, self.n, self.k = [], [], [], [], [], []
        self.latency, self.tflops, self.text = [], [], []
        return Block(records, losses)
