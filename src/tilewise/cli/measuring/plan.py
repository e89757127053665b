"""Propose the next measurements within a budget of seconds: problems on which a committee of models disagrees.

tilewise plan output=PLAN.json collect.run_id=NAME [plan.budget_s=600] [collect.problems=SET] [data=FILE_OR_FOLDER]
tilewise plan output=PLAN.json collect.run_id=NAME plan.from_scratch=true     for a target without measurements
tilewise plan output=PLAN.json collect.run_id=NAME plan.requests=RECORD.jsonl [model_dir=models/TARGET]
                                         the requested problems (TILEWISE_RECORD) that save most GPU time

The kernels are those of the target's shipped pool; without one, those in `data`, or with plan.from_scratch those of the
libraries of collect.libraries. Problems in `data` and problems of the holdout are left out. `tilewise collect
input=PLAN.json` runs the plan, as does `python -m tilewise.collect PLAN.json TABLE` on a machine with nothing but torch
and triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tilewise.campaigns.plan import (
    KernelChoice,
    PlanSettings,
    Proposal,
    Stakes,
    ValueProposal,
    propose,
    propose_by_value,
)
from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.cli.measuring.collect import library_kernels, plan_from_config
from tilewise.cluster import ClusterSettings, open_executor
from tilewise.collect import Plan
from tilewise.collect.engines import ReplayTable
from tilewise.data import read_measurements
from tilewise.dispatch.logs import count_requests
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.kernels import Pool, backend_of_target, pool_path
from tilewise.model import load_artefact
from tilewise.ops import Target

if TYPE_CHECKING:
    import pandas as pd
    from omegaconf import DictConfig

_SHOWN = 5


def run(cfg: DictConfig) -> None:
    """Write the plan to ``cfg.output``.

    Raises:
        ConfigError: the output is missing, or a setting is out of its range.
        DataError: the measurements cannot be used, or no problem is left.
    """
    if not cfg.output:
        raise ConfigError("output: missing; name the file of the plan, e.g. output=build/plan.json")
    require_format(cfg.output, ".json")
    whole = plan_from_config(cfg, _unshipped_pool(cfg))
    frame = None if cfg.plan.from_scratch else read_measurements(Path(cfg.data), whole.target)
    plan, lines = _plan_requests(cfg, whole, frame) if cfg.plan.requests else _plan_problems(cfg, whole, frame)
    write_text(Path(cfg.output), plan.dumps())
    plain_console().print("\n".join([*lines, f"plan: {cfg.output}"]), soft_wrap=True, highlight=False)
    pairs = sum(len(item.kernels or ()) for item in plan.items)
    write_result({"plan": str(cfg.output), "run_id": plan.run_id, "problems": len(plan.items), "pairs": pairs})


def _unshipped_pool(cfg: DictConfig) -> Pool | None:
    """Return the kernels to plan with where no pool is shipped for the target; None where one is.

    Raises:
        ConfigError: there are no measurements to take kernels from, and no library is named.
        DataError: the measurements cannot be used.
    """
    target = Target.parse(cfg.target)
    if pool_path(target).is_file():
        return None
    if cfg.plan.from_scratch:
        return None if backend_of_target(target).compiled_here else library_kernels(cfg).pool(target)
    return ReplayTable.load(cfg.data, target).pool


def _plan_problems(cfg: DictConfig, whole: Plan, frame: pd.DataFrame | None) -> tuple[Plan, list[str]]:
    with open_executor(ClusterSettings.from_config(cfg.cluster)) as executor:
        proposal = propose(
            frame, whole, settings_from_config(cfg), holdout_fraction=cfg.holdout.fraction, executor=executor
        )
    return proposal.plan, _describe(proposal)


def _plan_requests(cfg: DictConfig, whole: Plan, frame: pd.DataFrame | None) -> tuple[Plan, list[str]]:
    proposal = propose_by_value(
        count_requests(cfg.plan.requests, whole.target),
        load_artefact(cfg.model_dir) if Path(cfg.model_dir).exists() else None,
        frame,
        whole,
        settings_from_config(cfg),
        holdout_fraction=cfg.holdout.fraction,
    )
    return proposal.plan, _describe_value(proposal)


def settings_from_config(cfg: DictConfig) -> PlanSettings:
    """Return the settings of ``cfg.plan``, ``cfg.seed`` and ``cfg.threads``.

    Raises:
        ConfigError: a value is out of its range.
    """
    plan = cfg.plan
    choice = KernelChoice(plan.share, plan.top, plan.temperature, plan.least)
    return PlanSettings(plan.budget_s, choice, plan.members, cfg.seed, cfg.threads)


def _describe(proposal: Proposal) -> list[str]:
    plan = proposal.plan
    lines = [
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} of {proposal.candidates} problems, "
        f"{proposal.pairs} pairs, about {proposal.seconds:.0f} s of measuring"
    ]
    for item, regret, distance in zip(plan.items[:_SHOWN], proposal.regret, proposal.shape_distance, strict=False):
        stake = f"{100 * regret:5.1f} % at stake, log2 distance {distance:.1f}" if np.isfinite(regret) else "unknown"
        problem = item.problem.in_words(item.problem.to_dict())
        lines.append(f"  {stake}, {len(item.kernels or ())} kernels: {problem}")
    return lines


def _describe_value(proposal: ValueProposal) -> list[str]:
    plan, stakes, could_be = proposal.plan, proposal.stakes, proposal.could_be
    pairs = sum(len(item.kernels or ()) for item in plan.items)
    lines = [
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} of {len(could_be.calls)} problems, {pairs} pairs, "
        f"about {stakes.seconds.sum():.0f} s of measuring",
        f"{could_be.calls.sum():.0f} of {proposal.calls} calls are of problems that could be measured; they take about "
        f"{could_be.spent_s.sum() / 60:.3g} GPU minutes",
        f"GPU minutes saved, expected: {_minutes(stakes)} of {_minutes(could_be)}",
    ]
    for item, calls, regret, saved in zip(
        plan.items[:_SHOWN], stakes.calls, stakes.regret, stakes.saved_s, strict=False
    ):
        stake = "unknown" if np.isnan(saved) else f"{saved / 60:.3g} min, {100 * regret:.1f} % at stake"
        problem = item.problem.in_words(item.problem.to_dict())
        lines.append(f"  {stake}, {calls:.0f} calls, {len(item.kernels or ())} kernels: {problem}")
    return lines


def _minutes(stakes: Stakes) -> str:
    if np.isnan(stakes.saved_s).any():
        return "unknown (there is no model, or one without a calibration)"
    return f"{stakes.saved_s.sum() / 60:.3g}"
