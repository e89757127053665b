"""Search spaces: the kernels that the rules of :mod:`tilewise.kernels.triton` or :mod:`tilewise.kernels.ck` allow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels import KernelBase, KernelValue, backend, illegal, unsupported
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


Groups = Mapping[tuple[str, ...], tuple[tuple[KernelValue, ...], ...]]

# Fields whose values stay together: they describe one thing, or no source says which combinations CK Tile builds.
_WARP_TILE = ("warp_tile_m", "warp_tile_n", "warp_tile_k")
_TOGETHER = (
    ("pipeline", "scheduler", "pad_m", "pad_n", "pad_k"),
    ("warp_m", "warp_n", "warp_k"),
    _WARP_TILE,
    ("vector_a", "vector_b", "vector_c"),
)


@dataclass(frozen=True)
class GridSpace(ABC):
    """Configurations at the crossings of axes that are legal for the target and support the problem."""

    target: Target
    arch: HardwareProfile
    problem: Problem

    @property
    @abstractmethod
    def kernel_type(self) -> type[KernelBase]:
        """The type of the kernels."""

    @property
    @abstractmethod
    def groups(self) -> Groups:
        """The axes: the fields that each one sets, and their values at each index, in ascending order."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return tuple(len(values) for values in self.groups.values())

    def draw(self, rng: np.random.Generator) -> KernelBase:
        """Return a legal kernel, uniformly at random.

        Raises:
            KernelError: no draw was legal.
        """
        for _ in range(MAX_DRAWS):
            kernel = self.at(rng.integers(self.shape))
            if kernel is not None:
                return kernel
        raise KernelError(f"no legal configuration of {self.target.name} supports {self.problem}")

    def at(self, place: Ints) -> KernelBase | None:
        """Return the kernel at a place; None where it is illegal or does not support the problem."""
        fields: dict[str, KernelValue] = {}
        for (names, values), index in zip(self.groups.items(), place, strict=True):
            fields.update(zip(names, values[index], strict=True))
        kernel = self.kernel_type(**fields)
        target = self.target
        if illegal(kernel, target, self.arch) or unsupported(kernel, self.problem, target.variant, target.dtype):
            return None
        return kernel

    def place(self, kernel: KernelBase) -> Ints | None:
        """Return the place of a kernel; None where a value lies on no axis."""
        try:
            stated = (tuple(getattr(kernel, n) for n in names) for names in self.groups)
            return np.array([values.index(v) for values, v in zip(self.groups.values(), stated, strict=True)])
        except ValueError:
            return None


@dataclass(frozen=True)
class LegalSpace(GridSpace):
    """All configurations of Triton's kernels that are legal for the target and support the problem.

    Raises:
        KernelError: the target has no searchable kernels.
    """

    def __post_init__(self) -> None:
        if backend(self.arch.backend).kernel is not Kernel:
            raise KernelError(f"search configures Triton kernels; those of {self.arch.name} are of {self.arch.backend}")
        axes_of(self.target)

    @property
    def kernel_type(self) -> type[KernelBase]:
        """The type of the kernels."""
        return Kernel

    @cached_property
    def groups(self) -> Groups:
        """The values of each field."""
        return {(name,): tuple((v,) for v in values) for name, values in axes_of(self.target).items()}


@dataclass(frozen=True)
class CombinedSpace(GridSpace):
    """New combinations of the values that CK Tile's kernels of a pool have, with all matrix instructions of the arch.

    No source states the sizes that CK Tile's matrix products can have, so the pool's kernels say them.

    Raises:
        KernelError: no kernel is compiled for the problem's layout.
    """

    kernels: tuple[CkKernel, ...]

    def __post_init__(self) -> None:
        if not self._fitting:
            layout = getattr(self.problem, "layout", "")
            raise KernelError(f"no kernel of the pool is compiled for layout {layout}, so none can be combined for it")

    @property
    def kernel_type(self) -> type[KernelBase]:
        """The type of the kernels."""
        return CkKernel

    @cached_property
    def _fitting(self) -> tuple[CkKernel, ...]:
        return tuple(k for k in self.kernels if k.gemm_layout == getattr(self.problem, "layout", ""))

    @cached_property
    def groups(self) -> Groups:
        """The values of each field in the pool; fields that belong together keep the combinations that the pool has."""
        together = {name for names in _TOGETHER for name in names}
        alone = ((name,) for name in CkKernel.column_names() if name not in together)
        found: dict[tuple[str, ...], tuple[tuple[KernelValue, ...], ...]] = {}
        for names in (*_TOGETHER, *alone):
            stated = {tuple(getattr(k, n) for n in names) for k in self._fitting}
            if names == _WARP_TILE:
                stated |= {tuple(t) for t in self.arch.warp_tiles.get(self.target.dtype, ())}
            found[names] = tuple(sorted(stated))
        return found


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
    """Return the space of kernels that are legal for a model's target and support the problem.

    Raises:
        KernelError: the pool's backend has no rules to search by, or no legal kernel supports the problem.
    """
    pool, target = model.pool, model.target
    if pool.backend.kernel is not CkKernel:
        return LegalSpace(target, model.arch, problem)
    like = tuple(k for k in pool.kernels if isinstance(k, CkKernel))
    if target.op == "gemm":
        return CombinedSpace(target, model.arch, problem, like)
    legal = legal_kernels(target, model.arch, like)
    kernels = [k for k in legal if not unsupported(k, problem, target.variant, target.dtype)]
    if not kernels:
        raise KernelError(f"no legal configuration of {target.name} supports {problem}")
    return ListedSpace(kernels)
