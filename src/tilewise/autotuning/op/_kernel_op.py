"""A tuned kernel as an op of the user's own: its definition, and its records as problems and kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

from tilewise.autotuning._configurations import Configuration, columns_of
from tilewise.autotuning.op._statements import Statements
from tilewise.autotuning.records import TunedKey
from tilewise.kernels import KernelBase, Pool, kernel_type
from tilewise.ops import OPS, VARIANT, ConfigKind, OpDefinition, Problem, ProblemKind, Target, register, short_dtype


class Described(Protocol):
    """A tuned kernel, as far as its op is concerned."""

    name: str
    keys: list[str]
    stated: Statements
    configurations: Sequence[Configuration]


@dataclass(frozen=True)
class KernelOp:
    """A tuned kernel as an op: how its keys are problems, and its configurations kernels.

    Attributes:
        definition: the op.
        configurations: all configurations, the default first.
    """

    definition: OpDefinition
    configurations: tuple[Configuration, ...]

    @classmethod
    def of(cls, tuned: Described, code: str) -> Self:
        """Return the op of a tuned kernel, and make it known to this process.

        Args:
            tuned: the kernel.
            code: hash of its code.

        Raises:
            UsageError: the name, a column or an expression breaks a rule of :class:`OpDefinition`; the configurations
                state different names; or an op of the name is known with other columns.
        """
        stated, configurations = tuned.stated, tuple(tuned.configurations)
        columns = columns_of(configurations)
        problem: list[tuple[str, ProblemKind]] = [
            (name, tuple(stated.categories[name]) if name in stated.categories else "int") for name in tuned.keys
        ]
        definition = OpDefinition(
            name=tuned.name,
            problem=tuple(problem),
            config=tuple((name, _kind(c.columns[name] for c in configurations)) for name in columns),
            flops=stated.flops,
            bytes=stated.bytes,
            programs=stated.programs,
            supports=stated.supports,
            features=tuple(stated.features.items()),
            source=code,
        )
        register(definition)
        return cls(definition, configurations)

    def target(self, dtypes: Sequence[str], arch: str) -> Target:
        """Return the target of a call: its dtype is that of the first tensor of a known one, or fp32.

        Raises:
            ConfigError: the arch is malformed.
        """
        known = (short for name in dtypes if (short := short_dtype(name)) is not None)
        return Target(self.definition.name, VARIANT, next(known, "fp32"), arch)

    def problem(self, key: TunedKey) -> Problem:
        """Return the problem of a key.

        Raises:
            ProblemError: a size is negative, or a text is not one of its category.
        """
        return self.problem_of(key.sizes)

    def problem_of(self, sizes: Mapping[str, int | str]) -> Problem:
        """Return the problem of a key's values; see :meth:`problem`."""
        return OPS[self.definition.name].from_dict(sizes)

    @cached_property
    def kernels(self) -> dict[str, KernelBase]:
        """The kernel of each configuration, by the configuration's name."""
        made = kernel_type(self.definition)
        kinds = dict(self.definition.config)
        return {
            c.name: made.from_dict({n: str(v) if kinds[n] == "str" else v for n, v in c.columns.items()})
            for c in self.configurations
        }

    def pool(self, target: Target) -> Pool:
        """Return the kernels of all configurations, in the user's order.

        Raises:
            KernelError: two configurations have the same columns; they differ in their hooks only.
        """
        return Pool(target.op, target.variant, target.dtype, tuple(self.kernels.values()))

    def configurations_of(self, target: Target) -> dict[str, str]:
        """Return the name of each configuration, by the ``kernel_name`` that its kernel has in a target."""
        return {k.name(target.op, target.variant, target.dtype): name for name, k in self.kernels.items()}


def _kind(values: Iterable[object]) -> ConfigKind:
    kinds = {type(value) for value in values}
    return "bool" if kinds == {bool} else "int" if kinds <= {int, bool} else "str"
