"""The contracts of a kernel and of a backend.

A kernel is a candidate: one way to compute problems of a target. A backend is a source of kernels: Triton compiles them
from this package's code, CK Tile ships them in libraries, others are known by name only. All other code asks
:class:`Backend` and :class:`KernelBase`; it never compares names or looks for attributes.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from tilewise.arch import HardwareProfile
from tilewise.errors import KernelError
from tilewise.kernels._epilogue import EpilogueKind
from tilewise.kernels._formulas import Array, Formulas, KernelLike, Traits
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.kernels.ck import AnyInstance

FieldKind = Literal["str", "int", "bool"]
KernelValue = str | int | bool
FILL: dict[FieldKind, KernelValue] = {"str": "", "int": 0, "bool": False}  # of columns that a kernel lacks
BACKEND_COLUMN = "backend"
Rules = Iterator[tuple[Array, str]]  # (broken, reason); broken is a bool, or a bool array of shape (kernels,)


@dataclass(frozen=True)
class RegistryEntry:
    """The figures of a kernel in CK Tile's registry format; 0 and "" stand for unknown ones.

    Attributes:
        tile: block of the (implicit) matrix product that one program computes per step, along M, N and K.
        pipeline: how the program moves along K.
        warps: warps of a block along M, N and K.
        warp_tile: tile of one matrix instruction along M, N and K.
        scheduler: ``intrawave``, ``interwave`` or ``default``.
        persistent: whether one block per compute unit computes many tiles.
        double_buffer: whether the operand tiles have two buffers in shared memory.
    """

    tile: tuple[int, int, int] = (0, 0, 0)
    pipeline: str = ""
    warps: tuple[int, int, int] = (0, 1, 1)
    warp_tile: tuple[int, int, int] = (0, 0, 0)
    scheduler: str = "default"
    persistent: bool = False
    double_buffer: bool = False


@dataclass(frozen=True)
class KernelBase(ABC):
    """One candidate: a frozen dataclass whose fields are its parameters, and the kernel columns of tables.

    A field is an integer, a text or a flag. Within a target a name belongs to one kernel, and its configuration (the
    part of the name that does not depend on the target) parses back to the kernel.

    Attributes:
        later_columns: columns that tables and pools of earlier versions lack. Reading adds them with their value of
            :data:`FILL`; files and digests leave them out where every row has that value.
    """

    later_columns: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Return the names of the kernel columns, without ``kernel_name``."""
        return tuple(f.name for f in dataclasses.fields(cls))

    @classmethod
    def column_kinds(cls) -> dict[str, FieldKind]:
        """Return the kind of each kernel column, in order."""
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
        """Return the ``kernel_name``, unique within a target."""
        return f"{op}_{variant}_{dtype}_{self.config}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a kernel from the kernel columns of one row; ignore other keys.

        Raises:
            KernelError: a column is missing, or its value is not of its kind.
        """
        kinds = cls.column_kinds()
        if cls.later_columns:
            values = {**{name: FILL[kinds[name]] for name in cls.later_columns}, **values}
        try:
            return cls(**{name: _CONVERT[kind](values[name]) for name, kind in kinds.items()})
        except (KeyError, TypeError, ValueError, OverflowError) as e:
            raise KernelError(f"not a kernel: {e}; needed are {', '.join(cls.column_names())}") from e

    def to_dict(self) -> dict[str, KernelValue]:
        """Return the kernel columns as a plain dict."""
        return {name: getattr(self, name) for name in self.column_names()}  # asdict would take ten times as long

    def stated(self) -> dict[str, KernelValue]:
        """Return :meth:`to_dict` without later columns that have their fill value: the form of stored pools."""
        kinds = self.column_kinds()
        return {n: v for n, v in self.to_dict().items() if n not in self.later_columns or v != FILL[kinds[n]]}

    @property
    def compiled_layout(self) -> str | None:
        """The operand layout that the kernel is compiled for: "" if its name omits it, None if it serves all."""
        return None

    @property
    def compiled_ndim(self) -> int | None:
        """The spatial dimensions that the kernel is compiled for: 0 for a matrix product, None if it serves all."""
        return None

    @property
    def registry_entry(self) -> RegistryEntry:
        """The kernel's figures in CK Tile's registry format."""
        return RegistryEntry()


@dataclass(frozen=True)
class TileKernel(KernelBase):
    """One compiled configuration of a tile kernel.

    Attributes:
        tile_m, tile_n, tile_k: block of the (implicit) matrix product that one program computes per step.
        pipeline: how the program moves along K.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pipeline: str


