"""Publish a model and let the gate decide whether it replaces @production.

tilewise promote [canary] [model_dir=models/TARGET | run=ID] [data=FILE] [reports=FOLDER]
                 [gate.mean_drop=0.2 ...] [gate.shadow=FILE]
                 [gate.override.reason=TEXT [gate.override.holdout=true] [gate.override.production=true]]

run=ID takes the model of a finished training from MLflow: the one command that promotes an experiment. In the pipeline
of `dvc exp run` nothing is published or promoted, unless register=true.

The candidate and the model in production are evaluated now, on the same holdout problems. The decision, with every
figure and every regressed problem, goes to MLflow and to reports/TARGET/promotion.json, also after a refusal (exit
status 3). promotion.html beside it is the readable form. Repeating the command changes nothing. With gate.shadow= the
gate also judges the observations of dispatchers (docs/shadow.md). With the action canary, a candidate that passes
serves a share of the hosts first, and production stays (docs/fleet.md).

The holdout must contain the problems that production was judged on, and limits must not be weaker than the shipped
ones. gate.override.reason waives that, visibly for everybody, unless gate.override.allowed is false in conf/ or the
environment has TILEWISE_GATE_OVERRIDE=off (docs/registry.md: overrides).
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tilewise.cli._console import plain_console, write_result
from tilewise.cli._origin import Origin, version_tags
from tilewise.cli.compose import compose
from tilewise.errors import ConfigError, PromotionRefusedError
from tilewise.gate import DECISION_FILE, GateDecision, Thresholds, read_observations
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import OPS, Target
from tilewise.registry import Version, connect
from tilewise.registry.promotion import Override, find_standing

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

    from tilewise.registry.promotion import Promotion

_SHOWN_REGRESSIONS = 10
_MOST_REASONS = 4  # in the last line; a bad candidate fails on dozens of slices


def run(cfg: DictConfig) -> None:
    """Promote ``cfg.model_dir``.

    Raises:
        PromotionRefusedError: the gate refused the candidate.
    """
    origin = Origin.find()
    if cfg.register is False or (cfg.register is None and origin.is_experiment):
        _leave(cfg, origin)
        return
    if cfg.run is None:
        candidate = load_artefact(cfg.model_dir)
        standing = find_standing(candidate, *_rules(cfg, candidate), cfg.reports, cfg.tracking.uri)
        if standing and not cfg.gate.shadow:
            _show_standing(standing, Path(cfg.reports) / DECISION_FILE)
            return
    connect(cfg.tracking.uri)
    with tempfile.TemporaryDirectory() as scratch:
        promotion = _promote(cfg, _model_folder(cfg, Path(scratch)), origin)
    _print(promotion)
    write_result(
        {
            "outcome": promotion.outcome,
            "version": promotion.version.number,
            "reasons": promotion.reasons,
            "record": promotion.path,
            "decision": promotion.decision,
        }
    )
    if promotion.outcome == "refused":
        raise PromotionRefusedError(f"{promotion.version} stays out of production: {_first(promotion)}")


def _first(promotion: Promotion) -> str:
    """Return the first reasons of a refusal; all of them were printed before, and are in its record."""
    first, more = promotion.reasons[:_MOST_REASONS], len(promotion.reasons) - _MOST_REASONS
    return "; ".join([*first, *([f"and for {more} more reasons, see {promotion.path}"] if more > 0 else [])])


def _rules(cfg: DictConfig, candidate: TrainedModel) -> tuple[Thresholds, Override]:
    # The file's answer counts, not that of the command line.
    override = Override.from_config(cfg.gate, allowed=bool(compose().gate.get("override", {}).get("allowed", True)))
    return Thresholds.from_config(cfg.gate, candidate.target), override


def _model_folder(cfg: DictConfig, scratch: Path) -> Path:
    """Return the folder of the model to promote, which a run may have logged."""
    if cfg.run is None:
        return Path(cfg.model_dir)
    from tilewise.registry.training_runs import fetch_logged_model

    return fetch_logged_model(str(cfg.run), scratch)


def _promote(cfg: DictConfig, model_dir: Path, origin: Origin) -> Promotion:
    """Publish the model and let the gate decide."""
    from tilewise.registry.promotion import PromotionRules, promote  # imports the libraries of judging

    candidate = load_artefact(model_dir, verify=False)
    target = candidate.target
    if cfg.run is not None and target.name != cfg.target:
        raise ConfigError(
            f"run {cfg.run} trained {target.name}, but the target is {cfg.target}; add target={target.name}"
        )
    thresholds, override = _rules(cfg, candidate)

    def read() -> pd.DataFrame:
        from tilewise.data import read_measurements  # imports the schema library, which takes half a second

        return read_measurements(Path(cfg.data), target)

    observations = read_observations(cfg.gate.shadow) if cfg.gate.shadow else None
    tags = version_tags()
    if tags:
        changed = f"the sources differ from the commit, and the version says so: {tags['git_dirty']}"
        print(f"tilewise: {changed}", file=sys.stderr)
    return promote(
        model_dir,
        read,
        PromotionRules(thresholds, float(cfg.holdout.fraction), observations, override, cfg.action == "canary"),
        cfg.reports,
        experiments=(cfg.tracking.experiment, cfg.tracking.sandbox),
        tags={**tags, "source": origin.source},
    )


def _leave(cfg: DictConfig, origin: Origin) -> None:
    """Record that an experiment's model is not published."""
    from tilewise.registry.promotion import leave_unpublished

    name = f" {origin.name}" if origin.name else ""
    reason = (
        f"{origin.source}{name} publishes nothing by itself; to publish its model: tilewise promote run=ID, "
        "with the id of its run in MLflow"
    )
    path = leave_unpublished(cfg.model_dir, cfg.reports, reason)
    plain_console().print(f"{cfg.target}: {reason}\nrecord: {path}", soft_wrap=True, highlight=False)
    write_result({"outcome": "unpublished", "reasons": (reason,), "record": path})


