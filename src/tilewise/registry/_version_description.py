"""The Markdown texts on the pages of versions and registered models: figures, data, pool, weak slices, decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewise.gate import PromotionDecision
from tilewise.markdown import table
from tilewise.model import TrainedModel
from tilewise.registry._versions import KIND_TAG

_FIGURES = (
    ("mean_efficiency", "mean", "mean"),
    ("median_efficiency", "median", "median"),
    ("p10_efficiency", "p10", "P10"),
    ("min_efficiency", "min", "worst problem"),
)  # in the cross-validation, in the gate, in words
N_WEAK = 3  # slices named


def cv_figures(model: TrainedModel) -> dict[str, float]:
    """Return the finite overall figures of the cross-validation."""
    overall = model.cv_metrics.get("overall", model.cv_metrics)
    return {k: float(v) for k, v in overall.items() if isinstance(v, int | float) and abs(v) < float("inf")}


def describe_version(
    model: TrainedModel, decision: PromotionDecision | None = None, weak_slices: Sequence[str] = ()
) -> str:
    """Return the text on the page of a version.

    Args:
        model: The version's model.
        decision: The last promotion decision about it; None before the first one.
        weak_slices: The slices with the lowest efficiency, in words.
    """
    cv, gate = cv_figures(model), (decision or {}).get("gate") or {}
    columns: list[tuple[str, Mapping[str, float]]] = [("cross-validated", cv)]
    for title, figures in (
        ("holdout", gate.get("candidate")),
        ("production then, holdout", gate.get("production")),
    ):
        if figures:
            columns.append((title, {name: figures[short] for name, short, _ in _FIGURES}))
    rows = [
        [label, *(f"{100 * figures[name]:.2f} %" if name in figures else "-" for _, figures in columns)]
        for name, _, label in _FIGURES
        if name in cv
    ]
    lines = [
        f"Selects among {len(model.pool)} kernels for {model.target.name}; learned {model.label}.",
        "",
        table(["efficiency", *(title for title, _ in columns)], rows),
        f"Data `{_short(model, 'data_hash')}`, code `{_short(model, 'git_revision')}`, pool `{model.pool.hash[:12]}`. "
        f"{model.cv_metrics.get('split_rule', '')}".rstrip(),
    ]
    if weak_slices:
        lines += ["", f"Weakest slices, holdout: {'; '.join(weak_slices)}."]
    if decision:
        lines += ["", f"**{decision['outcome'].capitalize()}**: {'; '.join(decision['reasons'])}."]
    override = (decision or {}).get("override")
    if override:
        lines += ["", f"**Rules of the gate were waived** ({override['reason']}): {'; '.join(override['waived'])}."]
    return "\n".join(lines)


def model_page(model: TrainedModel) -> tuple[str, dict[str, str]]:
    """Return the text and the tags on the page of a target's registered model."""
    target = model.target
    text = (
        f"Selects the fastest kernel for {target.op} {target.variant} in {target.dtype} on {target.arch}. Dispatchers "
        f"serve the version `production`; `candidate` was published last, `previous` is what a rollback returns to."
    )
    names = ("op", "variant", "dtype", "arch")
    return text, {KIND_TAG: "model", "tilewise.target": target.name} | {
        f"tilewise.{name}": str(getattr(target, name)) for name in names
    }


def weakest_slices(slices: Sequence[Mapping[str, Any]], min_problems: int) -> list[str]:
    """Return the slices with the lowest P10 in words.

    Args:
        slices: The result of :func:`tilewise.evaluate.sliced_metrics`.
        min_problems: Smaller slices are left out.
    """
    large = sorted((s for s in slices if s["n_problems"] >= min_problems), key=lambda s: float(s["p10_efficiency"]))
    return [
        f"{s['slice']} {s['value']}: P10 {100 * s['p10_efficiency']:.1f} % of {s['n_problems']} problems"
        for s in large[:N_WEAK]
    ]


def _short(model: TrainedModel, key: str) -> str:
    return str(model.manifest.get(key, "unknown"))[:12]
