"""A target: what one model is trained for, ``{op}_{variant}_{dtype}_{arch}``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from tilewise.errors import ConfigError
from tilewise.ops._registry import OPS
from tilewise.ops.dtypes import operand_bytes

_ARCH = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class Target:
    """One (op, variant, dtype, arch); `name` is also the registered model's name.

    Raises:
        ConfigError: the op, the variant of that op, the dtype or the form of the arch is unknown.
    """

    op: str
    variant: str
    dtype: str
    arch: str

    def __post_init__(self) -> None:
        if self.op not in OPS:
            raise ConfigError(f"op {self.op!r} is unknown; known are {', '.join(OPS)}")
        variants = OPS[self.op].variants
        if self.variant not in variants:
            raise ConfigError(f"variant {self.variant!r} is unknown; {self.op} has {', '.join(variants)}")
        operand_bytes(self.dtype)
        if not _ARCH.fullmatch(self.arch):
            raise ConfigError(f"arch must be lower-case letters and digits, got {self.arch!r}")

    @property
    def name(self) -> str:
        """``{op}_{variant}_{dtype}_{arch}``, e.g. ``grouped_conv_forward_bf16_sm90``."""
        return f"{self.op}_{self.variant}_{self.dtype}_{self.arch}"

    @classmethod
    def parse(cls, name: str) -> Self:
        """The target of a name.

        Raises:
            ConfigError: the name is not that of a target.
        """
        for op in OPS:
            if name.startswith(f"{op}_"):
                parts = name.removeprefix(f"{op}_").rsplit("_", 2)
                if len(parts) == 3:
                    return cls(op, *parts)
        form = "{op}_{variant}_{dtype}_{arch}"
        raise ConfigError(f"{name!r} is not a target; expected {form} with op of {', '.join(OPS)}")
