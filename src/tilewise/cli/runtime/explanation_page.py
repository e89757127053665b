"""One self-contained HTML page about a decision, for ``tilewise explain html=FILE``.

The page has no script and asks no other host for anything, so that it works offline, as an attachment, and in MLflow.
Its colours follow the reader's light or dark mode, and pairs of them differ in brightness as well as in hue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

WIDTH = 760  # of a picture, in pixels of its view box
_ROW = 22
_NAMES = 330  # pixels for the names beside bars
_DECADE = 10.0


@dataclass(frozen=True)
class Ranked:
    """A kernel of the ranking.

    Attributes:
        name: its configuration.
        predicted: TFLOPS by the model; None without one.
        measured: TFLOPS in the measurements; None if it was not measured.
        in_pytorch: whether PyTorch makes this call by itself.
    """

    name: str
    predicted: float | None
    measured: float | None
    in_pytorch: bool


@dataclass(frozen=True)
class Nearby:
    """A shape that was measured, near the problem.

    Attributes:
        words: its dimensions.
        distance: log2 shape distance to the problem.
        best: name of the kernel that was fastest there.
        tflops: of that kernel.
    """

    words: str
    distance: float
    best: str
    tflops: float


@dataclass(frozen=True)
class PageFacts:
    """All that the page shows besides the explanation.

    Attributes:
        words: the problem's dimensions.
        ranked: the kernels, best first.
        nearby: measured shapes, nearest first.
        flops: of the problem.
        bytes_moved: fewest bytes that the problem moves.
        peak_tflops: of the arch for the dtype.
        dram_gb_s: of the arch.
        measurements: the measurements that were looked at; "" without measurements.
    """

    words: str
    ranked: Sequence[Ranked]
    nearby: Sequence[Nearby]
    flops: float
    bytes_moved: float
    peak_tflops: float
    dram_gb_s: float
    measurements: str


def page(explanation: Mapping[str, Any], facts: PageFacts) -> str:
    """Return the page of an explanation (:meth:`tilewise.dispatch.Dispatcher.explain`)."""
    decided = explanation.get("recorded", explanation)
    title = f"{explanation['target']}: {facts.words}"
    cause = f" ({decided['cause']})" if decided["cause"] else ""
    model = "no model" if explanation["content_hash"] is None else f"model {explanation['content_hash'][:12]}"
    version = "" if explanation["model_version"] is None else f", version {explanation['model_version']}"
    source = facts.measurements or "no measurements were given (data=)"
    parts = [
        f"<h1>{escape(decided['kernel_name'])}</h1>",
        f"<p>for <b>{escape(facts.words)}</b> of <code>{escape(explanation['target'])}</code>, by "
        f"{escape(decided['why'])}{escape(cause)}; {escape(model + version)}.</p>",
        _section("Ranking", _ranking(facts.ranked), _ranking_note(facts.ranked, explanation["supported"], source)),
        _section("Place on the roofline", _roofline(facts), _roofline_note(facts)),
        _section("Features that set the first kernel apart from the second", *_features(explanation["features"])),
        _section("Nearest measured shapes", _nearby(facts.nearby), ""),
    ]
    return _DOCUMENT.format(title=escape(title), style=_STYLE, body="\n".join(parts))


def _section(title: str, picture: str, note: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n{picture}\n<p class=note>{escape(note)}</p></section>"


def _ranking(ranked: Sequence[Ranked]) -> str:
    """Return bars of predictions, with a mark where a kernel was measured."""
    most = max((v for r in ranked for v in (r.predicted, r.measured) if v is not None), default=0.0)
    if not most:
        return "<p>No model ranks the kernels.</p>"
    scale = (WIDTH - _NAMES - 70) / most
    rows = []
    for i, r in enumerate(ranked):
        y = i * _ROW
        kind = "vendor" if r.in_pytorch else "own"
        rows.append(f'<text x="{_NAMES - 8}" y="{y + 15}" text-anchor="end">{escape(r.name)}</text>')
        if r.predicted is not None:
            width = r.predicted * scale
            rows.append(f'<rect class="{kind}" x="{_NAMES}" y="{y + 4}" width="{width:.1f}" height="14"/>')
            rows.append(f'<text x="{WIDTH - 4}" y="{y + 15}" text-anchor="end">{r.predicted:.1f}</text>')
        if r.measured is not None:
            x = _NAMES + r.measured * scale
            rows.append(
                f'<line class="measured" x1="{x:.1f}" y1="{y + 1}" x2="{x:.1f}" y2="{y + 21}">'
                f"<title>measured {r.measured:.1f} TFLOPS</title></line>"
            )
    return _svg(len(ranked) * _ROW + 4, rows, "Predicted TFLOPS of the kernels, best first")


def _ranking_note(ranked: Sequence[Ranked], supported: int, source: str) -> str:
    """Return how to read the bars, and where the vendor's call stands."""
    vendor = next((i for i, r in enumerate(ranked, 1) if r.in_pytorch), None)
    place = f" PyTorch's own call is in place {vendor}." if vendor else ""
    return (
        f"Bars: predicted TFLOPS of the best {len(ranked)} of {supported} kernels; light bars are calls that PyTorch "
        f"makes by itself. Strokes: measured, from {source}.{place}"
    )


