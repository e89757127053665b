"""Measure kernels on this machine's GPUs, or write the plan for another machine.

tilewise collect [target=NAME] [output=FILE] ['collect.devices=[0,1]'] [collect.budget_s=1500]
tilewise collect collect.dry_run=true                list the work, the dropped pairs and the expected time, and stop
tilewise collect collect.plan=PLAN.json              write the plan and stop
tilewise collect collect.repeats=20 collect.timing.warmup=5 'collect.layouts=[rcr,rrr]'    benchmark as CK Tile does
tilewise collect input=PLAN.json output=FILE         measure a plan
tilewise collect target=NAME collect.libraries=FOLDER measure CK Tile's kernels, see docs/ck-tile-client.md
tilewise collect target=NAME ck.checkout=CK ck.instances=FILE    build CK Tile's kernels that have no library first
tilewise collect op=NAME collect.kernel=MODULE:KERNEL  measure your own kernel under @tilewise.autotune
tilewise collect collect.simulate=TABLE output=FILE  look the measurements up in a recorded table
tilewise collect cluster=dask [collect.store=FOLDER]  measure on the GPU workers of many hosts, see docs/scale.md

A killed run, or one that spent its budget (exit status 4), continues when the same command is given again. On a machine
with nothing but torch and triton, `python -m tilewise.collect PLAN.json FILE` measures a plan.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import ListConfig, OmegaConf

from tilewise.arch import HardwareProfile
from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.cli.measuring.ck import find_or_build, instances_from
from tilewise.cli.measuring.tuned_kernel import collect_kernel, kernel_plan
from tilewise.cluster import ClusterSettings, open_executor
from tilewise.collect import (
    CollectLimits,
    CollectReport,
    CollectTask,
    Devices,
    Item,
    Plan,
    ProgressLine,
    Timing,
    collect_plan,
    collect_with_engine,
    forecast_plan,
    load_plan,
)
from tilewise.collect.engines import FoundKernels, ReplayTable, find_library_kernels, replay_engine
from tilewise.collect.hosts import (
    GpuSource,
    HostsTask,
    LibrarySource,
    ReplaySource,
    Source,
    collect_on_hosts,
)
from tilewise.collect.problems import load_problem_set
from tilewise.data import held_out
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.kernels import Pool, backend_of_target, load_pool
from tilewise.kernels.ck import CK_TILE, CkLibraries, complete_instance
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Plan, and measure unless only the plan or a dry run is requested.

    Raises:
        ConfigError: a setting is out of its range, the output is named after another format, or no problem set exists.
        DataError: the output exists, or the plan or journal cannot be used.
        MeasurementError: this machine has no such GPU.
        UnfinishedError: the budget is spent and problems are left.
    """
    console = plain_console()
    settings = cfg.collect
    plan, found = _plan_and_kernels(cfg)
    output = Path(cfg.output or f"{cfg.data}/{plan.target.name}/{plan.run_id}.parquet")
    require_format(output, ".parquet")
    console.print(f"{plan.target.name}, run {plan.run_id} -> {output}", soft_wrap=True, highlight=False)
    if settings.plan:
        write_text(Path(settings.plan), plan.dumps())
        console.print(f"plan: {settings.plan}", soft_wrap=True, highlight=False)
        write_result({"plan": str(settings.plan), "run_id": plan.run_id, "problems": len(plan.items)})
        return
    if settings.dry_run:
        like = Path(settings.like) if settings.like else None
        forecast = forecast_plan(plan, output, devices_of(settings.devices), settings.jobs or None, like)
        console.print(str(forecast), soft_wrap=True, highlight=False)
        write_result(dataclasses.asdict(forecast))
        return
    report = _collect(cfg, plan, output, found)
    console.print(str(report), soft_wrap=True, highlight=False)
    write_result(dataclasses.asdict(report))
    report.require_complete()


def _plan_and_kernels(cfg: DictConfig) -> tuple[Plan, FoundKernels | None]:
    """Return the plan of the configuration, and the libraries of its kernels where kernels come in libraries."""
    if cfg.input:
        plan = load_plan(Path(cfg.input))
        return plan, _built_kernels(cfg, plan) if cfg.ck.checkout else None
    if cfg.collect.simulate:
        return _recorded_plan(cfg), None
    if cfg.collect.kernel:
        return kernel_plan(cfg), None
    if not backend_of_target(target := Target.parse(cfg.target)).compiled_here:
        found = library_kernels(cfg)
        return plan_from_config(cfg, found.pool(target)), found
    return plan_from_config(cfg), None


def library_kernels(cfg: DictConfig) -> FoundKernels:
    """Return the kernels of the libraries of ``cfg.collect`` for problems of the configuration.

    Raises:
        ConfigError: no library is named, one cannot be used, or none has a kernel for the target.
    """
    target, settings = Target.parse(cfg.target), cfg.collect
    problems = [item.problem for item in _items(cfg)]
    if cfg.ck.instances:
        return find_or_build(cfg, target, problems, instances_from(str(cfg.ck.instances), cfg))
    libraries = CkLibraries.find(target.op, settings.libraries, settings.memory)
    return find_library_kernels(target, libraries, problems)


def _built_kernels(cfg: DictConfig, plan: Plan) -> FoundKernels:
    """Return the libraries of a plan's kernels, and build those that are missing."""
    if plan.pool.backend.name != CK_TILE.name:
        raise ConfigError(f"ck.checkout builds kernels of CK Tile only; the plan has {plan.pool.backend.label}'s")
    wanted = [complete_instance(kernel, plan.target, plan.arch) for kernel in plan.pool.kernels]
    return find_or_build(cfg, plan.target, [item.problem for item in plan.items], wanted)


