"""The tables of docs/leaderboard.md: every method on every target, from the results of ``score`` and ``targets``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.targets import selection_ratios
from benchmarks.results import load
from tilewise.markdown import table

METHODS = ("default kernel", "most frequent winner", "cost model alone", "plain LightGBM", "tilewise", "vendor")
_EFFICIENCIES = ("mean", "p10", "min")
_RATIOS = ("geomean", "p10", "least")
_NOT_YET = "Not measured yet."
_NO_SUBMISSION = "None yet."


def blocks(results: Path) -> dict[str, str]:
    """Return the content of the page's blocks, from the result files of a folder."""
    found = [_with_tilewise(load(path), results) for path in sorted(results.glob("leaderboard_*.json"))]
    return {
        "leaderboard": _efficiencies(found) if found else _NOT_YET,
        "leaderboard-vendor": _vendor(found) if found else _NOT_YET,
        "leaderboard-submissions": _submissions(found) or _NO_SUBMISSION,
    }


def _with_tilewise(result: Mapping[str, Any], results: Path) -> dict[str, Any]:
    """Return a target's result with the row of tilewise, which another file has."""
    ours = load(results / f"target_{result['target']}.json")
    vendor = ours["vendor"]
    ratios = vendor and {"n_problems": vendor["n_problems"], **selection_ratios(vendor)}
    row = {"method": "tilewise", **ours["holdout"], "vendor": ratios}
    return {**result, "entries": [*result["entries"], row]}


def _efficiencies(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in found:
        by_method = {entry["method"]: entry for entry in result["entries"]}
        cells = [_cell(by_method.get(method)) for method in METHODS]
        rows.append([f"`{result['target']}`", str(by_method["tilewise"]["n_problems"]), *cells])
    return table(["target", "problems", *METHODS], rows)


def _cell(entry: Mapping[str, Any] | None) -> str:
    """Return mean, P10 and worst in percent; "" for a method that the target lacks."""
    if entry is None:
        return ""
    mean, p10, worst = (100 * entry[f"{name}_efficiency"] for name in _EFFICIENCIES)
    return f"{mean:.1f} / {p10:.1f} / {worst:.0f}"


def _vendor(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in found:
        ratios = {entry["method"]: entry["vendor"] for entry in result["entries"] if entry["vendor"]}
        if ratios:
            cells = [_ratio(ratios.get(method)) for method in METHODS[:-1]]
            (count, *_) = (r["n_problems"] for r in ratios.values())
            rows.append([f"`{result['target']}`", str(count), *cells])
    return table(["target", "problems", *METHODS[:-1]], rows) if rows else _NOT_YET


def _ratio(ratios: Mapping[str, float] | None) -> str:
    return " / ".join(f"{ratios[name]:.2f}" for name in _RATIOS) if ratios else ""


def _submissions(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in found:
        for entry in result["entries"]:
            if entry["method"] not in METHODS:
                name = f"[{entry['method']}]({entry['link']})" if entry["link"] else entry["method"]
                cells = [f"{entry['top1_accuracy']:.1%}", _ratio(entry["vendor"])]
                rows.append([f"`{result['target']}`", name, entry["authors"], _cell(entry), *cells])
    header = ["target", "submission", "authors", "mean / P10 / worst", "top-1", "against the vendor"]
    return table(header, rows, words=3) if rows else ""
