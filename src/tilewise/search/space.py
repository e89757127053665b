"""The configurations that a search walks through: values along axes, of which the rules say what is legal.

Nothing here knows what can run: :mod:`tilewise.kernels.rules` is asked about every configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels.backends import illegal, unsupported
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import PIPELINES
from tilewise.metrics import Ints
from tilewise.ops import Problem, Target

Axes = Mapping[str, tuple[Any, ...]]

# What a tuner would try; values of an axis in their order, for a step along it should be a small change.
_SIZES: Axes = {
    "tile_m": (4, 8, 16, 32, 64, 128, 256),
    "tile_n": (8, 16, 32, 64, 96, 128, 192, 256),
    "tile_k": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "num_warps": (1, 2, 4, 8, 16),
    "num_stages": (1, 2, 3, 4, 5, 6, 8),
    "group_m": (1, 2, 4, 8, 16),
    "split_k": (1, 2, 4, 8, 16, 32, 64, 128, 256),
}
MOST_DRAWS = 100_000  # before a space counts as empty; a few dozen find a legal configuration


def axes_of(target: Target) -> Axes:
    """The values of each field of a kernel.

    Raises:
        KernelError: there are no kernels for the target's op and variant that a search could configure.
    """
    if (target.op, target.variant) not in PIPELINES:
        raise KernelError(f"no configurations to search for {target.op} {target.variant}")
    return {"pipeline": PIPELINES[target.op, target.variant], **_SIZES}


class Space(Protocol):
    """What a search method sees: kernels as places, one index an axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Values along each axis."""

    def draw(self, rng: np.random.Generator) -> Any:
        """A kernel at random."""

    def at(self, place: Ints) -> Any | None:
        """The kernel at a place, or nearby where not every place has one; None where it is illegal."""

    def place(self, kernel: Any) -> Ints | None:
        """The place of a kernel; None where a value of it is on no axis."""


@dataclass(frozen=True)
class LegalSpace:
    """Every configuration that is legal for the target and supports the problem.

    Raises:
        KernelError: no configuration can be searched for the target.
    """

    target: Target
    arch: HardwareProfile
    problem: Problem

    def __post_init__(self) -> None:
        if self.arch.backend != "triton":
            raise KernelError(f"search configures Triton kernels; those of {self.arch.name} are of {self.arch.backend}")
        axes_of(self.target)

    @cached_property
    def axes(self) -> Axes:
        """Values by field."""
        return axes_of(self.target)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Values along each axis."""
        return tuple(len(values) for values in self.axes.values())

    def draw(self, rng: np.random.Generator) -> Kernel:
        """A legal kernel, each alike likely.

        Raises:
            KernelError: none was found.
        """
        for _ in range(MOST_DRAWS):
            kernel = self.at(rng.integers(self.shape))
            if kernel is not None:
                return kernel
        raise KernelError(f"no legal configuration of {self.target.name} supports {self.problem}")

    def at(self, place: Ints) -> Kernel | None:
        """The kernel at a place, None where it is illegal or does not support the problem."""
        kernel = Kernel(**{n: values[i] for (n, values), i in zip(self.axes.items(), place, strict=True)})
        if illegal(kernel, self.target, self.arch) or unsupported(kernel, self.problem, self.target.variant):
            return None
        return kernel

    def place(self, kernel: Kernel) -> Ints | None:
        """The place of a kernel; None where a value of it is on no axis."""
        try:
            return np.array([values.index(getattr(kernel, n)) for n, values in self.axes.items()])
        except ValueError:
            return None


class ListedSpace:
    """Only these kernels, at their places on the axes that their values span: to search what was measured.

    Raises:
        KernelError: there are no kernels.
    """

    def __init__(self, kernels: Sequence[Any]) -> None:
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
        """Values along each axis."""
        return self._shape

    def draw(self, rng: np.random.Generator) -> Any:
        """One of the kernels, each alike likely."""
        return self._kernels[int(rng.integers(len(self._kernels)))]

    def at(self, place: Ints) -> Any:
        """The kernel with the fewest steps to a place, the first of equals."""
        return self._kernels[int(np.abs(self._places - place).sum(axis=1).argmin())]

    def place(self, kernel: Any) -> Ints | None:
        """The place of a kernel; None where it is not listed."""
        return self._places[self._kernels.index(kernel)] if kernel in self._kernels else None
