"""Measure kernels on this machine's GPUs, or write the plan for another machine.

tilewise collect [target=NAME] [output=FILE] [collect.devices=[0,1]] [collect.budget_s=1500]
tilewise collect collect.dry_run=true                what would be measured, why pairs are dropped, how long it may take
tilewise collect collect.plan=PLAN.json              write what would be measured, and stop
tilewise collect input=PLAN.json output=FILE         measure what a plan says
tilewise collect target=NAME collect.libraries=FOLDER measure CK Tile's kernels, see docs/ck-tile-client.md
tilewise collect collect.simulate=TABLE output=FILE  look up in a recorded table what would be measured

A killed run, or one whose budget is spent (exit status 4), goes on when the same command is given again. On a machine
with nothing but torch and triton, `python -m tilewise.collect PLAN.json FILE` measures a plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import ListConfig, OmegaConf
from rich.console import Console

from tilewise.arch import HardwareProfile
from tilewise.collect.ck_kernels import find_kernels, find_kernels_of
from tilewise.collect.forecast import forecast
from tilewise.collect.plan import Item, Plan, Timing, load_plan
from tilewise.collect.problems import problem_set
from tilewise.collect.progress import ProgressLine
from tilewise.collect.recorded import RecordedMeasurements, recorded_engine
from tilewise.collect.run import Devices, Limits, collect, collect_from_libraries, collect_on_gpus
from tilewise.data.splits import holdout_mask
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.kernels.backends import backend_of_target
from tilewise.kernels.ck.libraries import Libraries
from tilewise.kernels.pool import Pool, load_pool
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Plan, and measure unless only the plan or what it would take is wanted.

    Raises:
        ConfigError: a setting is out of its range, or the op has no problem set.
        DataError: the output exists, or the plan or journal cannot be used.
        MeasurementError: there is no such GPU here.
        UnfinishedError: the budget is spent and problems are left.
    """
    console = Console()
    settings = cfg.collect
    recorded = Path(settings.simulate) if settings.simulate else None
    found = None
    if cfg.input:
        plan = load_plan(Path(cfg.input))
    elif recorded:
        plan = _recorded_plan(cfg)
    elif backend_of_target(target := Target.parse(cfg.target)).name == "ck_tile":
        libraries = Libraries.find(target.op, settings.libraries, settings.memory)
        found = find_kernels(target, libraries, [item.problem for item in _items(cfg)])
        plan = plan_from_config(cfg, found.pool(target))
    else:
        plan = plan_from_config(cfg)
    output = Path(cfg.output or cfg.out or f"{cfg.data}/{plan.target.name}.{plan.run_id}.parquet")
    console.print(f"{plan.target.name}, run {plan.run_id} -> {output}", soft_wrap=True, highlight=False)
    if settings.plan:
        write_text(Path(settings.plan), plan.dumps())
        console.print(f"plan: {settings.plan}", soft_wrap=True, highlight=False)
        return
    devices = devices_of(settings.devices)
    jobs = settings.jobs or None
    if settings.dry_run:
        like = Path(settings.like) if settings.like else None
        console.print(str(forecast(plan, output, devices, jobs, like)), soft_wrap=True, highlight=False)
        return
    limits = Limits(settings.budget_s, settings.partial)
    if recorded:
        report = collect(plan, output, recorded_engine(recorded), [0], ProgressLine(), limits)
    elif plan.pool.backend.name == "ck_tile":
        found = found or find_kernels_of(plan, settings.libraries, settings.memory)
        report = collect_from_libraries(plan, output, found, devices, ProgressLine(), limits)
    else:
        report = collect_on_gpus(plan, output, devices, jobs, ProgressLine(), limits)
    console.print(str(report), soft_wrap=True, highlight=False)
    report.require_complete()


def _recorded_plan(cfg: DictConfig) -> Plan:
    """All that the recorded table holds of the target; its rows say that they were not measured."""
    table = RecordedMeasurements.load(cfg.collect.simulate, Target.parse(cfg.target))
    return table.plan(f"simulated-{cfg.collect.run_id}")


def devices_of(values: ListConfig) -> Devices:
    """GPU indices of ``collect.devices``, or all.

    Raises:
        ConfigError: it is neither.
    """
    if list(values) == ["all"]:
        return "all"
    if not all(isinstance(d, int) for d in values):
        raise ConfigError(f"collect.devices must be GPU indices, or [all]; got {values}")
    return list(values)


def plan_from_config(cfg: DictConfig, pool: Pool | None = None) -> Plan:
    """The plan that the configuration describes, with the pool shipped for the target unless another one is given.

    Raises:
        ConfigError: a setting is out of its range, or there is no such problem set.
        DataError: a file of problems cannot be used.
    """
    target = Target.parse(cfg.target)
    timing = Timing(**OmegaConf.to_container(cfg.collect.timing))  # type: ignore[arg-type]
    arch = HardwareProfile.from_dict(OmegaConf.to_container(cfg.arch), source="arch")  # type: ignore[arg-type]
    return Plan(target, arch, pool or load_pool(target), _items(cfg), timing, cfg.collect.run_id)


def _items(cfg: DictConfig) -> tuple[Item, ...]:
    """The problems that the configuration describes."""
    op = Target.parse(cfg.target).op
    items = _part(problem_set(op, cfg.collect.problems), cfg.collect.part)
    if cfg.collect.repeat is None:
        return items
    return repeated(items, op, cfg.holdout.fraction, cfg.collect.repeat)


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
