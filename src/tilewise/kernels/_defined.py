"""The backend of an op of the user's own: its kernels are configurations with the columns of the definition."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import cache, partial
from typing import ClassVar, Self, cast

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels._contract import Backend, KernelBase, RegistryEntry, Rules
from tilewise.kernels._formulas import KernelLike, ProblemLike
from tilewise.kernels._named import NamedNumbers
from tilewise.ops import OpDefinition, Target, adopt, definition_of

DTYPES = ("bf16", "fp16", "fp8", "fp32")
_TEXT = re.compile(r"[\w.+/<>:]{0,60}", re.ASCII)  # without the "-" that separates columns in a name
_PATTERNS = {"int": r"-?\d+", "bool": "[01]", "str": _TEXT.pattern}


@dataclasses.dataclass(frozen=True)
class DefinedKernel(KernelBase):
    """A configuration of an op of the user's own.

    Attributes:
        op: the op's name.
    """

    op: ClassVar[str]

    def __post_init__(self) -> None:
        for name, kind in self.column_kinds().items():
            value = getattr(self, name)
            if kind == "str" and not (isinstance(value, str) and _TEXT.fullmatch(value)):
                raise KernelError(f"{name} must be a text of at most 60 letters, digits and _.+/<>:, got {value!r:.80}")

    @property
    def config(self) -> str:
        """The columns with their values, e.g. ``BLOCK_M.128-BLOCK_N.64-num_warps.4``."""
        kinds = self.column_kinds()
        values = ((n, int(v) if kinds[n] == "bool" else v) for n, v in self.to_dict().items())
        return "-".join(f"{name}.{value}" for name, value in values)

    @classmethod
    def from_config(cls, config: str) -> Self:
        """Parse :attr:`config`.

        Raises:
            KernelError: the text is not a configuration of this op.
        """
        found = _pattern(cls).fullmatch(config)
        if found is None:
            form = "-".join(f"{name}.{kind.upper()}" for name, kind in cls.column_kinds().items())
            raise KernelError(f"{config[:200]!r} is not a configuration of {cls.op}; its form is {form}")
        flags = {name for name, kind in cls.column_kinds().items() if kind == "bool"}
        return cls.from_dict({n: v == "1" if n in flags else v for n, v in found.groupdict().items()})

    @property
    def registry_entry(self) -> RegistryEntry:
        """The kernel's figures in CK Tile's registry format: none but the configuration, as its pipeline."""
        return RegistryEntry(pipeline=self.config)

    def __reduce__(self) -> tuple[Callable[..., KernelBase], tuple[object, ...]]:
        return _restored, (definition_of(self.op), tuple(self.to_dict().values()))


def _restored(definition: OpDefinition, values: tuple[object, ...]) -> KernelBase:
    adopt(definition)
    return kernel_type(definition)(*values)


@cache
def _pattern(kind: type[DefinedKernel]) -> re.Pattern[str]:
    columns = kind.column_kinds().items()
    return re.compile("-".join(rf"{name}\.(?P<{name}>{_PATTERNS[kind]})" for name, kind in columns), re.ASCII)


def kernel_type(definition: OpDefinition) -> type[DefinedKernel]:
    """Return the type of an op's kernels, the same for all definitions with equal columns."""
    return _kernel_type(definition.name, definition.config)


@cache
def _kernel_type(op: str, config: tuple[tuple[str, str], ...]) -> type[DefinedKernel]:
    types = {"int": int, "str": str, "bool": bool}
    made = dataclasses.make_dataclass(
        f"Kernel_{op}",
        [(name, types[kind]) for name, kind in config],
        bases=(DefinedKernel,),
        namespace={"op": op},
        frozen=True,
    )
    return cast("type[DefinedKernel]", made)


def illegal(op: str, kernel: DefinedKernel, target: Target, arch: HardwareProfile) -> str | None:
    """Return why a configuration cannot run for `target`: only because it is of another op."""
    return None if target.op == op else f"it is a configuration of {op}, not of {target.op}"


def checks(op: str, kernel: KernelLike, problem: ProblemLike, variant: str, dtype: str) -> Rules:
    """Yield the condition of the definition, as it stands now."""
    definition = definition_of(op)
    if definition is not None and (formula := definition.formulas.get("supports")) is not None:
        columns = {name: getattr(problem, name) for name in formula.names & set(definition.problem_names)}
        columns |= {name: getattr(kernel, name) for name in formula.names & set(definition.config_names)}
        yield np.logical_not(formula(columns)), f"the op's condition {formula.text} does not hold"


@cache
def defined_backend(op: str, config: tuple[tuple[str, str], ...]) -> Backend:
    """Return the backend of an op of the user's own.

    Args:
        op: the op's name.
        config: its columns of configurations, see :attr:`OpDefinition.config`.
    """
    return Backend(
        name=op,
        label=f"the op {op}",
        kernel=_kernel_type(op, config),
        illegal=partial(illegal, op),
        checks=partial(checks, op),
        dtypes={op: DTYPES},
        pipelines=lambda _: NamedNumbers(op),
        needs_python=True,
        tagged=True,
    )