def _roofline(facts: PageFacts) -> str:
    """Return the problem's intensity under the roofline of the arch, on logarithmic axes."""
    left, top, height = 60, 14, 240
    intensity = facts.flops / facts.bytes_moved
    ridge = facts.peak_tflops * 1e3 / facts.dram_gb_s
    low = _DECADE ** math.floor(math.log10(min(intensity, ridge) / 3))
    high = _DECADE ** math.ceil(math.log10(max(intensity, ridge) * 3))
    floor = _DECADE ** math.floor(math.log10(_attainable(low, facts) / 3))
    points = [r for r in facts.ranked if (r.measured or r.predicted) is not None][:1]

    def x(value: float) -> float:
        return left + (WIDTH - left - 20) * math.log(value / low) / math.log(high / low)

    def y(tflops: float) -> float:
        share = math.log(max(tflops, floor) / floor) / math.log(facts.peak_tflops * 1.5 / floor)
        return top + height * (1 - share)

    corners = [(low, _attainable(low, facts)), (ridge, facts.peak_tflops), (high, facts.peak_tflops)]
    line = " ".join(f"{x(i):.1f},{y(t):.1f}" for i, t in corners)
    rows = [f'<polyline class="roof" points="{line}"/>']
    rows += [_tick(x(v), top + height + 16, f"{v:g}", "middle") for v in _decades(low, high)]
    rows += [_tick(left - 6, y(v) + 4, f"{v:g}", "end") for v in _decades(floor, facts.peak_tflops)]
    bound = _attainable(intensity, facts)
    rows.append(
        f'<line class="drop" x1="{x(intensity):.1f}" y1="{y(bound):.1f}" x2="{x(intensity):.1f}" y2="{top + height}"/>'
    )
    for r in points:
        shown = r.measured if r.measured is not None else r.predicted or 0.0
        rows.append(f'<circle class="own" cx="{x(intensity):.1f}" cy="{y(shown):.1f}" r="6"/>')
        rows.append(f'<text x="{x(intensity) + 11:.1f}" y="{y(shown) + 4:.1f}">{shown:.1f}</text>')
    rows.append(_tick(WIDTH - 20, top + height + 32, "FLOPs per byte moved", "end"))
    rows.append(_tick(left, top - 3, "TFLOPS", "middle"))
    return _svg(top + height + 40, rows, "Roofline of the arch with the selected kernel")


def _attainable(intensity: float, facts: PageFacts) -> float:
    """Return the most TFLOPS at an intensity in FLOPs per byte."""
    return min(facts.peak_tflops, intensity * facts.dram_gb_s / 1e3)


def _roofline_note(facts: PageFacts) -> str:
    intensity = facts.flops / facts.bytes_moved
    bound = _attainable(intensity, facts)
    kind = "memory" if bound < facts.peak_tflops else "the matrix units"
    return f"{intensity:.1f} FLOPs per byte; at most {bound:.1f} TFLOPS, bounded by {kind}."


def _decades(low: float, high: float) -> list[float]:
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [_DECADE**n for n in range(first, last + 1)]


def _tick(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _features(features: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return a table of the features' shares, and how to read it."""
    if not features:
        return "<p>No model compares two kernels here.</p>", ""
    rows = [
        [
            f"<span title='{escape(f['meaning'], quote=True)}'>{escape(f['feature'])}</span>",
            f"{f['winner']:.4g}", f"{f['runner_up']:.4g}", f"{f['percent']:+.2f} %",
        ]
        for f in features
    ]  # fmt: skip
    note = "Exact Shapley values of replacing the second kernel's features by the first's, in percent of TFLOPS."
    return _table(("feature", "first", "second", "share"), rows), note


def _nearby(nearby: Sequence[Nearby]) -> str:
    if not nearby:
        return "<p>No measurements were given (data=).</p>"
    rows = [[escape(n.words), f"{n.distance:.2f}", escape(n.best), f"{n.tflops:.1f}"] for n in nearby]
    return _table(("shape", "log2 distance", "fastest kernel", "TFLOPS"), rows)


def _table(header: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are HTML already."""
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _svg(height: float, rows: Iterable[str], label: str) -> str:
    content = "\n".join(rows)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label, quote=True)}">\n{content}\n</svg>'
    )


_STYLE = """
:root { --text: #1b1f24; --page: #fff; --dim: #57606a; --rule: #d0d7de;
  --own: #0b4f8a; --vendor: #8cc0ea; --mark: #b35900 }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --page: #0d1117; --dim: #9aa4af; --rule: #30363d;
    --own: #58a6ff; --vendor: #23527c; --mark: #ffb366 }
}
body { color: var(--text); background: var(--page); font: 15px/1.5 system-ui, sans-serif; max-width: 860px;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.25rem; overflow-wrap: anywhere } h2 { font-size: 1.05rem; margin-top: 2rem }
svg { width: 100%; height: auto; font-size: 12px } svg text { fill: var(--text) } svg .tick { fill: var(--dim) }
.own { fill: var(--own) } .vendor { fill: var(--vendor) } .measured { stroke: var(--mark); stroke-width: 3 }
.roof { fill: none; stroke: var(--text); stroke-width: 2 } .drop { stroke: var(--dim); stroke-dasharray: 4 4 }
.note { color: var(--dim); font-size: 13px } table { border-collapse: collapse; width: 100%; font-size: 13px }
td, th { border-bottom: 1px solid var(--rule); padding: .3rem .5rem; text-align: left; overflow-wrap: anywhere }
"""
_DOCUMENT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>{style}</style></head>
<body>
{body}
</body></html>
"""
