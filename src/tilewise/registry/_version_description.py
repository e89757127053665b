"""The Markdown texts on the pages of versions and registered models: figures, data, pool, weak slices, decision."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tilewise.gate import PromotionDecision
from tilewise.model import TrainedModel
from tilewise.publish import CardFacts, model_card
from tilewise.registry._registered_models import KIND_TAG

MOST_CHARACTERS = 5000  # of a description in MLflow's database


def cv_figures(model: TrainedModel) -> dict[str, float]:
    """Return the finite overall figures of the cross-validation."""
    overall = model.cv_metrics.get("overall", model.cv_metrics)
    return {k: float(v) for k, v in overall.items() if isinstance(v, int | float) and abs(v) < float("inf")}


def describe_version(
    model: TrainedModel,
    decision: PromotionDecision | None = None,
    weak_slices: Sequence[str] = (),
    origins: Iterable[str] = (),
) -> str:
    """Return the text on the page of a version: its model card, the files behind it, and the last decision.

    Args:
        model: The version's model.
        decision: The last promotion decision about it; None before the first one.
        weak_slices: The slices with the lowest efficiency, in words.
        origins: Sources of the problems judged on, the column `origin` of measurements.
    """
    gate = (decision or {}).get("gate") or {}
    figures: dict[str, Mapping[str, float]] = {"cross-validated": cv_figures(model)}
    for title, found in (("holdout", gate.get("candidate")), ("production then, holdout", gate.get("production"))):
        if found:
            figures[title] = {f"{name}_efficiency": value for name, value in found.items()}
    rule = str(model.cv_metrics.get("split_rule", ""))
    n_holdout = int(gate.get("n_problems", 0))
    lines = [
        model_card(CardFacts(model.target, len(model.pool), rule, figures, n_holdout, origins, weak_slices)),
        f"- **Files**: learned {model.label}; data `{_short(model, 'data_hash')}`, code "
        f"`{_short(model, 'git_revision')}`, pool `{model.pool.hash[:12]}`.",
    ]
    if decision:
        lines += ["", f"**{decision['outcome'].capitalize()}**: {'; '.join(decision['reasons'])}."]
    override = (decision or {}).get("override")
    if override:
        lines += ["", f"**Rules of the gate were waived** ({override['reason']}): {'; '.join(override['waived'])}."]
    text = "\n".join(lines)
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"


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


def _short(model: TrainedModel, key: str) -> str:
    return str(model.manifest.get(key, "unknown"))[:12]
