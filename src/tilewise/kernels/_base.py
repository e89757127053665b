"""The contract that the kernels of every backend fulfil: a frozen dataclass with a name that says what it is.

The fields are the kernel columns of the measurement table: integers, texts or flags. Within a target a name belongs to
one kernel, and a configuration (the part of the name that does not depend on the target) parses back to its kernel.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from tilewise.errors import KernelError

FieldKind = Literal["str", "int", "bool"]


@dataclass(frozen=True)
class KernelBase(ABC):
    """One compiled configuration of a tile kernel.

    `tile_m`, `tile_n`, `tile_k` are the block of the (implicit) matrix product that one program (block, workgroup)
    computes a step; `pipeline` is how it walks the K dimension. Backends add what else they can set.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pipeline: str

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Names of the kernel columns, without ``kernel_name``."""
        return tuple(f.name for f in dataclasses.fields(cls))

    @classmethod
    def column_kinds(cls) -> dict[str, FieldKind]:
        """What each kernel column holds, in order."""
        kinds: dict[Any, FieldKind] = {"int": "int", "str": "str", "bool": "bool", int: "int", str: "str", bool: "bool"}
        return {f.name: kinds[f.type] for f in dataclasses.fields(cls)}

    @property
    @abstractmethod
    def config(self) -> str:
        """The part of the name that does not depend on the target."""

    @classmethod
    @abstractmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`.

        Raises:
            KernelError: the text is not a configuration.
        """

    def name(self, op: str, variant: str, dtype: str) -> str:
        """The unique ``kernel_name`` within a target."""
        return f"{op}_{variant}_{dtype}_{self.config}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from the kernel columns of one row; other keys are ignored.

        Raises:
            KernelError: a column is missing, or holds no value of its kind.
        """
        try:
            return cls(**{name: _CONVERT[kind](values[name]) for name, kind in cls.column_kinds().items()})
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise KernelError(f"not a kernel: {e}; needed are {', '.join(cls.column_names())}") from e

    def to_dict(self) -> dict[str, Any]:
        """The kernel columns as a plain dict."""
        return {name: getattr(self, name) for name in self.column_names()}  # asdict would take ten times as long


def _flag(value: Any) -> bool:
    if value not in (False, True):  # numpy's flags are equal to Python's
        raise ValueError(f"expected true or false, got {value!r}")
    return bool(value)


_CONVERT: dict[FieldKind, Any] = {"int": int, "str": str, "bool": _flag}
