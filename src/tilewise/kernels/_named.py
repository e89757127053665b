"""Candidates that are known by name only: a vendor's library call, or a solver of another library.

Such a candidate states neither tile nor warps, so formulas of features read nominal ones, those of a typical large
tile. Costs of a launch then depend on the problem as those of a library do. A model learns the rest from the problem's
features, and from the number that tells the candidates apart.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar, Self

import numpy as np

from tilewise.errors import KernelError
from tilewise.kernels._contract import KernelBase, RegistryEntry

FIRST_NUMBER = 1 << 10  # pipelines of tile kernels have smaller numbers
NUMBER_BITS = 20  # few enough for a number times the classes of a pipeline to fit 32 bits
NOMINAL = {"tile_m": 128, "tile_n": 128, "tile_k": 64, "num_warps": 8, "num_stages": 4, "group_m": 8, "split_k": 1}

_ALGORITHM = re.compile(r"[A-Za-z][A-Za-z0-9_<>-]{0,99}")


@dataclass(frozen=True)
class NamedKernel(KernelBase):
    """A candidate without parameters.

    Attributes:
        algorithm: the name within its backend: letters, digits, and ``_<>-``.
    """

    algorithm: str
    backend_name: ClassVar[str] = ""

    @property
    def config(self) -> str:
        """The part of the name that does not depend on the target: the backend and the algorithm."""
        return f"{self.backend_name}_{self.algorithm}"

    @classmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`.

        Raises:
            KernelError: the text does not begin with the backend's name, or does not go on with an algorithm's.
        """
        prefix = f"{cls.backend_name}_"
        algorithm = config.removeprefix(prefix)
        if algorithm == config or not _ALGORITHM.fullmatch(algorithm):
            raise KernelError(f"{config[:200]!r} is not a name of {cls.backend_name}; such a name is {prefix}NAME")
        return cls(algorithm)

    @property
    def registry_entry(self) -> RegistryEntry:
        """The kernel's figures in CK Tile's registry format: none but the algorithm, as its pipeline."""
        return RegistryEntry(pipeline=self.config)


def number_of(config: str) -> int:
    """Return the number that tells a named candidate from all others of its pool, the same in every pool.

    It depends on the name alone, so a new library's algorithms need no list.
    """
    return FIRST_NUMBER + zlib.crc32(config.encode()) % (1 << NUMBER_BITS)


class NamedNumbers(Mapping[str, int]):
    """The number of each possible configuration of a backend of named candidates."""

    def __init__(self, backend_name: str) -> None:
        self._prefix = f"{backend_name}_"

    def __getitem__(self, config: str) -> int:
        if not config.startswith(self._prefix):
            raise KeyError(config)
        return number_of(config)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def nominal_columns(backend_name: str, columns: SimpleNamespace) -> SimpleNamespace:
    """Return the kernel columns with nominal ones of a tile kernel; the configuration takes the pipeline's place."""
    shape = np.shape(columns.algorithm)
    pipeline = np.char.add(f"{backend_name}_", np.asarray(columns.algorithm).astype(str))
    tiles = {name: np.full(shape, value, dtype=np.int64) for name, value in NOMINAL.items()}
    return SimpleNamespace(**vars(columns), pipeline=pipeline, **tiles)
