"""Reader of CK Tile's benchmark JSON: one object with a list of kernels, each with a list of measured problems.

One element of the list (a kernel with its problems) is in memory at a time. If an element is not valid JSON, the reader
searches it for intact pieces: its configuration and each measured problem are flat objects.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tilewise.data.importers._reader import Block, Loss, Reader, Records, coded, cut, number, split_name
from tilewise.data.importers._source import Source, TextWindow
from tilewise.errors import DataError, KernelError
from tilewise.kernels.ck import parse_name
from tilewise.ops import Target

_JsonObject: TypeAlias = dict[str, Any]

MAX_ELEMENT = 1 << 26  # characters of one kernel with its problems
_SLACK = 1 << 16  # characters; more text cannot mend an error this far from the window's end
ROWS = 1 << 14  # records per block

_DECODE = json.JSONDecoder().raw_decode
_METADATA = re.compile(r'"metadata"\s*:\s*(?=\{)')
_RESULTS = re.compile(r'"results"\s*:\s*\[')
_ELEMENT = re.compile(r'\{\s*"(?:kernel_config|benchmarks)"\s*:')
_FLAT = re.compile(r"\{[^{}]*\}?")
_OUTER = re.compile(r'\{\s*"[^"]*"\s*:\s*\[?\s*')  # an object that only holds the next object
_TILES = ("tile", "warp", "warp_tile")
_NAMED = (
    *(f"{t}_{d}" for t in _TILES for d in "mnk"),
    *("pipeline", "scheduler", "epilogue", "pad_m", "pad_n", "pad_k", "persistent"),
)
_PADS = ("pad_m", "pad_n", "pad_k")


def read_json(source: Source, target: Target) -> Reader:
    """Yield the records of a benchmark JSON.

    Raises:
        DataError: the target is not a matrix product, its dtype differs from the file's, or the list of results is
            missing.
    """
    if target.op != "gemm":
        raise DataError(f"{source.path}: a benchmark JSON is for gemm, not for {target.op}; give op=gemm and its dtype")
    window, rows = TextWindow(source), _Rows(target)
    _find_results(window, source, rows)
    for line, text, value in _elements(window, rows):
        if value is None or not rows.take_whole(line, value, text):
            rows.take_pieces(line, text)
        if len(rows) >= ROWS:
            yield rows.block()
    _check_metadata(window.text, source, rows)
    yield rows.block()


def _find_results(window: TextWindow, source: Source, rows: _Rows) -> None:
    while (match := _RESULTS.search(window.text)) is None:
        if len(window.text) > MAX_ELEMENT or not window.more():
            raise DataError(f'{source.path}: a benchmark JSON must have a list "results"')
    _check_metadata(window.text[: match.start()], source, rows)
    window.drop(match.end())


def _check_metadata(text: str, source: Source, rows: _Rows) -> None:
    """Check the dtype and note the layout of the whole file, if the metadata before or after the results state them."""
    match = _METADATA.search(text)
    if match is None:
        return
    try:
        metadata, _ = _DECODE(text, match.end())
    except (ValueError, RecursionError):
        return  # the kernels' names state them as well
    dtype, layout = metadata.get("dtype"), metadata.get("layout")
    if isinstance(dtype, str) and dtype != rows.target.dtype:
        raise DataError(
            f"{source.path}: its metadata states dtype {dtype[:40]!r}, but the target is {rows.target.name}"
        )
    if isinstance(layout, str):
        rows.layout = layout


def _elements(window: TextWindow, rows: _Rows) -> Iterator[tuple[int, str, _JsonObject | None]]:
    """Yield (line, text, value) of each element of the list; value None means that the text is not JSON."""
    while True:
        text = window.text
        at = len(text) - len(text.lstrip(" \t\r\n,"))
        if at == len(text):
            if not window.more():
                rows.losses.append(Loss(window.line_at(at), "the file ends within its list of results", ""))
                return
            continue
        if text[at] == "]":
            if _ELEMENT.search(text, at):  # a superfluous bracket
                window.drop(at + 1)
            elif len(text) > MAX_ELEMENT or not window.more():
                return
            continue
        end, value = _decode(window, at)
        text = window.text
        if value is None and not _ELEMENT.match(text, at):
            following = _ELEMENT.search(text, at)
            stray = text[at : following.start() if following else len(text)].rstrip()
            if following is None and not window.over and len(text) <= MAX_ELEMENT:
                window.more()
                continue
            if stray.strip(" \t\r\n,]}"):
                rows.losses.append(Loss(window.line_at(at), "text outside of any result", cut(stray)))
            window.drop(at + max(len(stray), 1))
            continue
        yield window.line_at(at), text[at:end], value
        window.drop(end)


def _decode(window: TextWindow, at: int) -> tuple[int, _JsonObject | None]:
    """Return (end, value) of the element at a position, or (start of the next element, None) if it is not JSON."""
    size = len(window.text)
    while True:
        text = window.text
        try:
            value, end = _DECODE(text, at)
            return (end, value) if isinstance(value, dict) else (at, None)
        except json.JSONDecodeError as e:
            is_beyond_repair = e.pos < len(text) - _SLACK
        except (ValueError, RecursionError):
            is_beyond_repair = True
        following = _ELEMENT.search(text, at + 1)
        if is_beyond_repair and following:
            return following.start(), None
        if len(text) - at > MAX_ELEMENT or window.over:
            return following.start() if following else len(text), None
        while len(window.text) < 2 * size and window.more():  # doubling bounds the number of attempts at a long element
            pass
        size = len(window.text)


@dataclass
class _Rows:
    """The records and losses collected for the next block; `layout` is the metadata's, "" if unknown."""

    target: Target
    layout: str = ""
    line: list[int] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    sizes: list[tuple[int, int, int]] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    tflops: list[float] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    outcomes: dict[int, tuple[str, str]] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.line) + len(self.losses)

    def take_whole(self, line: int, value: Mapping[str, Any], text: str) -> bool:
        """Add all measurements of an element. If anything in it is wrong, add none and return False."""
        config, benchmarks = value.get("kernel_config"), value.get("benchmarks")
        name, fault = self._kernel(config)
        if fault or not isinstance(benchmarks, list) or any(_fault(name, b) for b in benchmarks):
            return False
        lines = _lines_of(benchmarks, line, text)
        for number_, benchmark in zip(lines, benchmarks, strict=True):
            self._add(number_, name, benchmark, "")
        return True

    def take_pieces(self, line: int, text: str) -> None:
        """Add the intact measurements of an element, and the other pieces as losses."""
        name, fault, pieces = "", "an intact kernel_config must precede it", 0
        counted = 0
        for match in _FLAT.finditer(text):
            piece = match[0]
            if _OUTER.fullmatch(piece):
                continue
            line += text.count("\n", counted, match.start())
            counted = match.start()
            pieces += 1
            try:
                value = json.loads(piece)
            except (ValueError, RecursionError) as e:
                self.losses.append(Loss(line, f"not a JSON object: {str(e).split(':')[0]}", cut(piece.rstrip())))
                if '"name"' in piece or '"tile_m"' in piece:
                    name, fault = "", "its kernel_config is malformed"
                continue
            if "name" in value or "tile_m" in value:
                pieces -= 1
                name, fault = self._kernel(value)
                if fault:
                    fault = f"its kernel_config: {fault}"
                continue
            reason = fault or _fault(name, value)
            if reason:
                self.losses.append(Loss(line, reason, cut(piece)))
            else:
                self._add(line, name, value, piece)
        if not pieces and fault:
            self.losses.append(Loss(line, f"a result without a measurement; {fault}", cut(text)))

    def _kernel(self, config: object) -> tuple[str, str]:
        """Return the kernel's name and "", or the fault of its configuration."""
        if not isinstance(config, Mapping) or not isinstance(config.get("name"), str):
            return "", "kernel_config has no name"
        try:
            parsed = parse_name(config["name"])
        except KernelError:
            return config["name"], ""  # the conversion reports it for every row
        kernel = parsed.kernel
        if kernel.pipeline == "mem":  # the JSON lists these with wrong pad flags
            kernel = dataclasses.replace(kernel, pad_m=True, pad_n=True, pad_k=True)
        for key in _NAMED:
            stated, named = config.get(key), getattr(kernel, key)
            is_unreliable = kernel.pipeline == "mem" and key in _PADS
            if stated is not None and stated != named and not is_unreliable:
                return "", f"{key} is {str(stated)[:40]!r}, the kernel's name states {named!r}"
        if self.layout and kernel.gemm_layout != self.layout:
            return "", f"the metadata states layout {self.layout[:40]!r}, the kernel's name {kernel.gemm_layout}"
        return kernel.name(parsed.op, parsed.variant, parsed.dtype), ""

    def _add(self, line: int, name: str, benchmark: Mapping[str, Any], text: str) -> None:
        if benchmark.get("is_valid", True) is not True:
            self.outcomes[len(self.line)] = ("runtime_error", "the file says that the run is not valid")
        self.line.append(line)
        self.name.append(split_name(name, benchmark.get("split_k"))[0])
        self.sizes.append((benchmark["m"], benchmark["n"], benchmark["k"]))
        self.latency.append(number(benchmark.get("avg_time_ms")))
        self.tflops.append(number(benchmark.get("tflops")))
        self.text.append(text or json.dumps(benchmark)[:4096])

    def block(self) -> Block:
        """Return the collected records and losses, and start the next block."""
        losses, self.losses = self.losses, []
        if not self.line:
            return Block(None, losses)
        texts = self.text
        sizes = np.array(self.sizes, dtype=np.int64)
        records = Records(
            np.array(self.line, dtype=np.int64),
            coded(self.name),
            {name: np.ascontiguousarray(sizes[:, i]) for i, name in enumerate("MNK")},
            np.array(self.latency, dtype=np.float64),
            np.array(self.tflops, dtype=np.float64),
            self.outcomes,
            lambda i: cut(texts[i]),
        )
        self.line, self.name, self.sizes, self.outcomes = [], [], [], {}
        self.latency, self.tflops, self.text = [], [], []
        return Block(records, losses)


def _fault(name: str, benchmark: object) -> str:
    """Return the reason why a benchmark is not a measurement of the kernel, "" if it is one."""
    if not isinstance(benchmark, Mapping):
        return "a benchmark must be an object"
    for key in "mnk":
        size = benchmark.get(key)
        if type(size) is not int or not 0 < size < 1 << 62:
            return f"{key} must be a positive whole number, got {str(size)[:40]!r}"
    if not isinstance(benchmark.get("is_valid", True), bool):
        return f"is_valid must be true or false, got {str(benchmark['is_valid'])[:40]!r}"
    return split_name(name, benchmark.get("split_k"))[1]


def _lines_of(benchmarks: Sequence[object], line: int, text: str) -> list[int]:
    """Return the line of each benchmark.

    Benchmarks are the last flat objects of the element's text. If their number differs, return the element's line.
    """
    starts = [m.start() for m in _FLAT.finditer(text) if not _OUTER.fullmatch(m[0])][-len(benchmarks) or len(text) :]
    if len(starts) != len(benchmarks):
        return [line] * len(benchmarks)
    lines, counted = [], 0
    for start in starts:
        line += text.count("\n", counted, start)
        counted = start
        lines.append(line)
    return lines
