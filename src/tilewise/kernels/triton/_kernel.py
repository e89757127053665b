"""The kernel type of Triton: one configuration with a unique name.

The name holds all fields, so it parses back to its kernel:
``{op}_{variant}_{dtype}_{tile_m}x{tile_n}x{tile_k}_{pipeline}_w{warps}_s{stages}_g{group_m}_k{split_k}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from tilewise.errors import KernelError
from tilewise.kernels._contract import RegistryEntry, TileKernel

_CONFIG = re.compile(
    r"(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)_(?P<pipeline>[a-z][a-z0-9]*)"
    r"_w(?P<num_warps>\d+)_s(?P<num_stages>\d+)_g(?P<group_m>\d+)_k(?P<split_k>\d+)"
)


@dataclass(frozen=True)
class Kernel(TileKernel):
    """One configuration of a Triton kernel.

    Attributes:
        num_warps: warps of a block.
        num_stages: stages of the software pipeline.
        group_m: row tiles that share a sweep over the columns (an L2 swizzle); 1 is no swizzle.
        split_k: programs that share one output tile, each with a part of K.
    """

    num_warps: int
    num_stages: int
    group_m: int = 1
    split_k: int = 1

    @property
    def config(self) -> str:
        """The part of the name that does not depend on the target, e.g. ``128x64x32_taps_w4_s3_g8_k1``."""
        return (
            f"{self.tile_m}x{self.tile_n}x{self.tile_k}_{self.pipeline}"
            f"_w{self.num_warps}_s{self.num_stages}_g{self.group_m}_k{self.split_k}"
        )

    @property
    def registry_entry(self) -> RegistryEntry:
        """The kernel's figures in CK Tile's registry format: all warps along M, as Triton's compiler places them."""
        return RegistryEntry(
            tile=(self.tile_m, self.tile_n, self.tile_k),
            pipeline=self.pipeline,
            warps=(self.num_warps, 1, 1),
            persistent=self.pipeline == "persistent",
        )

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
