"""Measure kernels on this machine's GPUs, or write the plan for another machine.

tilewise collect [target=NAME] [output=FILE] [collect.devices=[0,1]]
tilewise collect collect.plan=PLAN.json              write what would be measured, and stop
tilewise collect input=PLAN.json output=FILE         measure what a plan says

A killed run continues where it stopped when the same command is given again. On a machine with nothing but torch and
triton, `python -m tilewise.collect PLAN.json FILE` measures a plan.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import OmegaConf
from rich.console import Console

from tilewise.arch import HardwareProfile
from tilewise.collect.plan import Item, Plan, Timing, load_plan
from tilewise.collect.problems import problem_set
from tilewise.collect.progress import ProgressLine
from tilewise.collect.run import collect_on_gpus
from tilewise.data.splits import holdout_mask
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.kernels.pool import load_pool
from tilewise.kernels.rules import supported_mask
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Plan, and measure unless only the plan is wanted.

    Raises:
        ConfigError: a setting is out of its range, or the op has no problem set.
        DataError: the output exists, or the plan or journal cannot be used.
        MeasurementError: there is no such GPU here.
    """
    console = Console()
    plan = load_plan(Path(cfg.input)) if cfg.input else plan_from_config(cfg)
    pairs = sum(_supported(plan, item) for item in plan.items)
    console.print(
        f"{plan.target.name}, run {plan.run_id}: {len(plan.items)} problems x {len(plan.pool)} kernels, "
        f"{pairs} supported pairs",
        soft_wrap=True,
        highlight=False,
    )
    if cfg.collect.plan:
        write_text(Path(cfg.collect.plan), plan.dumps())
        console.print(f"plan: {cfg.collect.plan}", soft_wrap=True, highlight=False)
        return
    output = Path(cfg.output or cfg.out or f"{cfg.data}/{plan.target.name}.{plan.run_id}.parquet")
    report = collect_on_gpus(plan, output, list(cfg.collect.devices), cfg.collect.jobs or None, ProgressLine())
    outcomes = ", ".join(f"{count} {status}" for status, count in report.by_status.items())
    console.print(f"{report.path}: {report.rows} rows: {outcomes}", soft_wrap=True, highlight=False)


def plan_from_config(cfg: DictConfig) -> Plan:
    """The plan that the configuration describes.

    Raises:
        ConfigError: a setting is out of its range, or there is no such problem set.
        DataError: a file of problems cannot be used.
    """
    target = Target.parse(cfg.target)
    items = _part(problem_set(target.op, cfg.collect.problems), cfg.collect.part)
    if cfg.collect.repeat is not None:
        items = repeated(items, target.op, cfg.holdout.fraction, cfg.collect.repeat)
    timing = Timing(**OmegaConf.to_container(cfg.collect.timing))  # type: ignore[arg-type]
    arch = HardwareProfile.from_dict(OmegaConf.to_container(cfg.arch), source="arch")  # type: ignore[arg-type]
    return Plan(target, arch, load_pool(target), items, timing, cfg.collect.run_id)


def _part(items: tuple[Item, ...], part: Any) -> tuple[Item, ...]:
    if part is None:
        return items
    ends = list(part) if OmegaConf.is_list(part) else [part]
    if not (len(ends) == 2 and all(isinstance(end, int) for end in ends) and 0 <= ends[0] < ends[1] <= len(items)):
        raise ConfigError(
            f"collect.part must be [FIRST,END] with FIRST < END within 0 and {len(items)} (all problems), got {ends}"
        )
    return items[slice(*ends)]


def repeated(items: tuple[Item, ...], op: str, fraction: float, others: int) -> tuple[Item, ...]:
    """What a repeat measures again for the noise ceiling: every holdout problem, and the first `others` of the rest."""
    if not isinstance(others, int) or others < 0:
        raise ConfigError(f"collect.repeat must be a whole number of at least 0, got {others!r}")
    held = holdout_mask(op, np.array([i.problem.group_key for i in items]), fraction)
    rest = [item for item, h in zip(items, held, strict=True) if not h]
    return (*(item for item, h in zip(items, held, strict=True) if h), *rest[:others])


def _supported(plan: Plan, item: Item) -> int:
    return int(supported_mask(SimpleNamespace(**plan.pool.columns), item.problem, plan.target.variant).sum())
