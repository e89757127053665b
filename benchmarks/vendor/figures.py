"""Figures of the vendor benchmark: ratios of all problems and of slices, and of a model's selections."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.results import quantiles
from tilewise.markdown import table

MEASURED, UNSUPPORTED, FAILED = "measured", "unsupported by the vendor", "failed"
NO_KERNEL = "no valid kernel recorded"
SLICES = ("family", "size", "bound")


def summarise(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ratios of all measured problems and of each slice, and the number of problems per status."""
    measured = [e for e in result["entries"] if e["status"] == MEASURED]
    states = Counter(e["status"] for e in result["entries"])
    if left := result["problems"] - len(result["entries"]):
        states["not reached"] = left
    slices = {
        f"{name}: {label}": [e["ratio"] for e in measured if e[name] == label]
        for name in SLICES
        for label in sorted({e[name] for e in measured})
    }
    groups = {"all": [e["ratio"] for e in measured], **slices}
    return {
        "states": dict(states),
        "groups": [{"group": name, **_ratios(ratios)} for name, ratios in groups.items() if ratios],
        "backends": dict(Counter(e["backend"] for e in measured)),
        "differing": sum(bool(e["differing"]) for e in measured),
        "picks": _of_picks([e for e in measured if "pick" in e]),
    }


def _of_picks(entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the figures of the model's selections; None if no model selected."""
    ran = [e for e in entries if "pick_ms" in e]
    if not ran:
        return None
    efficiencies = [e["oracle_ms"] / e["pick_ms"] for e in ran]
    return {
        "failed": len(entries) - len(ran),
        "efficiency": {"mean": statistics.fmean(efficiencies), **quantiles(efficiencies), "min": min(efficiencies)},
        "vendor": _ratios([e["vendor_ms"] / e["pick_ms"] for e in ran]),
    }


def _ratios(ratios: Sequence[float]) -> dict[str, float]:
    return {
        **quantiles(ratios),
        "min": min(ratios),
        "max": max(ratios),
        "won": sum(r > 1 for r in ratios) / len(ratios),
        "within": sum(r > 1 / 1.05 for r in ratios) / len(ratios),
    }


RATIO_HEADER = ("problems", "geomean", "P10", "median", "P90", "least", "won", "within 5 %")


def ratio_cells(group: Mapping[str, Any]) -> list[str]:
    """Return the cells under :data:`RATIO_HEADER`."""
    figures = (f"{group[k]:.2f}" for k in ("geomean", "p10", "median", "p90", "min"))
    return [str(group["n"]), *figures, f"{group['won']:.0%}", f"{group['within']:.0%}"]


PICK_HEADER = ("problems", "pick / oracle: mean", "median", "P10", "least", "vendor / pick: geomean", "P10", "won")


def pick_cells(picks: Mapping[str, Any]) -> list[str]:
    """Return the cells under :data:`PICK_HEADER`: percent of the oracle in the same run, ratios of times."""
    efficiency, rival = picks["efficiency"], picks["vendor"]
    shares = (f"{efficiency[k]:.2%}" for k in ("mean", "median", "p10", "min"))
    return [str(rival["n"]), *shares, f"{rival['geomean']:.2f}", f"{rival['p10']:.2f}", f"{rival['won']:.0%}"]


def text(result: Mapping[str, Any]) -> str:
    """Return the result as Markdown tables, with the unmeasured problems below."""
    s = summarise(result)
    rows = [[g["group"], *ratio_cells(g)] for g in s["groups"]]
    counts = ", ".join(f"{n} {state}" for state, n in sorted(s["states"].items()))
    picked = s["picks"]
    tables = [table([result["target"], *RATIO_HEADER], rows)]
    if picked:
        tables.append(table([result["target"], *PICK_HEADER], [["the model's picks", *pick_cells(picked)]]))
        counts += f"; {picked['failed']} picks failed" if picked["failed"] else ""
    return "\n".join([*tables, counts, ""])
