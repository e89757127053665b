"""Build libraries of CK Tile's kernels, and write their manifest; no GPU is needed.

tilewise ck build input=INSTANCES output=FOLDER arch=gfx942 ck.checkout=CK [filter=...] [collect.jobs=N]
tilewise ck link input=FOLDER

`input` is any source of `tilewise instances`: a sweep, a dispatcher JSON, a .conf, instance strings. build prints the
path of each library when it is done; a killed build goes on when the same command is given again. link writes
manifest.json, which collect.libraries takes like a folder, and for convolutions CK's own instances.json.
docs/building-ck-kernels.md explains errors.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tilewise.arch import load_arch
from tilewise.checks import require
from tilewise.cli._console import write_out, write_result
from tilewise.collect.building import BuildReport, BuildSettings, Built, Checkout, Compiler, build_libraries
from tilewise.collect.engines import FoundKernels, find_library_kernels
from tilewise.errors import ConfigError
from tilewise.kernels import filter_fields, parse_filter, read_source
from tilewise.kernels.ck import AnyInstance, CkLibraries, ConfHeader, link_manifest
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

ACTIONS = ("build", "link")


def run(cfg: DictConfig) -> None:
    """Run ``cfg.action``.

    Raises:
        ConfigError: the action or a setting is missing, or a part of the toolchain cannot be used.
        KernelError: the source is invalid, or an instance cannot be built.
        LibraryError: a kernel was not built, or a folder is not an instance library.
    """
    if cfg.action not in ACTIONS:
        raise ConfigError(f"ck needs an action, one of {', '.join(ACTIONS)}; got {cfg.action!r}")
    if not cfg.input:
        reads = "a folder of libraries" if cfg.action == "link" else "instances"
        raise ConfigError(f"input: missing; ck {cfg.action} reads {reads}")
    if cfg.action == "link":
        manifest = link_manifest(Path(cfg.input))
        write_out(f"{manifest.path}: {len(manifest.libraries)} libraries\n")
        write_result({"manifest": str(manifest.path), "libraries": sorted(manifest.libraries)})
        return
    if not cfg.output:
        raise ConfigError("output: missing; name the folder of the libraries, e.g. output=build/ck")
    report = build(cfg, instances_from(str(cfg.input), cfg), Path(cfg.output))
    write_result([asdict(built) for built in report.built])
    report.require_all()


def instances_from(where: str, cfg: DictConfig) -> tuple[AnyInstance, ...]:
    """Return the instances of a source that pass ``cfg.filter``.

    Raises:
        ConfigError: the filter is invalid, or none passes it.
        KernelError: the source is invalid.
    """
    source = read_source(where, ConfHeader(dtype=cfg.dtype.name), load_arch(cfg.arch.name))
    if not cfg.filter:
        return source.instances
    passes = parse_filter(str(cfg.filter), filter_fields(source))
    found = tuple(e.instance for e in source.entries if passes(e.fields) and e.instance is not None)
    if not found:
        raise ConfigError(f"{where}: the filter matches none of {len(source.entries)} instances; nothing is built")
    return found


def build(cfg: DictConfig, instances: Sequence[AnyInstance], output: Path) -> BuildReport:
    """Build libraries by the settings of ``cfg.ck``, and print the path of each.

    Raises:
        ConfigError: no checkout is named, or a part of the toolchain cannot be used.
        KernelError: an instance cannot be built.
    """
    settings = cfg.ck
    if not settings.checkout:
        raise ConfigError("ck.checkout: missing; name a folder of Composable Kernel")
    require("ck.timeout_s must be positive", settings.timeout_s > 0, settings.timeout_s)
    toolchain = BuildSettings(
        checkout=Checkout.open(settings.checkout),
        compiler=Compiler.find(settings.compiler),
        arch=cfg.arch.name,
        cache=Path(settings.cache),
        jobs=cfg.collect.jobs or None,
        timeout_s=settings.timeout_s,
    )
    return build_libraries(instances, toolchain, output, _show)


def find_or_build(
    cfg: DictConfig, target: Target, problems: Sequence[Problem], wanted: Sequence[AnyInstance]
) -> FoundKernels:
    """Return the libraries that are named, and a library for each wanted instance that they lack; warn of failures.

    Args:
        cfg: the configuration, with ``cfg.ck`` and ``cfg.collect``.
        target: the target to measure.
        problems: each library is asked for its kernel for the first of these that it supports.
        wanted: the candidates.

    Raises:
        ConfigError: a library or the toolchain cannot be used, or no kernel has a library in the end.
    """
    settings, known = cfg.collect, {}
    if CkLibraries.are_named(target.op, settings.libraries):
        libraries = CkLibraries.find(target.op, settings.libraries, settings.memory)
        known = dict(find_library_kernels(target, libraries, problems).files)
    missing = [instance for instance in wanted if instance.name not in known]
    if missing:
        report = build(cfg, missing, Path(cfg.ck.output))
        for failed in report.failed:
            warnings.warn(f"{failed.name} was not built: {failed.error}; see {failed.log}", stacklevel=2)
        paths = [str(built.path) for built in report.built if built.path is not None]
        if not paths and not known:
            report.require_all()
        if paths:
            libraries = CkLibraries.find(target.op, ":".join(paths), settings.memory)
            known |= find_library_kernels(target, libraries, problems).files
    return FoundKernels(known, CkLibraries.memory_of(target.op, settings.memory))


def _show(built: Built, done: int, total: int) -> None:
    if built.path is None:
        print(f"[{done}/{total}] {built.name} failed: {built.error} ({built.log})", file=sys.stderr)
    else:
        write_out(f"[{done}/{total}] {built.path}{' (cached)' if built.from_cache else ''}\n")
