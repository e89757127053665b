"""Model cards: figures, weak slices, limits and the data's licence, for the registry and the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewise.markdown import table
from tilewise.ops import Target

if TYPE_CHECKING:
    from tilewise.evaluate import SliceFigures

_FIGURES = (
    ("mean_efficiency", "mean"),
    ("median_efficiency", "median"),
    ("p10_efficiency", "P10"),
    ("min_efficiency", "worst problem"),
)
SMALL_HOLDOUT = 100  # problems; the P10 of fewer is the mean of two or three problems
# Files that measurements were imported from, by the beginning of `origin`, with their licence.
_IMPORTED = {
    "gfx950_forward_bf16_train.": "CK Tile's benchmark file, (c) Advanced Micro Devices, MIT",
    "gfx942130.HIP.fdb.": "MIOpen's find database gfx942130, (c) Advanced Micro Devices, MIT",
    "gfx90a68.HIP.fdb.": "MIOpen's find database gfx90a68, (c) Advanced Micro Devices, MIT",
}
_MEASURED = "the licence of the measurements; tilewise's own are MIT"


@dataclass(frozen=True)
class CardFacts:
    """The facts of a model card.

    Attributes:
        target: target of the model.
        pool_size: kernels that it selects among.
        split_rule: the split in words.
        figures: metrics by title, such as cross-validated and holdout; efficiencies are fractions.
        n_holdout: holdout problems judged; 0 before the first evaluation.
        origins: sources of the problems, the column `origin` of measurements.
        weakest: slices of the holdout in words; empty where they are unknown.
        vendor: `geomean`, `p10` and `least` of the vendor's time / the selection's; None where unknown.
        whole_pool: `mean_efficiency` of selections from the whole pool, where tables list the fastest kernels only.
    """

    target: Target
    pool_size: int
    split_rule: str
    figures: Mapping[str, Mapping[str, float]]
    n_holdout: int
    origins: Iterable[str]
    weakest: Sequence[str] = ()
    vendor: Mapping[str, float] | None = None
    whole_pool: Mapping[str, float] | None = None


def model_card(facts: CardFacts) -> str:
    """Return a model's card in Markdown, without a heading."""
    t = facts.target
    lines = [
        f"Selects among {facts.pool_size} kernels for {t.op} {t.variant} in {t.dtype} on {t.arch}.",
        "",
        figures_table(facts.figures),
    ]
    if facts.split_rule:
        lines.append(f"- **Splits**: {facts.split_rule}.")
    if facts.vendor:
        geomean, p10, least = (f"{facts.vendor[name]:.2f}" for name in ("geomean", "p10", "least"))
        lines.append(f"- **Vendor's time / the selection's**: geometric mean {geomean}, P10 {p10}, least {least}.")
    if facts.weakest:
        lines.append(f"- **Weakest slices, holdout**: {'; '.join(facts.weakest)}.")
    lines += [f"- **Limits**: {' '.join(limits(facts))}", f"- **Data's licence**: {data_licence(facts.origins)}."]
    return "\n".join(lines)


def figures_table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Return a table of efficiencies with a column per title; figures that a title lacks are dashes."""
    rows = [
        [label, *(f"{100 * column[name]:.2f} %" if name in column else "-" for column in figures.values())]
        for name, label in _FIGURES
        if any(name in column for column in figures.values())
    ]
    return table(["efficiency", *figures], rows)


def slice_in_words(figures: SliceFigures) -> str:
    """Return a slice with its P10 and size, in words."""
    percent = 100 * figures["p10_efficiency"]
    return f"{figures['slice']} {figures['value']}: P10 {percent:.1f} % of {figures['n_problems']} problems"


def limits(facts: CardFacts) -> list[str]:
    """Return the limits of a model, a sentence each."""
    found = ["Other kernels, dtypes and GPUs need a model of their own."]
    if 0 < facts.n_holdout < SMALL_HOLDOUT:
        found.append(f"The holdout has only {facts.n_holdout} problems, so its tail is uncertain.")
    if facts.vendor and facts.vendor["least"] < 1:
        found.append("On some problems the vendor's call is faster than the selection.")
    if facts.whole_pool:
        mean = 100 * facts.whole_pool["mean_efficiency"]
        found.append(
            "The table lists only the fastest kernels of a problem, and the figures are among those. From the whole "
            f"pool, with an unlisted selection charged as the slowest listed, the mean is {mean:.2f} %."
        )
    return found


def data_licence(origins: Iterable[str]) -> str:
    """Return the licence of measurements by the sources of their problems."""
    known = {licence for origin in origins for start, licence in _IMPORTED.items() if origin.startswith(start)}
    return "; ".join(sorted(known)) or _MEASURED
