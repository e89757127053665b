"""What a version says of itself on its page in MLflow: figures, data, pool, weak slices, decision. Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewise.markdown import table
from tilewise.model.trained import TrainedModel

_FIGURES = (
    ("mean_efficiency", "mean"),
    ("median_efficiency", "median"),
    ("p10_efficiency", "P10"),
    ("min_efficiency", "worst problem"),
)
_OF_GATE = {"mean_efficiency": "mean", "median_efficiency": "median", "p10_efficiency": "p10", "min_efficiency": "min"}
N_WEAK = 3  # slices named


def cv_figures(model: TrainedModel) -> dict[str, float]:
    """The overall figures of the cross-validation, finite ones."""
    overall = model.cv_metrics.get("overall", model.cv_metrics)
    return {k: float(v) for k, v in overall.items() if isinstance(v, int | float) and abs(v) < float("inf")}


def description(model: TrainedModel, record: Mapping[str, Any] | None = None, weak: Sequence[str] = ()) -> str:
    """The text of a version.

    Args:
        model: what it holds.
        record: of the gate's last decision on it (``promotion.json``); None: none yet.
        weak: the slices where it does worst, in words.
    """
    cv, gate = cv_figures(model), (record or {}).get("gate") or {}
    columns: list[tuple[str, Mapping[str, float]]] = [("cross-validated", cv)]
    for side in ("candidate", "production"):
        if gate.get(side):
            of_gate = {name: gate[side][short] for name, short in _OF_GATE.items()}
            columns.append(("holdout" if side == "candidate" else "production then, holdout", of_gate))
    rows = [
        [label, *(f"{100 * figures[name]:.2f} %" if name in figures else "-" for _, figures in columns)]
        for name, label in _FIGURES
        if name in cv
    ]
    lines = [
        f"Selects among {len(model.pool)} kernels for {model.target.name}; learned {model.label}.",
        "",
        table(["efficiency", *(title for title, _ in columns)], rows),
        f"Data `{_short(model, 'data_hash')}`, code `{_short(model, 'git_revision')}`, pool `{model.pool.hash[:12]}`. "
        f"{model.cv_metrics.get('split_rule', '')}".rstrip(),
    ]
    if weak:
        lines += ["", f"Weakest slices, holdout: {'; '.join(weak)}."]
    if record:
        lines += ["", f"**{str(record['outcome']).capitalize()}**: {'; '.join(record['reasons'])}."]
    return "\n".join(lines)


def weakest(slices: Sequence[Mapping[str, Any]], smallest: int) -> list[str]:
    """The slices with the lowest P10, of those with at least `smallest` problems, in words.

    Args:
        slices: from :func:`tilewise.evaluate.slices.sliced_metrics`.
        smallest: problems.
    """
    large = sorted((s for s in slices if s["n_problems"] >= smallest), key=lambda s: float(s["p10_efficiency"]))
    return [
        f"{s['slice']} {s['value']}: P10 {100 * s['p10_efficiency']:.1f} % of {s['n_problems']} problems"
        for s in large[:N_WEAK]
    ]


def _short(model: TrainedModel, key: str) -> str:
    return str(model.manifest.get(key, "unknown"))[:12]
