"""The registry of backends, and the questions that code for all backends asks.

``conf/arch`` names the backend of an arch. :func:`backend` serves a known name, :func:`backend_of_target` a target,
:func:`backend_of` a kernel, :func:`backend_of_columns` a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt

from tilewise.arch import HardwareProfile, load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels._contract import Backend, KernelBase
from tilewise.kernels._defined import DefinedKernel, defined_backend
from tilewise.kernels._mixture import SEPARATOR, mixture
from tilewise.ops import Problem, Target, definition_of, find_definition

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_SIDE_BY_SIDE = 256  # problems; their arrays stay in the processor's caches
_MOST_WORK = 2**53  # FLOPs, or bytes: rules multiply them by some sizes of tiles at most


def _triton() -> Backend:
    from tilewise.kernels.triton import TRITON

    return TRITON


def _ck_tile() -> Backend:
    from tilewise.kernels.ck import CK_TILE

    return CK_TILE


def _vendor() -> Backend:
    from tilewise.kernels.vendor import VENDOR

    return VENDOR


def _miopen() -> Backend:
    from tilewise.kernels.miopen import MIOPEN

    return MIOPEN


# Version of the project's own Triton programs of each op. It goes up when equal configurations become other programs
# whose times differ: older times of a problem and kernel that were measured again then no longer count, where
# :func:`compared_versions` says that the version concerns the problem. It lies outside `kernels/triton` because that
# folder's code decides whether users' caches of measurements hold.
PROGRAM_VERSIONS: dict[str, int] = {"grouped_conv": 2, "gemm": 1}

# Each backend is imported on first use: a dispatcher needs only those of its pool.
BACKENDS: dict[str, Callable[[], Backend]] = {
    "triton": _triton,
    "ck_tile": _ck_tile,
    "vendor": _vendor,
    "miopen": _miopen,
}


def compared_versions(op: str, versions: Ints, columns: Mapping[str, Ints]) -> Ints:
    """Return the first version with the programs that each row was measured with, of shape (rows,).

    A version that leaves the programs of a problem as they were supersedes none of its times.

    Args:
        op: the op of all rows.
        versions: the version of each row, of shape (rows,).
        columns: the problems' dimensions by name, each of shape (rows,).
    """
    if op != "grouped_conv":
        return versions
    loads_two_or_four = is_half_aligned(columns["C"], columns["K"], columns["G"])  # version 1 loaded one at a time
    return np.where((versions == 2) & ~loads_two_or_four, 1, versions)


def is_half_aligned(c: Ints | int, k: Ints | int, g: Ints | int) -> Bools:
    """Return whether 2 divides a group's input or output channels and 8 does not, for convolutions of these."""
    return np.asarray(np.logical_or.reduce([(n // g % 2 == 0) & (n // g % 8 != 0) for n in (c, k)]), dtype=bool)


def backend(name: str) -> Backend:
    """Return the backend of this name; names joined by ``+`` are those of a mixture.

    An op of the user's own has a backend of its name.

    Raises:
        ConfigError: a name is unknown or stands twice.
    """
    names = name.split(SEPARATOR)
    for part in names:
        if (part not in BACKENDS and find_definition(part) is None) or names.count(part) > 1:
            raise ConfigError(f"backend {part!r} is unknown or named twice; known are {', '.join(BACKENDS)}")
    order = list(BACKENDS)
    return _backend_of_names(tuple(sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))))


@cache
def _backend_of_names(names: tuple[str, ...]) -> Backend:
    loaded = tuple(BACKENDS[name]() if name in BACKENDS else _of_defined_op(name) for name in names)
    return loaded[0] if len(loaded) == 1 else mixture(loaded)


def _of_defined_op(op: str) -> Backend:
    definition = find_definition(op)
    if definition is None:
        raise ConfigError(f"op {op!r} has no definition; register it, or add conf/op/{op}.yaml")
    return defined_backend(op, definition.config)


def backend_of_kernels(kernels: Iterable[KernelBase]) -> Backend:
    """Return the backend of all these kernels together, of which there is at least one.

    Raises:
        KernelError: a kernel is of no backend.
    """
    return together(_backend_of_type(kind) for kind in dict.fromkeys(type(kernel) for kernel in kernels))


def together(backends: Iterable[Backend]) -> Backend:
    """Return the backend of the kernels of all these backends, of which there is at least one."""
    names = dict.fromkeys(source.name for known in backends for source in known.sources)
    return backend(SEPARATOR.join(names))


def backend_of_target(target: Target) -> Backend:
    """Return the backend that the target's arch takes its kernels from; that of the op where it is the user's own.

    Raises:
        ConfigError: the arch is unknown, or names an unknown backend.
    """
    if definition_of(target.op) is not None:
        return _of_defined_op(target.op)
    return backend(load_arch(target.arch).backend)


def backend_of(kernel: KernelBase) -> Backend:
    """Return the backend of a kernel.

    Raises:
        KernelError: no backend has kernels of this type.
    """
    return _backend_of_type(type(kernel))


def _backend_of_type(kind: type[KernelBase]) -> Backend:
    if issubclass(kind, DefinedKernel):
        return _of_defined_op(kind.op)
    for load in BACKENDS.values():
        known = load()
        if kind is known.kernel:
            return known
    raise KernelError(f"{kind.__name__} is a kernel of no backend; known are {', '.join(BACKENDS)}")


def backend_of_columns(names: Iterable[str], tags: Iterable[str] = ()) -> Backend:
    """Return the backend whose kernels a table holds.

    Args:
        names: of the table's columns.
        tags: the values of its column :data:`BACKEND_COLUMN`, repeated or not. Without that column the table has
            kernels of the untagged backend with the fewest columns missing.

    Raises:
        ConfigError: a tag is not the name of a backend.
    """
    if distinct := set(tags):
        return backend(SEPARATOR.join(sorted(map(str, distinct))))
    present = set(names)
    untagged = (known for load in BACKENDS.values() if not (known := load()).tagged)
    return min(untagged, key=lambda b: len(set(b.kernel.column_names()) - {*b.kernel.later_columns} - present))


def illegal(kernel: KernelBase, target: Target, arch: HardwareProfile) -> str | None:
    """Return why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    return backend_of(kernel).illegal(kernel, target, arch)


def unsupported(kernel: KernelBase, problem: Problem, variant: str, dtype: str) -> str | None:
    """Return why a legal `kernel` cannot compute `problem`, or None."""
    rules = backend_of(kernel).checks(kernel, problem, variant, dtype)
    return next((reason for broken, reason in rules if broken), None)


def supported_mask(
    of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str, dtype: str
) -> np.ndarray:
    """Return which of many kernels compute `problem`: bool, (kernels,).

    Args:
        of: the backend of the kernels.
        columns: their columns by name, arrays of shape (kernels,); the kernels must be legal.
        problem: the problem.
        variant: the variant of its op.
        dtype: the type of the operands.
    """
    return _kept(of, columns, problem, (len(next(iter(columns.values()))),), variant, dtype)


def supported_masks(
    of: Backend, columns: Mapping[str, np.ndarray], problems: Sequence[Problem], variant: str, dtype: str
) -> np.ndarray:
    """Return the answer of :func:`supported_mask` for each of many problems of one op: bool, (problems, kernels).

    Rules are computed for many problems at a time, but for sizes that int64 does not multiply, and for a backend of the
    user's own whose rules need the values of one problem.
    """
    n_kernels = len(next(iter(columns.values())))
    masks = np.empty((len(problems), n_kernels), dtype=bool)
    for start in range(0, len(problems), _SIDE_BY_SIDE):
        some = problems[start : start + _SIDE_BY_SIDE]
        here = masks[start : start + len(some)]
        try:
            here[:] = _kept(of, columns, _side_by_side(some, dtype), here.shape, variant, dtype)
        except (AttributeError, TypeError, ValueError, OverflowError):
            here[:] = [supported_mask(of, columns, p, variant, dtype) for p in some]
    return masks


def _side_by_side(problems: Sequence[Problem], dtype: str) -> Problem:
    """Return problems as one whose sizes are arrays of shape (problems, 1).

    Raises:
        OverflowError: a product of sizes may not fit int64.
    """
    if any(max(p.flops, p.min_bytes(dtype)) > _MOST_WORK for p in problems):
        raise OverflowError
    names = type(problems[0]).column_names()
    sizes = {name: np.array([getattr(p, name) for p in problems])[:, None] for name in names}
    return cast(Problem, SimpleNamespace(op=problems[0].op, **sizes))


def _kept(
    of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, shape: tuple[int, ...], variant: str, dtype: str
) -> np.ndarray:
    broken = np.zeros(shape, dtype=bool)
    for rule, _ in of.checks(SimpleNamespace(**columns), problem, variant, dtype):
        broken |= rule
    return ~broken


def reasons(of: Backend, columns: Mapping[str, np.ndarray], problem: Problem, variant: str, dtype: str) -> np.ndarray:
    """Return the answer of :func:`unsupported` for each of many kernels: (kernels,) text or None.

    The arguments are those of :func:`supported_mask`.
    """
    found = np.full(len(next(iter(columns.values()))), None, dtype=object)
    left = np.ones(found.shape, dtype=bool)
    for rule, reason in of.checks(SimpleNamespace(**columns), problem, variant, dtype):
        found[left & rule] = reason
        left &= ~np.asarray(rule)
    return found
