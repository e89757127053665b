"""The registry of backends, and the questions that code for all backends asks.

``conf/arch`` names the backend of an arch. :func:`backend` serves a known name, :func:`backend_of_target` a target,
:func:`backend_of` a kernel, :func:`backend_of_columns` a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace

import numpy as np

from tilewise.arch import HardwareProfile, load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels._contract import Backend, KernelBase
from tilewise.ops import Problem, Target


def _triton() -> Backend:
    from tilewise.kernels.triton import TRITON

    return TRITON


def _ck_tile() -> Backend:
    from tilewise.kernels.ck import CK_TILE

    return CK_TILE


# Each backend is imported on first use: a dispatcher needs only one of them.
BACKENDS: dict[str, Callable[[], Backend]] = {"triton": _triton, "ck_tile": _ck_tile}


def backend(name: str) -> Backend:
    """Return the backend of this name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in BACKENDS:
        raise ConfigError(f"backend {name!r} is unknown; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]()


def backend_of_target(target: Target) -> Backend:
    """Return the backend that the target's arch takes its kernels from.

    Raises:
        ConfigError: the arch is unknown, or names an unknown backend.
    """
    return backend(load_arch(target.arch).backend)


def backend_of(kernel: KernelBase) -> Backend:
    """Return the backend of a kernel.

    Raises:
        KernelError: no backend has kernels of this type.
    """
    for load in BACKENDS.values():
        known = load()
        if type(kernel) is known.kernel:
            return known
    raise KernelError(f"{kernel!r} is a kernel of no backend; known are {', '.join(BACKENDS)}")


def backend_of_columns(names: Iterable[str]) -> Backend:
    """Return the backend whose kernel columns a table has: the first with the fewest columns missing."""
    present = set(names)
    return min((load() for load in BACKENDS.values()), key=lambda b: len(set(b.kernel.column_names()) - present))


def illegal(kernel: KernelBase, target: Target, arch: HardwareProfile) -> str | None:
    """Return why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    return backend_of(kernel).illegal(kernel, target, arch)


def unsupported(kernel: KernelBase, problem: Problem, variant: str) -> str | None:
    """Return why a legal `kernel` cannot compute `problem`, or None."""
    rules = backend_of(kernel).checks(kernel, problem, variant)
    return next((reason for broken, reason in rules if broken), None)


def supported_mask(of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str) -> np.ndarray:
    """Return which of many kernels compute `problem`: bool, (kernels,).

    Args:
        of: the backend of the kernels.
        columns: their columns by name, arrays of shape (kernels,); the kernels must be legal.
        problem: the problem.
        variant: the variant of its op.
    """
    broken = np.zeros(np.shape(columns["tile_m"]), dtype=bool)
    for rule, _ in of.checks(SimpleNamespace(**columns), problem, variant):
        broken |= rule
    return ~broken


def reasons(of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str) -> np.ndarray:
    """Return the answer of :func:`unsupported` for each of many kernels: (kernels,) text or None.

    The arguments are those of :func:`supported_mask`.
    """
    found = np.full(np.shape(columns["tile_m"]), None, dtype=object)
    left = np.ones(found.shape, dtype=bool)
    for rule, reason in of.checks(SimpleNamespace(**columns), problem, variant):
        found[left & rule] = reason
        left &= ~np.asarray(rule)
    return found
