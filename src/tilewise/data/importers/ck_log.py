"""CK Tile's streaming log: free text with ``Shape`` lines, each followed by JSON objects over several lines.

Read in a window that moves forward, so a log of any size takes the same memory. An object begins at a line that begins
with a brace. One that is no JSON ends where the next object or Shape line begins, so a torn object costs itself only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tilewise.data.importers._base import Block, Loss, Reader, Records, coded, cut, number
from tilewise.data.importers.source import Source, TextWindow
from tilewise.errors import DataError
from tilewise.ops import Target

_START = re.compile(r"^[ \t\r]*(?:(Shape\b[^\n]*)|[\[,]?[ \t]*(\{))", re.MULTILINE)
_NEXT = re.compile(r"[ \t\r,\]]*(\{)")
_SHAPE = re.compile(r"Shape \d+:((?:\s+\w+=\S+)+)\s*")
_DECODE = json.JSONDecoder().raw_decode
_AHEAD = 1 << 16  # characters in the window beyond an object's beginning, so that a whole one is in it
MAX_OBJECT = 1 << 20  # characters
ROWS = 1 << 13  # records a block
_LETTERS = {"RowMajor": "r", "ColumnMajor": "c", "R": "r", "C": "c"}
_NEEDED = ("m", "n", "k")


def read_log(source: Source, target: Target) -> Reader:
    """The records of a log.

    Raises:
        DataError: the target is no matrix product.
    """
    if target.op != "gemm":
        raise DataError(f"{source.path}: a streaming log is one of gemm, not of {target.op}; say op=gemm and its dtype")
    rows = _Rows(target)
    for part in _parts(TextWindow(source)):
        rows.take(part)
        if len(rows) >= ROWS:
            yield rows.block()
    yield rows.block()


class _Part(NamedTuple):
    """A Shape line, or an object: `value` is None where it is no JSON."""

    line: int
    text: str
    value: Any = None
    is_shape: bool = False
    fault: str = ""


def _parts(window: TextWindow) -> Iterator[_Part]:
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
    """Nothing begins in the window: keep its last line, of which more may come, unless that is too long to be one."""
    last = window.text.rfind("\n", at) + 1 or at
    if len(window.text) - last > MAX_OBJECT:
        last = len(window.text) - 1  # the rest of this line begins with no brace
    window.drop(last)
    window.more()
    return 0


def _object(window: TextWindow, brace: int) -> tuple[_Part | None, int, int | None]:
    """The object at a brace, where to go on, and the brace of one that follows on the same line.

    No part where the window was too short: then it is longer now, and the brace is given back.
    """
    text = window.text
    fault = ""
    try:
        value, end = _DECODE(text, brace)
    except json.JSONDecodeError as e:
        fault = f"no JSON object: {e.msg}"
    except (ValueError, RecursionError) as e:
        fault = f"no JSON object: {str(e).splitlines()[0]}"
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
    """Records in the making."""

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
    wrong_shape: str = ""

    def __len__(self) -> int:
        return len(self.line) + len(self.losses)

    def take(self, part: _Part) -> None:
        """One more part."""
        if part.is_shape:
            self._announce(part)
            return
        fault = part.fault or self.wrong_shape or self._add(part)
        if fault:
            self.losses.append(Loss(part.line, fault, cut(part.text)))

    def _announce(self, part: _Part) -> None:
        match = _SHAPE.fullmatch(part.text)
        self.shape, self.wrong_shape = {}, ""
        if match is None:
            self.losses.append(
                Loss(part.line, "a malformed Shape line; the objects below speak for themselves", part.text)
            )
            return
        self.shape = dict(pair.split("=", 1) for pair in match[1].split())
        dtype = self.shape.get("dtype", self.target.dtype)
        if dtype != self.target.dtype:
            self.wrong_shape = f"the Shape line says dtype={dtype}, the target is of {self.target.dtype}"

    def _add(self, part: _Part) -> str:
        """Take an object's values; what is wrong with it, if anything is."""
        value = part.value
        try:
            name, problem, result = value["name"], value["problem"], value["perf_result"]
            m, n, k = problem["m"], problem["n"], problem["k"]
            latency, tflops = result["latency(ms)"], result["tflops(TFlops)"]
            split_k = problem.get("split_k", 1)
        except (KeyError, TypeError, AttributeError) as e:
            return f"the object has no {e}" if isinstance(e, KeyError) else "the object is no measurement"
        if type(name) is not str:
            return f"name must be a text, got {str(name)[:40]!r}"
        for size in (m, n, k):
            if type(size) is not int or not 0 < size < 1 << 62:
                return f"m, n and k must be positive whole numbers, got {str(size)[:40]!r}"
        if split_k != 1:
            return f"split_k is {str(split_k)[:40]}: only unsplit launches are imported"
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

    def _agrees(self, problem: dict[str, Any], m: int, n: int, k: int) -> tuple[str, str]:
        """Whether an object agrees with its Shape line and the target; (fault, layout)."""
        shape = self.shape
        for key, size in (("M", m), ("N", n), ("K", k)):
            if key in shape and shape[key] != str(size):
                return f"{key.lower()} is {size}, the Shape line above says {shape[key]}", ""
        dtype = problem.get("dtype_a", self.target.dtype)
        if dtype != self.target.dtype:
            return f"dtype_a is {str(dtype)[:40]!r}, the target is of {self.target.dtype}", ""
        named = (problem.get("layout_a"), problem.get("layout_b"), problem.get("layout_c"))
        try:
            layout = "".join(_LETTERS[x] for x in named if x is not None)
        except (KeyError, TypeError):
            return f"layouts must be RowMajor or ColumnMajor, got {str(named)[:80]}", ""
        if layout and "layout" in shape and layout != shape["layout"]:
            return f"the layout is {layout}, the Shape line above says {shape['layout']}", ""
        return "", layout or shape.get("layout", "")

    def block(self) -> Block:
        """What has come together; begins anew, under the same Shape line."""
        losses, self.losses = self.losses, []
        if not self.line:
            return Block(None, losses)
        texts = self.text
        problem: dict[str, Any] = {
            **{c: np.array(v, dtype=np.int64) for c, v in (("M", self.m), ("N", self.n), ("K", self.k))},
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
