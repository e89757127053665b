"""The backends: who makes a kernel, what its columns are, and which rules hold for it. One registry.

``conf/arch`` names the backend of an arch. Whatever works for kernels of any backend asks here: :func:`backend` where
the target or the profile is known, :func:`backend_of` where a kernel is, :func:`backend_of_columns` where a table is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewise.arch import HardwareProfile, load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import rules as triton_rules
from tilewise.kernels._base import KernelBase
from tilewise.kernels.ck import rules as ck_rules
from tilewise.kernels.ck.kernel import CkKernel, canonical_name
from tilewise.kernels.kernel import Kernel
from tilewise.ops import Problem, Target

__all__ = [
    "BACKENDS",
    "Backend",
    "KernelBase",
    "backend",
    "backend_of",
    "backend_of_columns",
    "backend_of_target",
    "illegal",
    "supported_mask",
    "unsupported",
]


@dataclass(frozen=True)
class Backend:
    """Who makes kernels.

    Attributes:
        name: as in ``conf/arch``.
        kernel: the type of its kernels; its fields are the kernel columns.
        illegal: why a configuration cannot run for a target on an arch whatever the problem, or None.
        checks: what a legal kernel (or a namespace of kernel columns) supports: (broken, reason) for problem, variant.
        dtypes: types that it has kernels for, by op.
        canonical: the kernel name that stands in tables, from any spelling of it; a KernelError where there is none.
    """

    name: str
    kernel: type[KernelBase]
    illegal: Callable[[Any, Target, HardwareProfile], str | None]
    checks: Callable[[Any, Problem, str], Iterator[tuple[Any, str]]]
    dtypes: Mapping[str, tuple[str, ...]]
    canonical: Callable[[str], str]


BACKENDS: dict[str, Backend] = {
    b.name: b
    for b in (
        Backend("triton", Kernel, triton_rules.illegal, triton_rules.checks, triton_rules.DTYPES, str),
        Backend("ck_tile", CkKernel, ck_rules.illegal, ck_rules.checks, ck_rules.DTYPES, canonical_name),
    )
}


def backend(name: str) -> Backend:
    """The backend of this name.

    Raises:
        ConfigError: there is none.
    """
    if name not in BACKENDS:
        raise ConfigError(f"backend {name!r} is unknown; known are {', '.join(BACKENDS)}")
    return BACKENDS[name]


def backend_of_target(target: Target) -> Backend:
    """The backend that the target's arch takes its kernels from.

    Raises:
        ConfigError: the arch is unknown, or names an unknown backend.
    """
    return backend(load_arch(target.arch).backend)


def backend_of(kernel: KernelBase) -> Backend:
    """The backend that a kernel is of.

    Raises:
        KernelError: it is of none.
    """
    for known in BACKENDS.values():
        if type(kernel) is known.kernel:
            return known
    raise KernelError(f"{kernel!r} is a kernel of no backend; known are {', '.join(BACKENDS)}")


def backend_of_columns(names: Iterable[str]) -> Backend:
    """The backend whose kernel columns a table has: of which the fewest are missing, the first of those."""
    there = set(names)
    return min(BACKENDS.values(), key=lambda b: len(set(b.kernel.column_names()) - there))


def illegal(kernel: KernelBase, target: Target, arch: HardwareProfile) -> str | None:
    """Why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    return backend_of(kernel).illegal(kernel, target, arch)


def unsupported(kernel: KernelBase, problem: Problem, variant: str) -> str | None:
    """Why `kernel` cannot compute `problem`, or None. `kernel` must be legal."""
    rules = backend_of(kernel).checks(kernel, problem, variant)
    return next((reason for broken, reason in rules if broken), None)


def supported_mask(of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str) -> np.ndarray:
    """Which of many kernels compute `problem`: bool, (kernels,).

    Args:
        of: the backend of the kernels.
        columns: their columns by name, arrays of shape (kernels,); the kernels must be legal.
        problem: the shape.
        variant: the variant of its op.
    """
    broken = np.zeros(np.shape(columns["tile_m"]), dtype=bool)
    for rule, _ in of.checks(SimpleNamespace(**columns), problem, variant):
        broken |= rule
    return ~broken


def reasons(of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str) -> np.ndarray:
    """What :func:`unsupported` says of each of many kernels: (kernels,) text or None; arguments as above."""
    found = np.full(np.shape(columns["tile_m"]), None, dtype=object)
    left = np.ones(found.shape, dtype=bool)
    for rule, reason in of.checks(SimpleNamespace(**columns), problem, variant):
        found[left & rule] = reason
        left &= ~np.asarray(rule)
    return found