@dataclass(frozen=True)
class ParsedName:
    """A kernel's name, taken apart."""

    op: str
    variant: str
    dtype: str
    kernel: KernelBase

    @property
    def canonical(self) -> str:
        """The kernel's name in tables and pools."""
        return self.kernel.name(self.op, self.variant, self.dtype)


def _same_columns(columns: SimpleNamespace) -> SimpleNamespace:
    return columns


def _no_fault(_: KernelBase) -> str | None:
    return None


def _leaves_all(kernel: KernelBase, problem: Problem, target: Target, kind: EpilogueKind) -> EpilogueKind:
    return kind


def _stores_as_most(_: KernelBase) -> float:
    return 1.0


def _unknown_launches(kernel: KernelBase, problem: Problem, variant: str) -> bool:
    return False


def _no_formulas() -> tuple[Formulas, ...]:
    return ()


@dataclass(frozen=True)
class Backend:
    """A source of kernels, with everything that other packages ask about them.

    ``conf/arch`` names the backend of an arch. Launchers and measuring engines lie above this package: they are listed
    by backend in ``dispatch/launching/_launchers.py`` and ``collect/_collectors.py``. A backend without a launcher has
    data only: its kernels can be learnt, judged and selected, but not run here.

    A pool may mix kernels of several backends. Their mixture is a backend itself (:func:`tilewise.kernels.backend`), so
    other code need not tell them apart. Columns that a kernel lacks hold :data:`FILL` in a mixture.

    Attributes:
        name: as in ``conf/arch``; those of the parts joined by ``+`` for a mixture.
        label: the name in messages.
        kernel: type of the kernels, whose fields are the kernel columns; their base for a mixture.
        illegal: (kernel, target, arch) -> why the kernel cannot run for any problem, or None.
        checks: (kernel or namespace of kernel columns, problem, variant, dtype) -> rules that a legal kernel must meet.
        dtypes: operand types by op.
        pipelines: op -> number of each pipeline. Cost models are calibrated by number: never change one.
        parse_name: any spelling of a kernel's name -> its parts; raises KernelError for other texts. None if
            :meth:`KernelBase.name` is the only spelling.
        name_fault: kernel -> why no tool can have built the kernel that its name describes, or None.
        common_columns: kernel columns -> the same with those of Triton's kernels, which formulas read.
        traits: kernel columns -> the traits that feature formulas ask for.
        formulas: the formulas that replace intermediates of features, in order.
        leaves: (kernel, problem, target, kind of epilogue) -> the part that the kernel leaves to a pass of its own.
        store_factor: kernel -> how many times :func:`~tilewise.kernels.store_ms` an epilogue in its store takes.
        is_one_launch: (kernel, problem, variant) -> whether one light launch computes its result, without a second one
            or a library's call.
        instance_of: (variant, dtype, kernel) -> its instance in CK Tile's formats; None without such formats.
        compiled_here: whether kernels are compiled from source, and not found in libraries.
        timed_in_background: whether a serving process can time kernels beside its own work.
        lists_fastest: whether tables list the fastest few kernels of a problem only; others were slower, or do not
            compute it.
        needs_python: whether its kernels run through a Python library, so that a C program cannot launch them.
        in_pytorch: whether PyTorch makes these calls by itself, so that they are the alternative that its users have.
        tagged: whether tables and pools name the backend of each row, in the column :data:`BACKEND_COLUMN`. Without it
            a backend is recognised by its columns.
        parts: the backends that a mixture consists of.
    """

    name: str
    label: str
    kernel: type[KernelBase]
    illegal: Callable[[Any, Target, HardwareProfile], str | None]
    checks: Callable[[KernelLike, Problem, str, str], Rules]
    dtypes: Mapping[str, tuple[str, ...]]
    pipelines: Callable[[str], Mapping[str, int]]
    parse_name: Callable[[str], ParsedName] | None = None
    name_fault: Callable[[Any], str | None] = _no_fault
    common_columns: Callable[[SimpleNamespace], SimpleNamespace] = _same_columns
    traits: Callable[[SimpleNamespace], Traits] = Traits.plain
    formulas: Callable[[], tuple[Formulas, ...]] = _no_formulas
    leaves: Callable[..., EpilogueKind] = _leaves_all
    store_factor: Callable[[Any], float] = _stores_as_most
    is_one_launch: Callable[[Any, Problem, str], bool] = _unknown_launches
    instance_of: Callable[[str, str, Any], AnyInstance] | None = None
    compiled_here: bool = False
    timed_in_background: bool = False
    lists_fastest: bool = False
    needs_python: bool = False
    in_pytorch: bool = False
    tagged: bool = False
    parts: tuple[Backend, ...] = ()

    @property
    def sources(self) -> tuple[Backend, ...]:
        """The parts of a mixture; the backend itself otherwise."""
        return self.parts or (self,)

    def source_of(self, kernel: KernelBase) -> Backend:
        """Return the part of a mixture that one of its kernels belongs to; the backend itself otherwise."""
        return next(source for source in self.sources if type(kernel) is source.kernel)

    def column_kinds(self) -> dict[str, FieldKind]:
        """Return the kind of each kernel column of tables and pools, in order; without ``kernel_name``."""
        kinds: dict[str, FieldKind] = {BACKEND_COLUMN: "str"} if self.tagged else {}
        for source in self.sources:
            kinds |= source.kernel.column_kinds()
        return kinds

    @property
    def later_columns(self) -> dict[str, KernelValue]:
        """The kernel columns that tables of earlier versions lack, with the value that reading adds."""
        kinds = self.column_kinds()
        types = [source.kernel for source in self.sources]
        always = {name for kind in types for name in kind.column_names() if name not in kind.later_columns}
        return {name: FILL[kinds[name]] for kind in types for name in kind.later_columns if name not in always}

    def read_kernel(self, values: Mapping[str, Any]) -> KernelBase:
        """Build a kernel from the kernel columns of one row; ignore other keys.

        Raises:
            KernelError: a column is missing, its value is not of its kind, or the row is of another backend.
        """
        if not self.tagged:
            return self.kernel.from_dict(values)
        named = values.get(BACKEND_COLUMN)
        for source in self.sources:
            if source.name == named:
                return source.kernel.from_dict(values)
        known = " or ".join(source.name for source in self.sources)
        raise KernelError(f"{BACKEND_COLUMN} must be {known}, got {named!r}")

    def row_of(self, kernel: KernelBase) -> dict[str, KernelValue]:
        """Return the kernel columns of one of this backend's kernels, in order, with fill values for those it lacks."""
        known = kernel.to_dict()
        if self.tagged:
            known[BACKEND_COLUMN] = self.source_of(kernel).name
        return {name: known.get(name, FILL[kind]) for name, kind in self.column_kinds().items()}

    def parse(self, name: str, target: Target) -> ParsedName:
        """Take a kernel's name apart, as a file of measurements states it.

        Raises:
            KernelError: the text is not the name of a kernel that can exist, or (where names have one spelling) not one
                of the target.
        """
        if self.parse_name is not None:
            parsed = self.parse_name(name)
            if fault := self.name_fault(parsed.kernel):
                raise KernelError(f"{name[:200]!r} names no kernel of {self.label}: {fault}; correct the name")
            return parsed
        prefix = f"{target.op}_{target.variant}_{target.dtype}_"
        if not name.startswith(prefix):
            raise KernelError(f"{name[:200]!r} is not a {self.name} kernel of {prefix[:-1]}")
        kernel = self.kernel.from_config(name.removeprefix(prefix))
        return ParsedName(target.op, target.variant, target.dtype, kernel)

    def canonical_name(self, name: str) -> str:
        """Return the name that tables hold for any spelling of a kernel's name.

        Raises:
            KernelError: the text is not a kernel name.
        """
        return name if self.parse_name is None else self.parse_name(name).canonical


def _flag(value: Any) -> bool:
    if value not in (False, True):  # numpy's flags are equal to Python's
        raise ValueError(f"expected true or false, got {value!r}")
    return bool(value)


_CONVERT: dict[FieldKind, Callable[[Any], Any]] = {"int": int, "str": str, "bool": _flag}