def _recorded_plan(cfg: DictConfig) -> Plan:
    """Return a plan of the target's pairs in the recorded table; its run id marks the rows as simulated."""
    table = ReplayTable.load(cfg.collect.simulate, Target.parse(cfg.target))
    return table.plan(f"simulated-{cfg.collect.run_id}")


def _collect(cfg: DictConfig, plan: Plan, output: Path, found: FoundKernels | None) -> CollectReport:
    """Measure a plan on this machine, on other hosts, or by looking measurements up."""
    settings, cluster = cfg.collect, ClusterSettings.from_config(cfg.cluster)
    limits = CollectLimits(settings.budget_s, settings.partial)
    if settings.kernel:
        if cluster.kind != "local":
            raise ConfigError(f"collect.kernel is measured on this machine only; leave out cluster={cluster.kind}")
        return collect_kernel(cfg, plan, output, limits)
    if cluster.kind != "local":
        store = settings.store or str(output.absolute().with_name(f"{output.name}.shards"))
        task = HostsTask(plan, output, store, _source(cfg, plan), settings.shard, limits=limits)
        with open_executor(cluster) as executor:
            return collect_on_hosts(task, executor, ProgressLine())
    if settings.simulate:
        return collect_with_engine(plan, output, replay_engine(settings.simulate), [0], ProgressLine(), limits)
    means = (settings.jobs or None, settings.libraries, settings.memory, found)
    return collect_plan(CollectTask(plan, output, devices_of(settings.devices), limits, *means))


def _source(cfg: DictConfig, plan: Plan) -> Source:
    """Return the source of the plan's engines on other hosts."""
    settings = cfg.collect
    if settings.simulate:
        return ReplaySource(str(Path(settings.simulate).absolute()))
    if all(source.compiled_here for source in plan.pool.backend.sources):
        return GpuSource(settings.jobs or None)
    return LibrarySource(settings.libraries, settings.memory)


def devices_of(values: ListConfig) -> Devices:
    """Return the GPU indices of ``collect.devices``, or "all".

    Raises:
        ConfigError: the value is neither a list of whole numbers nor [all].
    """
    if list(values) == ["all"]:
        return "all"
    if not all(isinstance(d, int) for d in values):
        raise ConfigError(f"collect.devices must be GPU indices, or [all]; got {values}")
    return list(values)


def plan_from_config(cfg: DictConfig, pool: Pool | None = None) -> Plan:
    """Return the plan of the configuration, with `pool` or the pool shipped for the target.

    Raises:
        ConfigError: a setting is out of its range, or there is no such problem set.
        DataError: a file of problems cannot be used.
    """
    target = Target.parse(cfg.target)
    timing = Timing(**OmegaConf.to_container(cfg.collect.timing))  # type: ignore[arg-type]
    if cfg.collect.repeats is not None:
        timing = timing.repeated(cfg.collect.repeats)
    arch = HardwareProfile.from_dict(OmegaConf.to_container(cfg.arch), source="arch")  # type: ignore[arg-type]
    return Plan(target, arch, pool or load_pool(target), _items(cfg), timing, cfg.collect.run_id)


def _items(cfg: DictConfig) -> tuple[Item, ...]:
    """Return the problems of the configuration."""
    target = Target.parse(cfg.target)
    items = in_layouts(load_problem_set(target.op, cfg.collect.problems), target, cfg.collect.layouts)
    items = _part(items, cfg.collect.part)
    if cfg.collect.repeat is None:
        return items
    return repeated(items, target, cfg.holdout.fraction, cfg.collect.repeat)


def in_layouts(items: tuple[Item, ...], target: Target, layouts: ListConfig | None) -> tuple[Item, ...]:
    """Return the problems in each of the layouts, every one once; None leaves them as they are.

    Raises:
        ConfigError: the op does not have a layout.
    """
    if layouts is None:
        return items
    known = target.problem_type.layouts
    unknown = [layout for layout in layouts if layout not in known]
    if unknown or not layouts:
        raise ConfigError(f"collect.layouts must be of {', '.join(known)}, got {list(layouts)}")
    found = {dataclasses.replace(i.problem, layout=layout): i for layout in layouts for i in items}  # type: ignore[call-arg]
    return tuple(dataclasses.replace(item, problem=problem) for problem, item in found.items())


def _part(items: tuple[Item, ...], part: object) -> tuple[Item, ...]:
    if part is None:
        return items
    ends = list(part) if isinstance(part, ListConfig) else [part]
    match ends:
        case [int(first), int(end)] if 0 <= first < end <= len(items):
            return items[first:end]
    raise ConfigError(
        f"collect.part must be [FIRST,END] with FIRST < END within 0 and {len(items)} (all problems), got {ends}"
    )


def repeated(items: tuple[Item, ...], target: Target, fraction: float, others: int) -> tuple[Item, ...]:
    """Return the problems to repeat for the noise ceiling: all of the holdout, and the first `others` of the rest."""
    if not isinstance(others, int) or others < 0:
        raise ConfigError(f"collect.repeat must be a whole number of at least 0, got {others!r}")
    held = held_out(target, np.array([i.problem.group_key for i in items]), fraction)
    rest = [item for item, h in zip(items, held, strict=True) if not h]
    return (*(item for item, h in zip(items, held, strict=True) if h), *rest[:others])
