"""Search spaces: all kernels that the rules of :mod:`tilewise.kernels.triton` or :mod:`tilewise.kernels.ck` allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels import KernelBase, backend, illegal, unsupported
from tilewise.kernels.ck import CkKernel, legal_kernels
from tilewise.kernels.triton import Kernel, pipelines_of
from tilewise.metrics import Ints
from tilewise.model import TrainedModel
from tilewise.ops import Problem, Target

Axes = Mapping[str, tuple[str, ...] | tuple[int, ...]]

# Values in ascending order, so that a step along an axis is a small change.
_SIZES: Axes = {
    "tile_m": (4, 8, 16, 32, 64, 128, 256),
    "tile_n": (8, 16, 32, 64, 96, 128, 192, 256),
    "tile_k": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 8),
    "group_m": (1, 2, 4, 8, 16),
    "split_k": (1, 2, 4, 8, 16, 32, 64, 128, 256),
}
MAX_DRAWS = 100_000  # before a space counts as empty; a few dozen find a legal configuration


def axes_of(target: Target) -> Axes:
    """Return the values of each field of a kernel.

    Raises:
        KernelError: no pipeline serves the target's op and variant.
    """
    pipelines = pipelines_of(target.op, target.variant)
    if not pipelines:
        raise KernelError(f"no configurations to search for {target.op} {target.variant}")
    return {"pipeline": pipelines, **_SIZES}


class Space(Protocol):
    """Kernels as places, with one index per axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""

    def draw(self, rng: np.random.Generator) -> KernelBase:
        """Return a random kernel."""

    def at(self, place: Ints) -> KernelBase | None:
        """Return the kernel at a place, or the nearest one of a listed space; None where it is illegal."""

    def place(self, kernel: KernelBase) -> Ints | None:
        """Return the place of a kernel; None where a value lies on no axis."""


@dataclass(frozen=True)
class LegalSpace:
    """All configurations that are legal for the target and support the problem.

    Raises:
        KernelError: the target has no searchable kernels.
    """

    target: Target
    arch: HardwareProfile
    problem: Problem

    def __post_init__(self) -> None:
        if backend(self.arch.backend).kernel is not Kernel:
            raise KernelError(f"search configures Triton kernels; those of {self.arch.name} are of {self.arch.backend}")
        axes_of(self.target)

    @cached_property
    def axes(self) -> Axes:
        """Values of each field."""
        return axes_of(self.target)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return tuple(len(values) for values in self.axes.values())

    def draw(self, rng: np.random.Generator) -> Kernel:
        """Return a legal kernel, uniformly at random.

        Raises:
            KernelError: no draw was legal.
        """
        for _ in range(MAX_DRAWS):
            kernel = self.at(rng.integers(self.shape))
            if kernel is not None:
                return kernel
        raise KernelError(f"no legal configuration of {self.target.name} supports {self.problem}")

    def at(self, place: Ints) -> Kernel | None:
        """Return the kernel at a place; None where it is illegal or does not support the problem."""
        kernel = Kernel(**{n: values[i] for (n, values), i in zip(self.axes.items(), place, strict=True)})
        if illegal(kernel, self.target, self.arch) or unsupported(kernel, self.problem, self.target.variant):
            return None
        return kernel

    def place(self, kernel: KernelBase) -> Ints | None:
        """Return the place of a kernel; None where a value lies on no axis."""
        try:
            return np.array([values.index(getattr(kernel, n)) for n, values in self.axes.items()])
        except ValueError:
            return None


class ListedSpace:
    """Given kernels, at their places on the axes that their values span: to search among measured kernels.

    Raises:
        KernelError: `kernels` is empty.
    """

    def __init__(self, kernels: Sequence[KernelBase]) -> None:
        if not kernels:
            raise KernelError("there are no kernels to search")
        self._kernels = tuple(kernels)
        names = type(kernels[0]).column_names()
        values = [sorted({getattr(k, n) for k in kernels}) for n in names]
        self._places = np.array(
            [[v.index(getattr(k, n)) for n, v in zip(names, values, strict=True)] for k in kernels], dtype=np.int64
        )
        self._shape = tuple(len(v) for v in values)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return self._shape

    def draw(self, rng: np.random.Generator) -> KernelBase:
        """Return one of the kernels, uniformly at random."""
        return self._kernels[int(rng.integers(len(self._kernels)))]

    def at(self, place: Ints) -> KernelBase:
        """Return the kernel with the fewest steps to a place, the first of equals."""
        return self._kernels[int(np.abs(self._places - place).sum(axis=1).argmin())]

    def place(self, kernel: KernelBase) -> Ints | None:
        """Return the place of a kernel; None where it is not listed."""
        return self._places[self._kernels.index(kernel)] if kernel in self._kernels else None


def legal_space(model: TrainedModel, problem: Problem) -> Space:
    """Return the space of all kernels that are legal for a model's target and support the problem.

    Raises:
        KernelError: the pool's backend has no rules to search by, or no legal kernel supports the problem.
    """
    pool, target = model.pool, model.target
    if pool.backend.kernel is not CkKernel:
        return LegalSpace(target, model.arch, problem)
    like = tuple(k for k in pool.kernels if isinstance(k, CkKernel))
    kernels = [k for k in legal_kernels(target, model.arch, like) if not unsupported(k, problem, target.variant)]
    if not kernels:
        raise KernelError(f"no legal configuration of {target.name} supports {problem}")
    return ListedSpace(kernels)
