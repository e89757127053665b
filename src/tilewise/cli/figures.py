"""Metrics as a table: never without pool size, split rule and noise ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tilewise.evaluate.result import NoiseCeiling
from tilewise.evaluate.slices import FEW

_PERCENT = (
    ("mean_efficiency", "mean efficiency"),
    ("median_efficiency", "median"),
    ("p10_efficiency", "P10"),
    ("p90_efficiency", "P90"),
    ("min_efficiency", "worst problem"),
    ("top3_mean_efficiency", "best of top 3, measured"),
    ("top3_p10_efficiency", "best of top 3, P10"),
    ("top1_accuracy", "top-1 accuracy"),
    ("top5_hit_rate", "top-5 hit rate"),
    ("ndcg_at_5", "NDCG@5"),
)
_CEILING = {
    "mean_efficiency": "mean_efficiency",
    "median_efficiency": "median_efficiency",
    "p10_efficiency": "p10_efficiency",
    "top1_accuracy": "same_kernel_rate",
}


def show_figures(
    console: Console,
    title: str,
    columns: Mapping[str, Mapping[str, float]],
    *,
    pool_size: int,
    split_rule: str,
    ceiling: NoiseCeiling | None,
) -> None:
    """Print one column for each of `columns` and one for the noise ceiling.

    Args:
        console: where to.
        title: what is judged.
        columns: metrics (see :data:`tilewise.metrics.METRICS`) by heading, e.g. ``cv`` and ``holdout``.
        pool_size: kernels to choose from.
        split_rule: in words.
        ceiling: None where nothing was measured twice.
    """
    table = Table("", title=title, title_justify="left")
    for heading in (*columns, "noise ceiling"):
        table.add_column(heading, justify="right")
    repeated = str(ceiling.n_problems) if ceiling else "-"
    table.add_row("problems", *(f"{m['n_problems']:.0f}" for m in columns.values()), repeated)
    for name, label in _PERCENT:
        limit = f"{100 * getattr(ceiling, _CEILING[name]):.2f} %" if ceiling and name in _CEILING else ""
        if any(name in m for m in columns.values()):  # an older model's figures may lack some
            table.add_row(label, *(f"{100 * m[name]:.2f} %" if name in m else "-" for m in columns.values()), limit)
    table.add_row("R2 of TFLOPS", *(f"{m['r2']:.4f}" for m in columns.values()), "")
    console.print(table)
    for note in notes(f"pool of {pool_size} kernels", split_rule, ceiling):
        console.print(note, soft_wrap=True, highlight=False)


def show_slices(console: Console, slices: Sequence[Mapping[str, Any]]) -> None:
    """Print the groups of problems that are large enough to say something.

    Args:
        console: where to.
        slices: from :func:`tilewise.evaluate.slices.sliced_metrics`.
    """
    table = Table("slice", "")
    for heading in ("problems", "mean", "median", "P10", "worst"):
        table.add_column(heading, justify="right")
    names = ("mean_efficiency", "median_efficiency", "p10_efficiency", "min_efficiency")
    last = ""
    for row in (s for s in slices if s["n_problems"] >= FEW):
        if last and row["slice"] != last:
            table.add_section()
        label, last = "" if row["slice"] == last else row["slice"], row["slice"]
        cells = (f"{100 * row[name]:.2f} %" for name in names)
        table.add_row(label, row["value"], str(row["n_problems"]), *cells)
    console.print(table)
    console.print(f"groups of fewer than {FEW} problems are in metrics.json only", highlight=False)


def show_regret(console: Console, regret: Sequence[Mapping[str, Any]]) -> None:
    """Print "best of the top k, measured", from :func:`tilewise.metrics.regret_curve`, one column a k."""
    table = Table("best of the top k, measured", *(str(r["k"]) for r in regret))
    for name, label in (
        ("mean_efficiency", "mean, %"),
        ("p10_efficiency", "P10, %"),
        ("hit_rate", "has the oracle, %"),
    ):
        table.add_row(label, *(f"{100 * r[name]:.1f}" for r in regret))
    console.print(table)


def show_trust(console: Console, trust: Mapping[str, Any]) -> None:
    """Print what came of a model's trust, from :func:`tilewise.evaluate.trust.trust_metrics`."""
    low, high = (f"{100 * trust[n]:.1f}" for n in ("coverage_low", "coverage_high"))
    console.print(
        f"{100 * trust['level']:g} % intervals of the loss cover {100 * trust['coverage']:.1f} % of the problems "
        f"({low} to {high}, {trust['n_shapes']} shapes); mean bound {100 * trust['mean_bound']:.2f} %",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("best of the top k, k by problem")
    for heading in ("k on average", "measure all", "within it", "mean", "P10"):
        table.add_column(heading, justify="right")
    for row in trust["depth"]:
        shares = (f"{100 * row[n]:.2f} %" for n in ("within_rate", "mean_efficiency", "p10_efficiency"))
        name = f"may lose {100 * row['tolerance']:g} %"
        table.add_row(name, f"{row['mean_k']:.2f}", f"{100 * row['measure_rate']:.1f} %", *shares)
    console.print(table)
    table = Table("octaves to the nearest known shape")
    for heading in ("problems", "mean", "P10", "mean bound", "covered", "k on average"):
        table.add_column(heading, justify="right")
    for row in trust["by_distance"]:
        names = ("mean_efficiency", "p10_efficiency", "mean_bound", "coverage")
        k = "-" if row["mean_k"] is None else f"{row['mean_k']:.2f}"
        table.add_row(row["distance"], str(row["n_problems"]), *(f"{100 * row[n]:.2f} %" for n in names), k)
    console.print(table)


def notes(pool: str, split_rule: str, ceiling: NoiseCeiling | None) -> list[str]:
    """What an efficiency must not be shown without: pool, split rule and noise ceiling, in words."""
    measured = "unknown, nothing was measured twice"
    if ceiling:
        measured = (
            f"mean {100 * ceiling.mean_efficiency:.2f} %, P10 {100 * ceiling.p10_efficiency:.2f} % "
            f"({ceiling.n_problems} problems measured again, picked by one run, judged by the others)"
        )
    return [
        f"efficiency: TFLOPS of the selected kernel / of the fastest measured; {pool}",
        f"split: {split_rule}",
        f"noise ceiling: {measured}",
    ]