def _show_standing(version: Version, record: Path) -> None:
    """Print the result of promoting the model in production."""
    console, reasons = plain_console(), ["this content is in production already"]
    console.print(f"{version}: {reasons[0]}", f"record: {record}", sep="\n", soft_wrap=True, highlight=False)
    result = {"outcome": "already_production", "version": version.number, "reasons": reasons, "record": record}
    write_result({**result, "decision": json.loads(record.read_text())})


def _print(promotion: Promotion) -> None:
    """Print the decision. It has been carried out, so a closed pipe or an encoding does not change the exit status."""
    console = plain_console()
    with console.capture() as captured:
        _show(promotion, console)
    try:
        sys.stdout.write(captured.get())
        sys.stdout.flush()
    except (OSError, UnicodeError) as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails
        print(f"tilewise: the decision is in {promotion.path}; it cannot be printed: {error}", file=sys.stderr)


def _show(promotion: Promotion, console: Console) -> None:
    if promotion.gate:
        title = f"{promotion.version}: {promotion.outcome}, judged on {promotion.gate.n_problems} holdout problems"
        console.print(title, soft_wrap=True, highlight=False)
        console.print(_checks(promotion.gate))
        for passed, reason in _conditions(promotion.gate):
            console.print(f"{'yes' if passed else 'NO '} {reason}", soft_wrap=True, highlight=False)
        for problem in promotion.gate.regressed[:_SHOWN_REGRESSIONS]:
            dimensions = OPS[Target.parse(promotion.version.target).op].in_words(problem.problem)
            console.print(f"  {problem.production:.1%} -> {problem.candidate:.1%}  {dimensions}", soft_wrap=True)
    lead = f"{promotion.version}: " if len(promotion.reasons) == 1 else "  "
    if len(promotion.reasons) > 1:
        console.print(f"{promotion.version}, for these reasons:", soft_wrap=True, highlight=False)
    for reason in promotion.reasons:
        console.print(f"{lead}{reason}", soft_wrap=True, highlight=False)
    console.print(f"record: {promotion.path}", soft_wrap=True, highlight=False)


def _conditions(gate: GateDecision) -> list[tuple[bool, str]]:
    """Return the criteria without figures in the table: whether each is met, and its reason."""
    conditions = [(c.passed, c.reason) for c in gate.conditions]
    if gate.slices:
        weak = ", ".join(s.name for s in gate.weak_slices) or "none"
        conditions.append(
            (not gate.weak_slices, f"{len(gate.slices)} slices of problems judged; too much worse: {weak}")
        )
    if gate.evidence_check:
        conditions.append((not gate.evidence_check.reasons, f"observed by a shadow: {gate.evidence_check.note}"))
    return conditions


def _checks(gate: GateDecision) -> Table:
    table = Table()
    for column in ("criterion", "candidate", "floor" if gate.production is None else "production", "points", "passed"):
        table.add_column(column, justify="left" if column in ("criterion", "passed") else "right")
    for check in gate.checks:
        name = check.name.removeprefix("floor_").replace("recorded_", "recorded ")  # of production's own problems
        name = "largest drop" if name == "problem" else name
        figures = (f"{check.candidate:.2%}", f"{check.reference:.2%}", f"{check.change_points:+.2f}")
        table.add_row(name, *figures, "yes" if check.passed else "NO")
    return table
