"""Propose what to measure next, within a budget of seconds: the problems that a committee of models is unsure of.

tilewise plan output=PLAN.json collect.run_id=NAME [plan.budget_s=600] [collect.problems=SET] [data=FILE_OR_FOLDER]
tilewise plan output=PLAN.json collect.run_id=NAME plan.from_scratch=true     for a target that has no measurements yet
tilewise plan output=PLAN.json collect.run_id=NAME plan.requests=RECORD.jsonl [model_dir=models/TARGET]
                                         of what dispatchers were asked for (TILEWISE_RECORD), what saves most GPU time

Problems that `data` holds already, and those of the holdout, are left out. `tilewise collect input=PLAN.json` runs the
plan, as does `python -m tilewise.collect PLAN.json TABLE` on a machine with nothing but torch and triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from tilewise.cli.collect import plan_from_config
from tilewise.collect.plan import Plan
from tilewise.data.schema import read_measurements
from tilewise.dispatch.record import calls_of
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.model.artefact import load_artefact
from tilewise.planning.choice import KernelChoice
from tilewise.planning.propose import PlanSettings, Proposal, propose
from tilewise.planning.value import Stakes, ValueProposal, propose_by_value

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Write the plan to ``cfg.output``.

    Raises:
        ConfigError: there is no output, or a setting is out of its range.
        DataError: the measurements cannot be used, or no problem is left.
    """
    if not cfg.output:
        raise ConfigError("output: missing; name the file of the plan, e.g. output=build/plan.json")
    whole = plan_from_config(cfg)
    frame = None if cfg.plan.from_scratch else read_measurements(Path(cfg.data), whole.target)
    plan, say = _of_requests(cfg, whole, frame) if cfg.plan.requests else _of_problems(cfg, whole, frame)
    write_text(Path(cfg.output), plan.dumps())
    Console().print("\n".join([*say, f"plan: {cfg.output}"]), soft_wrap=True, highlight=False)


def _of_problems(cfg: DictConfig, whole: Plan, frame: pd.DataFrame | None) -> tuple[Plan, list[str]]:
    proposal = propose(
        frame,
        whole.items,
        whole.target,
        whole.pool,
        whole.arch,
        whole.timing,
        settings_from_config(cfg),
        holdout_fraction=cfg.holdout.fraction,
        run_id=whole.run_id,
    )
    return proposal.plan, _said(proposal)


def _of_requests(cfg: DictConfig, whole: Plan, frame: pd.DataFrame | None) -> tuple[Plan, list[str]]:
    proposal = propose_by_value(
        calls_of(cfg.plan.requests, whole.target),
        load_artefact(cfg.model_dir) if Path(cfg.model_dir).exists() else None,
        frame,
        whole,
        settings_from_config(cfg),
        holdout_fraction=cfg.holdout.fraction,
    )
    return proposal.plan, _said_of_value(proposal)


def settings_from_config(cfg: DictConfig) -> PlanSettings:
    """The settings in ``cfg.plan``, ``cfg.seed`` and ``cfg.threads``.

    Raises:
        ConfigError: a value is out of its range.
    """
    plan = cfg.plan
    choice = KernelChoice(plan.share, plan.top, plan.temperature, plan.least)
    return PlanSettings(plan.budget_s, choice, plan.members, cfg.seed, cfg.threads)


def _said(proposal: Proposal) -> list[str]:
    plan = proposal.plan
    say = [
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} of {proposal.candidates} problems, "
        f"{proposal.pairs} pairs, about {proposal.seconds:.0f} s of measuring"
    ]
    for item, regret, octaves in zip(plan.items[:_SHOWN], proposal.regret, proposal.octaves, strict=False):
        known = f"{100 * regret:5.1f} % at stake, {octaves:.1f} octaves away" if np.isfinite(regret) else "unknown"
        problem = item.problem.in_words(item.problem.to_dict())
        say.append(f"  {known}, {len(item.kernels or ())} kernels: {problem}")
    return say


def _said_of_value(proposal: ValueProposal) -> list[str]:
    plan, stakes, could_be = proposal.plan, proposal.stakes, proposal.could_be
    pairs = sum(len(item.kernels or ()) for item in plan.items)
    say = [
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} of {len(could_be.calls)} problems, {pairs} pairs, "
        f"about {stakes.seconds.sum():.0f} s of measuring",
        f"{could_be.calls.sum():.0f} of {proposal.calls} calls are of problems that could be measured; they take about "
        f"{could_be.spent_s.sum() / 60:.3g} GPU minutes",
        f"GPU minutes saved, expected: {_minutes(stakes)} of {_minutes(could_be)}",
    ]
    for item, calls, regret, saved in zip(
        plan.items[:_SHOWN], stakes.calls, stakes.regret, stakes.saved_s, strict=False
    ):
        known = "unknown" if np.isnan(saved) else f"{saved / 60:.3g} min, {100 * regret:.1f} % at stake"
        problem = item.problem.in_words(item.problem.to_dict())
        say.append(f"  {known}, {calls:.0f} calls, {len(item.kernels or ())} kernels: {problem}")
    return say


def _minutes(stakes: Stakes) -> str:
    if np.isnan(stakes.saved_s).any():
        return "unknown (there is no model, or one without a calibration)"
    return f"{stakes.saved_s.sum() / 60:.3g}"
