"""Fill docs/experiments.md: ``python -m benchmarks.learning.trust [REPORTS_FOLDER ...]``.

The page has figures of evaluations and of leave_family_out.py. A folder is one of `tilewise evaluate`, e.g.
reports/TARGET: the confidence part of its metrics.json is copied to results/trust_TARGET.json, its plots to
docs/images/trust. Without folders, the page is filled from the existing results.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.learning import leave_family_out
from benchmarks.results import RESULTS, load, save
from tilewise.errors import DataError, TilewiseError
from tilewise.files import write_text
from tilewise.markdown import fill, table

DOCS = Path(__file__).parents[2] / "docs"
PAGE, IMAGES = DOCS / "experiments.md", DOCS / "images" / "trust"
PLOTS = ("distance", "trust")
_NOT_YET = "Not measured yet."


def keep(folder: Path, results: Path = RESULTS, images: Path = IMAGES) -> None:
    """Copy the confidence figures and plots of a folder of `tilewise evaluate`.

    Raises:
        DataError: the folder holds no report, or one of a model without a calibration.
    """
    report = load(folder / "metrics.json")
    if not report.get("trust"):
        raise DataError(f"{folder}: its model has no calibration; train and evaluate again")
    about = {n: report[n] for n in ("target", "pool_size", "split_rule", "noise_ceiling")}
    n_problems = report["holdout"]["n_problems"]
    save(results / f"trust_{report['target']}.json", about | {"n_problems": n_problems} | report["trust"])
    images.mkdir(parents=True, exist_ok=True)
    for name in PLOTS:
        shutil.copyfile(folder / "plots" / f"{name}.png", images / f"{name}_{report['target']}.png")


def blocks(results: Path) -> dict[str, str]:
    """Return the content of the page's blocks, from the result files of a folder."""
    trusts = [load(p) for p in sorted(results.glob("trust_*.json"))]
    families = [load(p) for p in sorted(results.glob("leave_family_out_*.json"))]
    return {
        "coverage": _coverage(trusts) if trusts else _NOT_YET,
        "depth": _depth(trusts) if trusts else _NOT_YET,
        "distance": _distance(trusts) if trusts else _NOT_YET,
        "plots": "\n".join(_plots(t["target"]) for t in trusts) if trusts else _NOT_YET,
        "families": "\n".join(_families(f) for f in families) if families else _NOT_YET,
    }


def page(text: str, results: Path) -> str:
    """Return the page with its blocks filled."""
    return fill(text, blocks(results))


def _coverage(trusts: list[dict[str, Any]]) -> str:
    header = [
        "target",
        "pool",
        "problems",
        "covered, %",
        "95 % interval",
        "by repeats, %",
        "mean bound, %",
        "bound of 0, %",
    ]
    rows = [
        [
            f"`{t['target']}`",
            str(t["pool_size"]),
            str(t["n_problems"]),
            f"{100 * t['coverage']:.1f}",
            f"{100 * t['coverage_low']:.1f} to {100 * t['coverage_high']:.1f}",
            f"{100 * t['coverage_again']:.1f} of {t['n_again']}" if t["n_again"] else "-",
            f"{100 * t['mean_bound']:.2f}",
            f"{100 * t['zero_bound_rate']:.0f}",
        ]
        for t in trusts
    ]
    return table(header, rows)


def _depth(trusts: list[dict[str, Any]]) -> str:
    header = ["target", "may lose, %", "k on average", "measure all, %", "kept to it, %", "mean / P10", "ceiling's P10"]
    rows = []
    for t in trusts:
        ceiling = t["noise_ceiling"]
        for d in t["depth"]:
            rows.append(
                [
                    f"`{t['target']}`",
                    f"{100 * d['tolerance']:g}",
                    f"{d['mean_k']:.2f}",
                    f"{100 * d['measure_rate']:.1f}",
                    f"{100 * d['within_rate']:.1f}",
                    f"{100 * d['mean_efficiency']:.2f} / {100 * d['p10_efficiency']:.2f}",
                    f"{100 * ceiling['p10_efficiency']:.2f}" if ceiling else "-",
                ]
            )
    return table(header, rows)


def _distance(trusts: list[dict[str, Any]]) -> str:
    header = ["target", "octaves", "problems", "mean / P10", "mean bound, %", "covered, %", "k on average"]
    rows = [
        [
            f"`{t['target']}`",
            g["distance"],
            str(g["n_problems"]),
            f"{100 * g['mean_efficiency']:.2f} / {100 * g['p10_efficiency']:.2f}",
            f"{100 * g['mean_bound']:.2f}",
            f"{100 * g['coverage']:.1f}",
            "-" if g["mean_k"] is None else f"{g['mean_k']:.2f}",
        ]
        for t in trusts
        for g in t["by_distance"]
    ]
    return table(header, rows, words=2)


def _plots(target: str) -> str:
    names = ("Efficiency by distance", "Promised and observed losses")
    return "\n".join(
        f"![{name}, {target}](images/trust/{file}_{target}.png)" for name, file in zip(names, PLOTS, strict=True)
    )


def _families(found: Mapping[str, Any]) -> str:
    return (
        f"`{found['target']}`, by {found['by']}: pool of {found['pool_size']}, {found['n_problems']} problems judged, "
        f"{found['trees']} trees.\n\n{leave_family_out.table(found)}"
    )


def main(arguments: list[str]) -> None:
    """Copy the reports of `arguments` and fill the page."""
    try:
        for folder in arguments:
            keep(Path(folder))
        write_text(PAGE, page(PAGE.read_text(), RESULTS))
    except (TilewiseError, OSError) as e:
        sys.exit(f"trust: {e}")


if __name__ == "__main__":
    main(sys.argv[1:])
