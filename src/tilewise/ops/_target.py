"""Target of a model: the op, variant, dtype and arch it is trained for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tilewise.errors import ConfigError, ProblemError
from tilewise.ops._definition import VARIANT
from tilewise.ops._dtypes import operand_bytes
from tilewise.ops._problem import Problem
from tilewise.ops._registry import OPS, is_known, known_ops

_ARCH = re.compile(r"[a-z0-9]+")
_OF_OWN_OP = re.compile(rf"(?P<op>\w+)_{VARIANT}_(?P<dtype>[a-z0-9]+)_(?P<arch>[a-z0-9]+)", re.ASCII)


@dataclass(frozen=True)
class Target:
    """Op, variant, dtype and arch of one model; `name` is also the name of the registered model.

    Raises:
        ConfigError: the op, its variant or the dtype is unknown, or the arch has characters other than
            lower-case letters and digits.
    """

    op: str
    variant: str
    dtype: str
    arch: str

    def __post_init__(self) -> None:
        if not is_known(self.op):
            raise ConfigError(f"op {self.op!r} is unknown; known are {', '.join(known_ops())}")
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

    def __str__(self) -> str:
        return self.name

    @property
    def splits_by_layer(self) -> bool:
        """True if problems that differ only in their batch stand on one side of every holdout and fold.

        So it is on AMD's archs: a find database lists each layer in many batches. The rule is code, not configuration:
        no argument at the gate changes it.
        """
        return self.arch.startswith("gfx")

    @property
    def problem_type(self) -> type[Problem]:
        """The type of the op's problems."""
        return OPS[self.op]

    def problem(self, stated: Problem | Mapping[str, Any]) -> Problem:
        """Return a problem of the target's op, given itself or its dimensions, which may state the ``dtype``.

        Raises:
            ProblemError: the problem is impossible, of another op, or states another dtype; `.field` names the
                dimension.
        """
        kind = self.problem_type
        if type(stated) is kind:
            return stated
        if isinstance(stated, Problem):
            raise ProblemError("op", f"a {stated.op} problem, but {self.name} selects for {self.op}")
        if isinstance(stated, Mapping) and "dtype" in stated:
            if stated["dtype"] != self.dtype:
                raise ProblemError("dtype", f"must be {self.dtype}, that of {self.name}, got {stated['dtype']!r}")
            return kind.from_dict({name: value for name, value in stated.items() if name != "dtype"})
        return kind.from_dict(stated)

    @staticmethod
    def may_be_of_own_op(name: str) -> bool:
        """Return whether this may be the target of an op of the user's own that this process does not know yet."""
        parts = _OF_OWN_OP.fullmatch(name)
        return parts is not None and not is_known(parts["op"])

    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the target that has this name.

        Raises:
            ConfigError: the name does not have the form of a target, or a part of it is unknown.
        """
        own = _OF_OWN_OP.fullmatch(name)
        if own and is_known(own["op"]):
            return cls(own["op"], VARIANT, own["dtype"], own["arch"])
        for op in OPS:
            if name.startswith(f"{op}_"):
                parts = name.removeprefix(f"{op}_").rsplit("_", 2)
                if len(parts) == 3:
                    return cls(op, *parts)
        form = "{op}_{variant}_{dtype}_{arch}"
        raise ConfigError(f"{name!r} is not a target; expected {form} with op of {', '.join(known_ops())}")
