"""Tables of the figures of :mod:`benchmarks.networks.compare`, by predictions and by measuring."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from tilewise.markdown import table

SUMMARY_HEADER = ("mode", "batch", "networks", "geomean", "least", "network of the least")
_MOST_ERROR = "error, tilewise / PyTorch"


def text(result: Mapping[str, Any]) -> str:
    """Return the summary of each mode and batch size, then all cells by network."""
    cells = [cell for cell in result["cells"] if "ratio" in cell]
    modes = list(dict.fromkeys(cell["mode"] for cell in cells))
    parts = [table(SUMMARY_HEADER, [row for mode in modes for row in summary(cells, mode)])]
    parts += [f"**{mode}**\n\n{_networks([c for c in cells if c['mode'] == mode])}" for mode in modes]
    failed = [cell for cell in result["cells"] if "ratio" not in cell]
    parts += [f"`{c['network']}`, batch {c['batch']}, {c['mode']}: {c['error']}" for c in failed]
    return "\n\n".join(parts)


def measured_text(result: Mapping[str, Any]) -> str:
    """Return both ratios of the networks with a cell by predictions and one by measuring, and the seconds it took."""
    cells = {(cell["network"], cell["mode"]): cell for cell in result["cells"]}
    names = [name for name in dict.fromkeys(name for name, _ in cells) if (name, "graphs-measured") in cells]
    pairs = [(name, cells[name, "graphs"], cells[name, "graphs-measured"]) for name in names]
    rows = [[n, f"{a['ratio']:.2f}", f"{b['ratio']:.2f}", f"{b['optimize_s']:.0f}"] for n, a, b in pairs]
    means = [f"{geometric_mean(pair[i]['ratio'] for pair in pairs):.2f}" for i in (1, 2)]
    return table(("network", "predicted", "measured", "seconds"), [*rows, ["geometric mean", *means, ""]])


def summary(cells: Sequence[Mapping[str, Any]], mode: str) -> list[list[str]]:
    """Return a row for each batch size of a mode: geometric mean and least of PyTorch's time / tilewise's."""
    rows = []
    for batch in sorted({c["batch"] for c in cells if c["mode"] == mode}):
        of_batch = [c for c in cells if (c["mode"], c["batch"]) == (mode, batch)]
        geomean = geometric_mean(c["ratio"] for c in of_batch)
        least = min(of_batch, key=lambda c: c["ratio"])
        figures = [f"{geomean:.2f}", f"{least['ratio']:.2f}", least["network"]]
        rows.append([mode, str(batch), str(len(of_batch)), *figures])
    return rows


def _networks(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return PyTorch's time / tilewise's by network and batch size, with replaced layers, largest error and dates."""
    batches = sorted({c["batch"] for c in cells})
    header = ["network", "layers", *(f"{b}: ratio (replaced)" for b in batches), _MOST_ERROR, "measured"]
    rows = []
    for name in dict.fromkeys(c["network"] for c in cells):
        by_batch = {c["batch"]: c for c in cells if c["network"] == name}
        shown = [f"{c['ratio']:.2f} ({c['replaced']})" if (c := by_batch.get(b)) else "" for b in batches]
        layers = next(iter(by_batch.values()))["layers"]
        dates = sorted({c["date"] for c in by_batch.values()})
        rows.append([name, str(layers), *shown, _error(list(by_batch.values())), ", ".join(dates)])
    return table(header, rows)


def _error(cells: Sequence[Mapping[str, Any]]) -> str:
    """Return the largest ratio of both sides' errors; "" where the exact result is zero."""
    ratios = [c["tilewise_error"] / c["pytorch_error"] for c in cells if c["pytorch_error"]]
    return "" if any(map(math.isnan, ratios)) or not ratios else f"{max(ratios):.2f}"
