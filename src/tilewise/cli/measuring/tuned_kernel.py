"""Measure a kernel under ``@tilewise.autotune``: part of the verb collect.

collect.problems names a problem set, "sampler" (collect.draw keys of the kernel's sampler) or "calls" (the keys that
this user's cache knows). Without it the sampler is asked, or else the calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

from tilewise.arch import HardwareProfile
from tilewise.autotuning import Tunable
from tilewise.autotuning.op import KernelEngine, KernelOp, find_kernel
from tilewise.autotuning.records import TUNED_FOLDER, read_records
from tilewise.cli._console import plain_console
from tilewise.cli.project.own_ops import definition_text
from tilewise.collect import CollectLimits, CollectReport, Item, Plan, ProgressLine, Timing, collect_with_engine
from tilewise.collect.problems import load_problem_set
from tilewise.conf_files import PROJECT
from tilewise.dispatch.sources import cache_folder
from tilewise.errors import ConfigError, ProblemError
from tilewise.files import write_text
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

SAMPLER, CALLS = "sampler", "calls"


def kernel_plan(cfg: DictConfig) -> Plan:
    """Return the plan of the configuration for the kernel that ``collect.kernel`` names.

    Raises:
        ConfigError: the kernel cannot be found or is of another op, or there are no keys to measure.
        DataError: a file of problems cannot be used.
    """
    kernel, target = find_kernel(str(cfg.collect.kernel)), Target.parse(cfg.target)
    if kernel.name != target.op:
        raise ConfigError(f"collect.kernel={cfg.collect.kernel}: it is of op {kernel.name}; set op={kernel.name}")
    timing = Timing(**OmegaConf.to_container(cfg.collect.timing))  # type: ignore[arg-type]
    arch = HardwareProfile.from_dict(OmegaConf.to_container(cfg.arch), source="arch")  # type: ignore[arg-type]
    return Plan(target, arch, kernel.op.pool(target), _items(cfg, kernel), timing, cfg.collect.run_id)


def _keep_definition(op: KernelOp) -> Path | None:
    """Write the definition of a kernel to the project's ``conf/op``; return the file, or None where it is the same.

    Raises:
        OSError: the folder cannot be written.
    """
    path, text = PROJECT / "op" / f"{op.definition.name}.yaml", definition_text(op.definition)
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return None
    write_text(path, text)
    return path


def collect_kernel(cfg: DictConfig, plan: Plan, output: Path, limits: CollectLimits) -> CollectReport:
    """Keep the kernel's definition, and measure a plan of :func:`kernel_plan` in worker processes, one per device.

    Raises:
        DataError: the output exists, or its journal belongs to another plan.
        MeasurementError: no worker can be started.
    """
    kept = _keep_definition(find_kernel(str(cfg.collect.kernel)).op)
    plain_console().print(f"definition: {kept or 'unchanged'}", soft_wrap=True, highlight=False)
    devices = list(cfg.collect.devices)
    indices = [0] if devices == ["all"] else [int(device) for device in devices]
    factory = partial(KernelEngine, place=str(cfg.collect.kernel))
    return collect_with_engine(plan, output, factory, indices, ProgressLine(), limits)


def _items(cfg: DictConfig, kernel: Tunable) -> tuple[Item, ...]:
    stated = cfg.collect.problems
    if stated not in (None, SAMPLER, CALLS):
        return load_problem_set(kernel.name, stated)
    if stated == SAMPLER or (stated is None and kernel.has_sampler):
        keys = kernel.draw_keys(int(cfg.collect.draw), int(cfg.seed))
        return tuple(Item(kernel.op.problem_of(key), SAMPLER) for key in keys)
    problems = dict.fromkeys(_called(kernel))
    if not problems:
        raise ConfigError(
            f"{kernel.name}: no keys to measure: name a problem set with collect.problems, define a sampler, or call "
            "the kernel first"
        )
    return tuple(Item(problem, CALLS) for problem in problems)


def _called(kernel: Tunable) -> Iterator[Problem]:
    for record in read_records(cache_folder() / TUNED_FOLDER, kernel.name):
        try:
            yield kernel.op.problem(record.key)
        except ProblemError:  # recorded with another key
            continue
