"""Propose what to measure next, within a budget of seconds: the problems that a committee of models is unsure of.

tilewise plan output=PLAN.json collect.run_id=NAME [plan.budget_s=600] [collect.problems=SET] [data=FILE_OR_FOLDER]
tilewise plan output=PLAN.json collect.run_id=NAME plan.from_scratch=true     for a target that has no measurements yet

Problems that `data` holds already, and those of the holdout, are left out. `tilewise collect input=PLAN.json` runs the
plan, as does `python -m tilewise.collect PLAN.json TABLE` on a machine with nothing but torch and triton.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from tilewise.cli.collect import plan_from_config
from tilewise.data.schema import read_measurements
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.planning.choice import KernelChoice
from tilewise.planning.propose import PlanSettings, Proposal, propose

if TYPE_CHECKING:
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
    write_text(Path(cfg.output), proposal.plan.dumps())
    _show(proposal, cfg.output)


def settings_from_config(cfg: DictConfig) -> PlanSettings:
    """The settings in ``cfg.plan``, ``cfg.seed`` and ``cfg.threads``.

    Raises:
        ConfigError: a value is out of its range.
    """
    plan = cfg.plan
    choice = KernelChoice(plan.share, plan.top, plan.temperature)
    return PlanSettings(plan.budget_s, choice, plan.members, cfg.seed, cfg.threads)


def _show(proposal: Proposal, path: str) -> None:
    console, plan = Console(), proposal.plan
    say = [
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} of {proposal.candidates} problems, "
        f"{proposal.pairs} pairs, about {proposal.seconds:.0f} s of measuring"
    ]
    for item, regret, octaves in zip(plan.items[:_SHOWN], proposal.regret, proposal.octaves, strict=False):
        known = f"{100 * regret:5.1f} % at stake, {octaves:.1f} octaves away" if np.isfinite(regret) else "unknown"
        problem = item.problem.in_words(item.problem.to_dict())
        say.append(f"  {known}, {len(item.kernels or ())} kernels: {problem}")
    say.append(f"plan: {path}")
    console.print("\n".join(say), soft_wrap=True, highlight=False)
