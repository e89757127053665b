"""Partitions of a pool's kernels into classes that share a value.

A feature that depends on `tile_m` alone takes five values over a hundred kernels: it is computed five times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, eq=False)
class Classes:
    """One partition.

    Attributes:
        number: its place in :attr:`Partitions.all`.
        of_kernel: int64, (kernels,): the class of each kernel; classes are numbered as they first occur.
        first: int64, (classes,): the first kernel of each class.
    """

    number: int
    of_kernel: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)


class Partitions:
    """All partitions that came up; equal ones are one object.

    Args:
        n_kernels: kernels that are parted.
    """

    def __init__(self, n_kernels: int) -> None:
        self.n_kernels = n_kernels
        self.all: list[Classes] = []
        self._known: dict[bytes, Classes] = {}
        self._products: dict[tuple[int, ...], Classes] = {}

    def of_values(self, values: npt.NDArray[np.generic]) -> tuple[Classes, npt.NDArray[np.generic]]:
        """The partition by equal values, bit for bit, and the value of each class."""
        classes = self._classes(values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64))
        return classes, values[classes.first]

    def product(self, parts: Sequence[Classes]) -> Classes | None:
        """The coarsest partition that is finer than all of these; None for none."""
        distinct = sorted({p.number for p in parts})
        if len(distinct) < 2:
            return parts[0] if parts else None
        key = tuple(distinct)
        if key not in self._products:
            first, *others = (self.all[number] for number in distinct)
            pairs = first.of_kernel
            for other in others:
                pairs = pairs * len(other) + other.of_kernel
                pairs = np.unique(pairs, return_inverse=True)[1]  # so that numbers stay small
            self._products[key] = self._classes(pairs)
        return self._products[key]

    def _classes(self, numbers: npt.NDArray[np.int64]) -> Classes:
        _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        of_kernel = rank[inverse]
        key = of_kernel.tobytes()
        if key not in self._known:
            self._known[key] = Classes(len(self.all), of_kernel, first[order])
            self.all.append(self._known[key])
        return self._known[key]
