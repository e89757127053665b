"""Kernels of a user's CK Tile libraries: a plan names them, and a worker finds the library of each.

A library selects its kernel itself, so only a library with a single kernel measures a known kernel. A separate process
asks each library for its kernel, because a library may crash when it is loaded.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tilewise.collect._plan import Plan
from tilewise.collect.engines._engine import EngineFactory
from tilewise.errors import ConfigError, TilewiseError
from tilewise.kernels import Pool
from tilewise.kernels.ck import CkLibraries, CkLibrary, TensorMemory, chosen_kernel, parse_name
from tilewise.ops import Problem, Target

_ANSWER_S = 60.0  # for a library to load, start and name its kernel


@dataclass(frozen=True)
class FoundKernels:
    """Kernels found in libraries.

    Attributes:
        files: the library of each kernel, by the kernel's name.
        memory: where the tensors lie.
    """

    files: Mapping[str, Path]
    memory: TensorMemory

    def pool(self, target: Target) -> Pool:
        """Return the pool of all kernels, in the order of the files."""
        return Pool(target.op, target.variant, target.dtype, tuple(parse_name(name).kernel for name in self.files))

    def engine(self, plan: Plan) -> EngineFactory:
        """Return the factory of the engine that measures `plan`.

        Raises:
            ConfigError: a kernel of the plan has no library.
        """
        missing = [name for name in plan.pool.names if name not in self.files]
        if missing:
            raise ConfigError(
                f"{len(missing)} kernels of the plan have no library, e.g. {missing[0]}; name more libraries"
            )
        from tilewise.collect.engines._ck_engine import CkEngine  # imports torch

        return partial(CkEngine, self.files, self.memory)


def find_library_kernels(target: Target, libraries: CkLibraries, problems: Sequence[Problem]) -> FoundKernels:
    """Ask each library for its kernel; warn about libraries without a kernel for the target, and skip them.

    Args:
        target: the target of the kernels.
        libraries: the libraries.
        problems: each library is asked for its selection for the first of these problems that it supports.

    Raises:
        ConfigError: a library cannot be used, holds several kernels, or holds the same kernel as another; or no library
            has a kernel. The message names the file.
    """
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    asking = spawn.Process(target=_send_kernels, args=(theirs, target, libraries, problems), daemon=True)
    asking.start()
    theirs.close()
    files: dict[str, Path] = {}
    try:
        for file in libraries.files:
            name = _receive_name(ours, file)
            if name is None:
                warnings.warn(f"{file} runs none of the {len(problems)} problems of {target.name}", stacklevel=2)
            elif name in files:
                raise ConfigError(f"{file} holds the same kernel as {files[name]}: {name}")
            else:
                files[name] = file
    finally:
        asking.kill()
        asking.join()
    if not files:
        raise ConfigError(f"no library has a kernel for a problem of {target.name}; name libraries of this target")
    return FoundKernels(files, libraries.memory)


def find_plan_kernels(plan: Plan, paths: str | None, memory: str | None) -> FoundKernels:
    """Find the libraries of a plan's kernels; `paths` and `memory` as in :meth:`tilewise.kernels.ck.CkLibraries.find`.

    Raises:
        ConfigError: no library is named, or one cannot be used.
    """
    libraries = CkLibraries.find(plan.target.op, paths, memory)
    return find_library_kernels(plan.target, libraries, [item.problem for item in plan.items])


def _receive_name(connection: Connection, file: Path) -> str | None:
    if not connection.poll(_ANSWER_S):
        raise ConfigError(f"{file} cannot be used: no answer within {_ANSWER_S:g} s")
    try:
        name, error = connection.recv()
    except EOFError:
        raise ConfigError(f"{file} cannot be used: it crashes when it is asked for its kernel") from None
    if error:
        raise ConfigError(error)
    return None if name is None else str(name)


def _send_kernels(connection: Connection, target: Target, libraries: CkLibraries, problems: Sequence[Problem]) -> None:
    """Send (kernel name, error) of each library; runs in a separate process."""
    for file in libraries.files:
        name, error = None, None
        try:
            with libraries.open(file) as library:
                name = _kernel_of(library, target, problems)
        except TilewiseError as e:
            error = str(e)
        connection.send((name, error))


def _kernel_of(library: CkLibrary, target: Target, problems: Sequence[Problem]) -> str | None:
    if library.kernel_count > 1:
        raise ConfigError(
            f"{library.path} holds {library.kernel_count} kernels and chooses itself: build one library per kernel"
        )
    names = (chosen_kernel(library, problem, target) for problem in problems)
    return next((name for name in names if name is not None), None)
