"""What a kernel is: one compiled configuration with a unique name.

The fields are the kernel columns of the measurement table. The name says everything the fields say, so a name parses
back to its kernel:
``{op}_{variant}_{dtype}_{tile_m}x{tile_n}x{tile_k}_{pipeline}_w{warps}_s{stages}_g{group_m}_k{split_k}``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tilewise.errors import KernelError

_CONFIG = re.compile(
    r"(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)_(?P<pipeline>[a-z][a-z0-9]*)"
    r"_w(?P<num_warps>\d+)_s(?P<num_stages>\d+)_g(?P<group_m>\d+)_k(?P<split_k>\d+)"
)


@dataclass(frozen=True)
class Kernel:
    """One configuration of a tile kernel.

    `tile_m`, `tile_n`, `tile_k` are the block of the (implicit) matrix product that one program computes a step;
    `pipeline` is how it walks the K dimension; `group_m` row tiles share a column sweep (an L2 swizzle; 1 is none);
    `split_k` programs share one output tile.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pipeline: str
    num_warps: int
    num_stages: int
    group_m: int = 1
    split_k: int = 1

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Names of the kernel columns, without ``kernel_name``."""
        return tuple(f.name for f in dataclasses.fields(cls))

    @property
    def config(self) -> str:
        """The part of the name that does not depend on the target, e.g. ``128x64x32_taps_w4_s3_g8_k1``."""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_{self.pipeline}"
            f"_w{self.num_warps}_s{self.num_stages}_g{self.group_m}_k{self.split_k}"
        )

    def name(self, op: str, variant: str, dtype: str) -> str:
        """The unique ``kernel_name`` within a target."""
        return f"{op}_{variant}_{dtype}_{self.config}"

    @classmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`.

        Raises:
            KernelError: the text is not a configuration.
        """
        match = _CONFIG.fullmatch(config)
        if match is None:
            raise KernelError(f"{config!r} is not a kernel configuration such as 128x64x32_taps_w4_s3_g8_k1")
        return cls.from_dict(match.groupdict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build from the kernel columns of one row.

        Raises:
            KernelError: a column is missing, or is not an integer where one belongs.
        """
        try:
            numbers = {n: int(values[n]) for n in cls.column_names() if n != "pipeline"}
            return cls(pipeline=str(values["pipeline"]), **numbers)
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise KernelError(f"not a kernel: {e}; needed are {', '.join(cls.column_names())}") from e

    def to_dict(self) -> dict[str, Any]:
        """The kernel columns as a plain dict."""
        return dataclasses.asdict(self)
