"""Partitions of a pool's kernels into classes that share a value.

A feature that depends on `tile_m` alone takes five values in a pool of a hundred kernels, so it is computed five times.
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
        number: index in :attr:`Partitions.all`.
        of_kernel: int64, (kernels,): class of each kernel; classes are numbered in order of first occurrence.
        first: int64, (classes,): first kernel of each class.
    """

    number: int
    of_kernel: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.first)


class Partitions:
    """All partitions of the kernels that occurred; equal partitions are the same object.

    Args:
        n_kernels: number of kernels.
    """

    def __init__(self, n_kernels: int) -> None:
        self.n_kernels = n_kernels
        self.all: list[Classes] = []
        self._known: dict[bytes, Classes] = {}
        self._products: dict[tuple[int, ...], Classes] = {}

    def of_values(self, values: npt.NDArray[np.generic]) -> tuple[Classes, npt.NDArray[np.generic]]:
        """Return the partition by bitwise equal values, and the value of each class."""
        classes = self._classes(values.view(np.int64) if values.dtype.itemsize == 8 else values.astype(np.int64))
        return classes, values[classes.first]

    def product(self, parts: Sequence[Classes]) -> Classes | None:
        """Return the coarsest partition that refines all of `parts`; None if `parts` is empty."""
        distinct = sorted({p.number for p in parts})
        if len(distinct) < 2:
            return parts[0] if parts else None
        key = tuple(distinct)
        if key not in self._products:
            first, *others = (self.all[number] for number in distinct)
            pairs = first.of_kernel
            for other in others:
                pairs = _renumber(pairs * len(other) + other.of_kernel)  # renumbering keeps the products small
            self._products[key] = self._classes(pairs)
        return self._products[key]

    def _classes(self, numbers: npt.NDArray[np.int64]) -> Classes:
        of_kernel = _renumber(numbers)
        key = of_kernel.tobytes()
        if key not in self._known:
            first = np.empty(of_kernel.max() + 1, dtype=np.int64)
            first[of_kernel[::-1]] = np.arange(self.n_kernels)[::-1]  # the last assignment to an index wins
            self._known[key] = Classes(len(self.all), of_kernel, first)
            self.all.append(self._known[key])
        return self._known[key]


def _renumber(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Replace numbers by 0, 1, 2, ... in order of first occurrence; faster than np.unique for a few hundred."""
    values = numbers.tolist()
    place = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return np.array([place[value] for value in values], dtype=np.int64)
