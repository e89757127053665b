"""Compile the Triton programs of a target's pool ahead of their use, and carry them to other machines.

tilewise compile [target=NAME] [collect.problems=SET] [output=FILE.zip]
                                   compile on all cores into Triton's cache, and pack the programs into a file
tilewise compile input=FILE.zip    put the programs of a file into Triton's cache, after checking all of it

Needs triton, but no GPU. The kernels are those of the model in model_dir, or of the shipped pool. The problems are a
set as `tilewise collect` takes them, or `tilewise cache problems` writes them. Problems of equal alignment share
programs. A file is for machines with the same tilewise, Triton and arch (docs/running.md).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.checks import require_format
from tilewise.cli._console import write_out, write_result
from tilewise.cli.measuring.collect import plan_from_config
from tilewise.collect import (
    Origin,
    Package,
    Plan,
    ProgressLine,
    cached_files,
    compile_ahead,
    install_package,
    listed_programs,
    read_package,
    write_package,
)
from tilewise.errors import ConfigError
from tilewise.kernels import load_pool
from tilewise.model import load_artefact
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

_MAX_NAMED = 3


def run(cfg: DictConfig) -> None:
    """Compile the programs of ``cfg.target``, or install those of the file ``cfg.input``.

    Raises:
        ConfigError: the target's kernels are not compiled by Triton for a GPU of NVIDIA.
        DataError: the file is damaged, or was made for other versions.
    """
    if cfg.input:
        package = read_package(Path(cfg.input))
        added = install_package(package)
        write_out(f"{package.target}: {len(package.programs)} programs, {added} of them new in Triton's cache\n")
        write_result({"target": package.target, "programs": len(package.programs), "added": added})
        return
    if cfg.output:
        require_format(Path(cfg.output), ".zip")
    plan = _plan(cfg)
    with tempfile.TemporaryDirectory() as listing:
        progress = ProgressLine()
        failed = compile_ahead(plan, cfg.collect.jobs or None, _step(progress), listing=Path(listing))
        programs = listed_programs(Path(listing))
    if cfg.output:
        files = {key: cached_files(key, name) for key, name in programs}
        write_package(Path(cfg.output), Package(plan.target.name, Origin.here(plan.arch.name), files))
    named = "".join(f"; {config}: {why}" for config, why in list(failed.items())[:_MAX_NAMED])
    where = f", packed into {cfg.output}" if cfg.output else ""
    write_out(f"{plan.target.name}: {len(programs)} programs compiled{where}; {len(failed)} kernels failed{named}\n")
    write_result({"target": plan.target.name, "programs": len(programs), "failed": failed, "output": cfg.output})


def _step(progress: ProgressLine) -> Callable[[int, int], None]:
    return lambda done, total: progress("compiled", done, total)


def _plan(cfg: DictConfig) -> Plan:
    """Return the kernels and problems to compile for."""
    from tilewise.kernels.triton.programs import interpreted  # imports triton, which input= of a bad file need not

    target = Target.parse(cfg.target)
    folder = Path(cfg.model_dir)
    pool = load_artefact(folder).pool if folder.is_dir() else load_pool(target)
    plan = plan_from_config(cfg, pool)
    if interpreted():
        raise ConfigError("TRITON_INTERPRET=1 asks for Triton's interpreter, which compiles nothing; unset it")
    if plan.arch.vendor != "nvidia" or not any(source.compiled_here for source in pool.backend.sources):
        raise ConfigError(f"{target.name} has no kernels that Triton compiles for a GPU of NVIDIA; name another target")
    return plan
