"""Which kernels a user's CK Tile libraries hold, so that a plan can name them and a worker find them.

A library runs what it selects itself, so only one that holds a single kernel measures a kernel that is known. Which
one it is, a process of its own asks: a library that crashes when it is loaded must not take the run along.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tilewise.collect.engine import EngineFactory
from tilewise.collect.plan import Plan
from tilewise.errors import ConfigError, TilewiseError
from tilewise.kernels.ck.kernel import parse_name
from tilewise.kernels.ck.libraries import Libraries, Memory, chosen_kernel
from tilewise.kernels.ck.library import Library
from tilewise.kernels.pool import Pool
from tilewise.ops import Problem, Target

_ANSWER_S = 60.0  # for a library to load, start and name its kernel


@dataclass(frozen=True)
class Found:
    """The kernels of some libraries.

    Attributes:
        files: of the library that is each kernel, by the kernel's name.
        memory: where their tensors lie.
    """

    files: Mapping[str, Path]
    memory: Memory

    def pool(self, target: Target) -> Pool:
        """All of them, in the order of the files."""
        return Pool(target.op, target.variant, target.dtype, tuple(parse_name(name).kernel for name in self.files))

    def engine(self, plan: Plan) -> EngineFactory:
        """What measures `plan`.

        Raises:
            ConfigError: a kernel of the plan has no library.
        """
        missing = [name for name in plan.pool.names if name not in self.files]
        if missing:
            raise ConfigError(f"{len(missing)} kernels of the plan have no library, e.g. {missing[0]}")
        from tilewise.collect.ck import CkEngine  # imports torch

        return partial(CkEngine, self.files, self.memory)


def find_kernels(target: Target, libraries: Libraries, problems: Sequence[Problem]) -> Found:
    """Ask each library for its kernel; those of other targets are left out with a warning.

    Args:
        target: whose kernels are meant.
        libraries: the libraries.
        problems: a library is asked for what it selects for the first of these that it supports.

    Raises:
        ConfigError: a library cannot be used, holds several kernels, or the same one as another; none is left. The
            message names the file.
    """
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe(duplex=False)
    asked = spawn.Process(target=_tell, args=(there, target, libraries, problems), daemon=True)
    asked.start()
    there.close()
    files: dict[str, Path] = {}
    try:
        for file in libraries.files:
            name = _answer(here, file)
            if name is None:
                warnings.warn(f"{file} runs none of the {len(problems)} problems of {target.name}", stacklevel=2)
            elif name in files:
                raise ConfigError(f"{file} holds the same kernel as {files[name]}: {name}")
            else:
                files[name] = file
    finally:
        asked.kill()
        asked.join()
    if not files:
        raise ConfigError(f"no library has a kernel for a problem of {target.name}")
    return Found(files, libraries.memory)


def find_kernels_of(plan: Plan, paths: str | None, memory: str | None) -> Found:
    """The libraries of a plan's kernels, named as for :meth:`tilewise.kernels.ck.libraries.Libraries.find`.

    Raises:
        ConfigError: none is named, or one cannot be used.
    """
    libraries = Libraries.find(plan.target.op, paths, memory)
    return find_kernels(plan.target, libraries, [item.problem for item in plan.items])


def _answer(connection: Connection, file: Path) -> str | None:
    if not connection.poll(_ANSWER_S):
        raise ConfigError(f"{file} cannot be used: no answer within {_ANSWER_S:g} s")
    try:
        name, error = connection.recv()
    except EOFError:
        raise ConfigError(f"{file} cannot be used: it crashes when it is asked for its kernel") from None
    if error:
        raise ConfigError(error)
    return None if name is None else str(name)


def _tell(connection: Connection, target: Target, libraries: Libraries, problems: Sequence[Problem]) -> None:
    """In a process of its own: the kernel of each library, or what is wrong with it."""
    for file in libraries.files:
        name, error = None, None
        try:
            with libraries.open(file) as library:
                name = _kernel_of(library, target, problems)
        except TilewiseError as e:
            error = str(e)
        connection.send((name, error))


def _kernel_of(library: Library, target: Target, problems: Sequence[Problem]) -> str | None:
    if library.kernel_count > 1:
        raise ConfigError(
            f"{library.path} holds {library.kernel_count} kernels and chooses itself: measuring needs one a library"
        )
    names = (chosen_kernel(library, problem, target) for problem in problems)
    return next((name for name in names if name is not None), None)
