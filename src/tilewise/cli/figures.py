"""Metrics as a table: never without pool size, split rule and noise ceiling."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from tilewise.evaluate.result import NoiseCeiling

_PERCENT = (
    ("mean_efficiency", "mean efficiency"),
    ("median_efficiency", "median"),
    ("p10_efficiency", "P10"),
    ("p90_efficiency", "P90"),
    ("min_efficiency", "worst problem"),
    ("top3_mean_efficiency", "best of top 3, measured"),
    ("top1_accuracy", "top-1 accuracy"),
    ("top5_hit_rate", "top-5 hit rate"),
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
        table.add_row(label, *(f"{100 * m[name]:.2f} %" for m in columns.values()), limit)
    table.add_row("R2 of TFLOPS", *(f"{m['r2']:.4f}" for m in columns.values()), "")
    console.print(table)
    for note in _notes(pool_size, split_rule, ceiling):
        console.print(note, soft_wrap=True, highlight=False)


def _notes(pool_size: int, split_rule: str, ceiling: NoiseCeiling | None) -> list[str]:
    measured = "unknown, nothing was measured twice"
    if ceiling:
        measured = f"{ceiling.n_problems} problems measured again, picked by one run, judged by another"
    return [
        f"efficiency: TFLOPS of the selected kernel / of the fastest measured; pool of {pool_size} kernels",
        f"split: {split_rule}",
        f"noise ceiling: {measured}",
    ]
