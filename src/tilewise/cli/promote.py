"""Publish a model and let the gate decide whether it replaces @production.

tilewise promote [model_dir=models/TARGET] [data=FILE] [reports=FOLDER] [gate.mean_drop=0.5 ...] [gate.shadow=FILE]

The candidate and the model in production are evaluated here and now on the same holdout problems. The decision, with
every number and every regressed problem, goes to MLflow and to reports/TARGET/promotion.json, also when the answer is
no; then the exit status is 3. promotion.html beside it is the same to read. Running it again changes nothing. With
gate.shadow= the gate also judges what dispatchers observed of the two models (docs/shadow.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tilewise.errors import PromotionRefusedError
from tilewise.model.artefact import load_artefact
from tilewise.registry import observations
from tilewise.registry.gate import GateDecision
from tilewise.registry.promote import Promotion, promote
from tilewise.registry.thresholds import Thresholds
from tilewise.registry.tracking import connect

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

_SHOWN_REGRESSIONS = 10


def run(cfg: DictConfig) -> None:
    """Promote ``cfg.model_dir``.

    Raises:
        PromotionRefusedError: the gate said no.
    """
    target = load_artefact(cfg.model_dir, verify=False).target
    thresholds = Thresholds.from_config(cfg.gate, target)
    connect(cfg.tracking.uri)

    def read() -> pd.DataFrame:
        from tilewise.data.schema import read_measurements  # checks schemas, which takes half a second to import

        return read_measurements(Path(cfg.data), target)

    promotion = promote(
        cfg.model_dir,
        read,
        thresholds,
        cfg.reports,
        holdout_fraction=float(cfg.holdout.fraction),
        experiment=cfg.tracking.experiment,
        observations=observations.read(cfg.gate.shadow) if cfg.gate.shadow else None,
    )
    _show(promotion, Console())
    if not promotion.in_production:
        raise PromotionRefusedError(f"{promotion.version} is refused: {'; '.join(promotion.reasons)}")


def _show(promotion: Promotion, console: Console) -> None:
    if promotion.gate:
        title = f"{promotion.version}: {promotion.outcome}, judged on {promotion.gate.n_problems} holdout problems"
        console.print(title, soft_wrap=True, highlight=False)
        console.print(_checks(promotion.gate))
        for passed, reason in _conditions(promotion.gate):
            console.print(f"{'yes' if passed else 'NO '} {reason}", soft_wrap=True, highlight=False)
        for problem in promotion.gate.regressed[:_SHOWN_REGRESSIONS]:
            dimensions = " ".join(f"{k}={v}" for k, v in problem.problem.items())
            console.print(f"  {problem.production:.1%} -> {problem.candidate:.1%}  {dimensions}", soft_wrap=True)
    for reason in promotion.reasons:
        console.print(f"{promotion.version}: {reason}", soft_wrap=True, highlight=False)
    console.print(f"record: {promotion.path}", soft_wrap=True, highlight=False)


def _conditions(gate: GateDecision) -> list[tuple[bool, str]]:
    """What has no figures in the table: whether it is met, and what it is."""
    met = [(c.passed, c.reason) for c in gate.conditions]
    if gate.slices:
        weak = ", ".join(s.name for s in gate.weak_slices) or "none"
        met.append((not gate.weak_slices, f"{len(gate.slices)} slices of problems judged; too much worse: {weak}"))
    if gate.observed:
        met.append((not gate.observed.reasons, f"observed by a shadow: {gate.observed.note}"))
    return met


def _checks(gate: GateDecision) -> Table:
    table = Table()
    for column in ("criterion", "candidate", "floor" if gate.production is None else "production", "points", "passed"):
        table.add_column(column, justify="left" if column in ("criterion", "passed") else "right")
    for check in gate.checks:
        name = "worst problem" if check.name == "problem" else check.name.removeprefix("floor_")
        figures = (f"{check.candidate:.2%}", f"{check.reference:.2%}", f"{check.change_points:+.2f}")
        table.add_row(name, *figures, "yes" if check.passed else "NO")
    return table
