"""Plots of measurements as small PNG files: one per figure, op and arch, with a panel for each of their targets.

Thousands of problems are counted in cells, not drawn one over the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, MultipleLocator

from tilewise.arch import load_arch
from tilewise.data.describe._description import LONG_MS, Description, best_subset
from tilewise.plot_style import INK, OTHER, PALETTE, SMALL, draw_density, figure_file

_COLUMNS = 3
_PANEL, _LEGEND = (3.9, 3.3), 2.2  # inches
_MOST_VALIDATION = 80  # problems that are drawn one by one
_CELL = 2  # octaves of a region
_FEWEST = 3  # problems of a region that is shown
_MOST_NAMES = len(PALETTE)  # pipelines or solvers with a colour of their own
_MOST_REASONS = 7
_MOST_KERNELS = 60
_BINS = 24


def write_plots(described: Sequence[Description], folder: Path) -> list[Path]:
    """Write ``{figure}_{op}_{arch}.png`` for every figure of :data:`FIGURES`; return the paths in this order."""
    groups: dict[str, list[Description]] = {}
    for d in described:
        groups.setdefault(f"{d.target.op}_{d.target.arch}", []).append(d)
    return [
        _write_panels(draw, shown, folder / f"{name}_{group}.png")
        for name, (_, draw, has_data) in FIGURES.items()
        for group in sorted(groups)
        if (shown := [d for d in groups[group] if has_data(d)])
    ]


_Draw = Callable[[Axes, Description, Sequence[Description]], None]  # draws one target; the last argument has all


def _coverage(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    p = d.problems
    draw_density(axes, p["intensity"], p["flops"], "problems")
    some = p[p["validation"]]
    some = some.iloc[:: max(1, -(-len(some) // _MOST_VALIDATION))]
    axes.scatter(
        some["intensity"], some["flops"], s=9, marker="D", facecolors="none", edgecolors=PALETTE[1], linewidths=0.6,
        label="validation problems (some)",
    )  # fmt: skip
    axes.axvline(_ridge(d), color=INK, linewidth=1, linestyle="--", label="left: bound by memory")
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP/byte", ylabel="FLOPs")


def _roofline(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    arch, p = load_arch(d.target.arch), d.problems.dropna(subset="tflops")
    draw_density(axes, p["intensity"], p["tflops"], "problems")
    peak = arch.peak(d.target.dtype)
    x = np.array([min(p["intensity"].min(), _ridge(d)), _ridge(d), max(p["intensity"].max(), _ridge(d))])
    axes.plot(x, np.minimum(peak, x * arch.dram_gb_s / 1e3), color=PALETTE[1], linewidth=1.5, label="roof")
    axes.set(xscale="log", yscale="log", xlabel="arithmetic intensity, FLOP/byte", ylabel="TFLOPS of the best kernel")


def _regions(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    """Draw the winners of each region as a stacked bar in its place."""
    names = _winners(panels)
    p = d.problems.dropna(subset="tflops")
    found = pd.DataFrame({axis: np.log2(p[axis].astype(float)) // _CELL for axis in ("m", "n")})
    found["name"] = [n if n in names else "others" for n in map(_name, p["pipeline"])]
    counts = found.value_counts().unstack(fill_value=0)
    counts = counts[counts.sum(axis=1) >= _FEWEST]
    shares = counts.div(counts.sum(axis=1), axis=0)
    x, y = (_CELL * counts.index.get_level_values(axis).to_numpy() for axis in ("m", "n"))
    bottom = y.copy()
    for colour, name in zip([*PALETTE[: len(names)], OTHER], [*names, "others"], strict=True):
        height = 0.9 * _CELL * shares.get(name, pd.Series(0.0, counts.index)).to_numpy()
        if height.any():
            axes.bar(x, height, 0.9 * _CELL, bottom, align="edge", color=colour, linewidth=0, label=name)
        bottom = bottom + height
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(2 * _CELL))
        axis.set_major_formatter(lambda octave, _: _power_of_two(int(octave)))
    axes.set(xlabel="rows of the (implicit) product", ylabel="columns, of one group")


def _power_of_two(octave: int) -> str:
    unit = min(octave // 10, 2)
    return f"{2 ** (octave - 10 * unit)}{('', 'K', 'M')[unit]}" if octave >= 0 else ""


def _winners(panels: Sequence[Description]) -> list[str]:
    """Return the pipelines (or solvers) that win most often in all panels, as many as have a colour of their own."""
    wins = pd.concat([d.problems["pipeline"].dropna() for d in panels]).map(_name).value_counts()
    return [str(name) for name in wins.index[:_MOST_NAMES]]


def _name(pipeline: object) -> str:
    return str(pipeline).removeprefix("miopen_").removeprefix("Conv")


def _concentration(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    valid = d.efficiency[d.efficiency.max(axis=1) > 0]
    wins = np.sort(np.bincount(valid.argmax(axis=1), minlength=valid.shape[1]))[::-1]
    count = min(_MOST_KERNELS, len(wins))
    k = np.arange(1, count + 1)
    axes.plot(k, 100 * best_subset(valid, count), color=PALETTE[0], label="best of k, mean efficiency")
    axes.plot(k, 100 * wins.cumsum()[:count] / wins.sum(), color=PALETTE[1], label="problems won by k")
    axes.text(
        0.98, 0.04, f"{(wins > 0).sum()} of {len(wins)} kernels win somewhere", ha="right", transform=axes.transAxes
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="kernels k, best ones first", ylabel="%", ylim=(0, 102))


def _failures(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    top = d.failures.head(_MOST_REASONS).iloc[::-1]
    labels = [
        _short(r if s == "unsupported" else f"{s}: {r}") for s, r in zip(top["status"], top["reason"], strict=True)
    ]
    colours = [OTHER if s == "unsupported" else PALETTE[1] for s in top["status"]]
    share = 100 * top["rows"].to_numpy() / d.rows
    axes.barh(range(len(top)), share, color=colours, height=0.55)
    for i, (label, value) in enumerate(zip(labels, share, strict=True)):
        axes.text(0, i + 0.36, f"{label}  {value:.2g} %", va="center", fontsize=SMALL)
    failed = d.rows - d.by_status.get("ok", 0) - d.by_status.get("unsupported", 0)
    for colour, label in ((OTHER, "unsupported, by a rule"), (PALETTE[1], "failed")):
        axes.add_patch(Rectangle((0, 0), 0, 0, color=colour, label=label))
    axes.set(xlabel=f"rows, %; {failed:,} failed", yticks=[], ylim=(-0.5, _MOST_REASONS + 0.6))


def _noise(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    s = d.samples
    _quantile_lines(axes, s["latency_ms"] * 1e3, 100 * s["spread"], PALETTE[0], "samples, (p80 - p20) / p50")
    if len(d.pairs):
        difference = 100 * (d.pairs["latency_ms_again"] / d.pairs["latency_ms"] - 1).abs()
        _quantile_lines(axes, d.pairs["latency_ms"] * 1e3, difference, PALETTE[1], "another run, apart")
    axes.axvline(LONG_MS * 1e3, color=INK, linewidth=0.8, linestyle="--")
    axes.set(xscale="log", yscale="log", xlabel="latency, us", ylabel="% (lines: median; dotted: P90)")


def _repeat(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    pairs = d.pairs[d.pairs["run_id"] < d.pairs["run_id_again"]]  # each pair once, so that a shift between runs shows
    ratio, long = pairs["latency_ms_again"] / pairs["latency_ms"], pairs["latency_ms"] >= LONG_MS
    bins = np.linspace(-8, 8, 65)
    for some, colour, name in ((~long, PALETTE[1], "below 20 us"), (long, PALETTE[0], "20 us and more")):
        values = np.clip(100 * (ratio[some] - 1), bins[0], bins[-1])
        if len(values):
            weights = np.full(len(values), 100 / len(values))
            axes.hist(values, bins=list(bins), weights=weights, histtype="step", color=colour, label=name)
    if d.repeats:
        text = f"oracle changes: {d.repeats.changed:.1%}\ncosts {d.repeats.cost:.2%}"
        axes.text(0.98, 0.6, text, ha="right", transform=axes.transAxes)
    axes.set(xlabel="latency of the second run / of the first - 1, %", ylabel="kernels measured twice, %")


def _pool(axes: Axes, d: Description, panels: Sequence[Description]) -> None:
    valid = d.efficiency[d.efficiency.max(axis=1) > 0]
    _cumulative(axes, valid[valid > 0], PALETTE[1], "any kernel")
    median = np.array([np.median(row[row > 0]) for row in valid])
    _cumulative(axes, median, PALETTE[3], "median kernel of each problem")
    fixed = int(valid.mean(axis=0).argmax())
    _cumulative(axes, valid[:, fixed], PALETTE[0], "the one best kernel for all")
    axes.set(xlabel="efficiency, % of the problem's best", ylabel="share, %", xlim=(0, 101), ylim=(0, 101))


def _always(d: Description) -> bool:
    return True


# name -> (title, function that draws a panel, predicate that selects targets with data to show)
FIGURES: dict[str, tuple[str, _Draw, Callable[[Description], bool]]] = {
    "coverage": ("Coverage of the shape space", _coverage, _always),
    "roofline": ("The best kernels and the roofline", _roofline, _always),
    "regions": ("Which kernel is best where", _regions, _always),
    "concentration": ("How many kernels win", _concentration, _always),
    "pool": ("How much a bad choice costs", _pool, _always),
    "failures": ("Rows without a time", _failures, lambda d: len(d.failures) > 0),
    "noise": ("Noise by latency", _noise, lambda d: len(d.samples) > 0),
    "repeat": ("Another run of the same problems", _repeat, lambda d: len(d.pairs) > 0),
}


def _write_panels(draw: _Draw, described: Sequence[Description], path: Path) -> Path:
    columns = min(_COLUMNS, len(described))
    rows = -(-len(described) // columns)
    with figure_file(path, columns * _PANEL[0] + _LEGEND, rows * _PANEL[1]) as figure:
        for i, d in enumerate(described):
            axes = figure.add_subplot(rows, columns, i + 1)
            axes.set_title(f"{d.target.variant} {d.target.dtype} {d.target.arch}")
            draw(axes, d, described)
        _add_legend(figure)
    return path


def _add_legend(figure: Figure) -> None:
    """Draw one legend of all panels, beside them."""
    found = [axes.get_legend_handles_labels() for axes in figure.axes]
    legend = {label: handle for handles, labels in found for handle, label in zip(handles, labels, strict=True)}
    if legend:
        legend |= {name: legend.pop(name) for name in ("others",) if name in legend}  # last
        figure.legend(legend.values(), legend.keys(), loc="outside right upper", handlelength=1.2)


def _ridge(d: Description) -> float:
    """Return the FLOP per byte above which arithmetic is the limit."""
    arch = load_arch(d.target.arch)
    return arch.peak(d.target.dtype) * 1e3 / arch.dram_gb_s


def _quantile_lines(axes: Axes, x: pd.Series, y: pd.Series, colour: str, label: str) -> None:
    """Draw median and P90 of y over logarithmic bins of x with at least 20 values."""
    edges = np.geomspace(x.min(), x.max() * 1.001, _BINS + 1)
    groups = y.groupby(np.digitize(x, edges))
    enough = groups.size()[groups.size() >= 20].index
    centre = np.sqrt(edges[enough - 1] * edges[np.minimum(enough, _BINS)])
    for q, style in ((0.5, "-"), (0.9, ":")):
        values = groups.quantile(q)[enough].clip(lower=0.01)
        axes.plot(centre, values, color=colour, linestyle=style, label=label if q == 0.5 else None)


def _cumulative(axes: Axes, values: npt.NDArray[np.float64], colour: str, label: str) -> None:
    ordered = np.sort(values)
    at = np.linspace(0, len(ordered) - 1, min(len(ordered), 500)).astype(int)
    axes.step(100 * ordered[at], 100 * (at + 1) / len(ordered), where="post", color=colour, label=label)


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
