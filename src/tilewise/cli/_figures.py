"""Tables of metrics for the terminal, always with pool size, split rule and noise ceiling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tilewise.evaluate import MIN_PROBLEMS_SHOWN, NoiseCeiling

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
    ("tflops_error", "median error of predicted TFLOPS"),
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
    """Print a table with one column per entry of `columns` and one for the noise ceiling.

    Args:
        console: the output.
        title: the title of the table.
        columns: metrics (see :data:`tilewise.metrics.METRICS`) by heading, e.g. ``cv`` and ``holdout``.
        pool_size: number of kernels to choose from.
        split_rule: the rule in words.
        ceiling: None if no problem was measured twice.
    """
    table = Table("", title=title, title_justify="left")
    for heading in (*columns, "noise ceiling"):
        table.add_column(heading, justify="right")
    repeated = str(ceiling.n_problems) if ceiling else "-"
    table.add_row("problems", *(f"{m['n_problems']:.0f}" for m in columns.values()), repeated)
    for name, label in _PERCENT:
        limit = f"{100 * getattr(ceiling, _CEILING[name]):.2f} %" if ceiling and name in _CEILING else ""
        if any(name in m for m in columns.values()):  # older models lack some figures
            table.add_row(label, *(f"{100 * m[name]:.2f} %" if name in m else "-" for m in columns.values()), limit)
    table.add_row("R2 of TFLOPS", *(f"{m['r2']:.4f}" for m in columns.values()), "")
    console.print(table)
    for note in notes(f"pool of {pool_size} kernels", split_rule, ceiling):
        console.print(note, soft_wrap=True, highlight=False)


def show_slices(console: Console, slices: Sequence[Mapping[str, Any]]) -> None:
    """Print the groups of at least :data:`tilewise.evaluate.MIN_PROBLEMS_SHOWN` problems.

    Args:
        console: the output.
        slices: from :func:`tilewise.evaluate.sliced_metrics`.
    """
    table = Table("slice", "")
    for heading in ("problems", "mean", "median", "P10", "worst"):
        table.add_column(heading, justify="right")
    names = ("mean_efficiency", "median_efficiency", "p10_efficiency", "min_efficiency")
    last, shown = "", [s for s in slices if s["n_problems"] >= MIN_PROBLEMS_SHOWN]
    for row in shown:
        if last and row["slice"] != last:
            table.add_section()
        label, last = "" if row["slice"] == last else row["slice"], row["slice"]
        cells = (f"{100 * row[name]:.2f} %" for name in names)
        table.add_row(label, row["value"], str(row["n_problems"]), *cells)
    if shown:
        console.print(table)
    console.print(f"groups of fewer than {MIN_PROBLEMS_SHOWN} problems are in metrics.json only", highlight=False)


def show_regret(console: Console, regret: Sequence[Mapping[str, float]]) -> None:
    """Print "best of the top k, measured", from :func:`tilewise.metrics.regret_curve`, one row per k."""
    table = Table("k", title="best of the top k, measured", title_justify="left")
    for heading in ("mean", "P10", "has the oracle"):
        table.add_column(heading, justify="right")
    for row in regret:
        cells = (f"{100 * row[name]:.1f} %" for name in ("mean_efficiency", "p10_efficiency", "hit_rate"))
        table.add_row(str(row["k"]), *cells)
    console.print(table)


def show_confidence(console: Console, figures: Mapping[str, Any]) -> None:
    """Print the coverage of a model's regret bounds.

    Args:
        console: the output.
        figures: `trust` of :func:`tilewise.evaluate.report_summary`.
    """
    low, high = (f"{100 * figures[n]:.1f}" for n in ("coverage_low", "coverage_high"))
    console.print(
        f"{100 * figures['level']:g} % intervals of the loss cover {100 * figures['coverage']:.1f} % of the problems "
        f"({low} to {high}, {figures['n_shapes']} shapes); mean bound {100 * figures['mean_bound']:.2f} %",
        soft_wrap=True,
        highlight=False,
    )
    table = Table("best of the top k, k by problem")
    for heading in ("k on average", "measure all", "within it", "mean", "P10"):
        table.add_column(heading, justify="right")
    for row in figures["depth"]:
        shares = (f"{100 * row[n]:.2f} %" for n in ("within_rate", "mean_efficiency", "p10_efficiency"))
        name = f"may lose {100 * row['tolerance']:g} %"
        table.add_row(name, f"{row['mean_k']:.2f}", f"{100 * row['measure_rate']:.1f} %", *shares)
    console.print(table)
    table = Table("log2 distance to the nearest known shape")
    for heading in ("problems", "mean", "P10", "mean bound", "covered", "k on average"):
        table.add_column(heading, justify="right")
    for row in figures["by_distance"]:
        names = ("mean_efficiency", "p10_efficiency", "mean_bound", "coverage")
        k = "-" if row["mean_k"] is None else f"{row['mean_k']:.2f}"
        table.add_row(row["distance"], str(row["n_problems"]), *(f"{100 * row[n]:.2f} %" for n in names), k)
    console.print(table)


def notes(pool: str, split_rule: str, ceiling: NoiseCeiling | None) -> list[str]:
    """Return the notes that accompany every efficiency: pool, split rule and noise ceiling, in words."""
    measured = "unknown, no problem was measured twice"
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
