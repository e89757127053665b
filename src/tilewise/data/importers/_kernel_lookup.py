"""Kernel names of a file: each distinct name is parsed once, and rows refer to its kernel by number."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tilewise.arch import known_archs, load_arch
from tilewise.data.importers._reader import Coded, Ints
from tilewise.errors import DataError, KernelError
from tilewise.kernels import BACKENDS, KernelBase, ParsedName, backend_of_target
from tilewise.ops import GEMM_LAYOUTS, Target

_MAX_KERNELS = 1 << 16

KernelColumn: TypeAlias = "Coded | Ints | npt.NDArray[np.bool_]"


class KernelLookup:
    """The kernels found so far, numbered in the order of their first appearance.

    Attributes:
        faults: per kernel, the reason why its name is not one of the target's, "" if it is.

    Args:
        target: the target whose kernels to accept.
        others: collects the targets of other kernels, as ``op variant dtype``.
    """

    def __init__(self, target: Target, others: set[str]) -> None:
        self._target = target
        self._others = others
        self._number: dict[str, int] = {}
        self._names: list[str] = []
        self._kernels: list[KernelBase] = []
        self.faults: list[str] = []
        self._blank = _blank_kernel(target)

    def look_up(self, names: Coded) -> Ints:
        """Return the number of each row's kernel, of shape (rows,).

        Raises:
            DataError: there are too many distinct names.
        """
        numbers = [self._number[w] if w in self._number else self._add(w) for w in names.words]
        return np.array(numbers, dtype=np.int64)[names.codes]

    def _add(self, name: str) -> int:
        kernel, canonical, fault = self._blank, "", ""
        try:
            parsed = backend_of_target(self._target).parse(name, self._target) if name else None
            if parsed is None:
                fault = "the kernel's name is empty"
            elif not self._is_of_target(parsed):
                other = f"{parsed.op} {parsed.variant} {parsed.dtype}"
                self._others.add(other)
                fault = f"the kernel belongs to {other}, not to the target"
            else:
                kernel, canonical = parsed.kernel, parsed.canonical
        except KernelError as e:
            fault = str(e)
            self._note_other_backend(name)
        if len(self.faults) > _MAX_KERNELS:
            raise DataError(f"a table of measurements has at most {_MAX_KERNELS} different kernel names")
        self._number[name] = len(self.faults)
        self._names.append(canonical)
        self._kernels.append(kernel)
        self.faults.append(fault)
        return self._number[name]

    def _is_of_target(self, parsed: ParsedName) -> bool:
        target = self._target
        return (parsed.op, parsed.variant, parsed.dtype) == (target.op, target.variant, target.dtype)

    def _note_other_backend(self, name: str) -> None:
        """Note a name that another backend spells, since the caller probably forgot to name the arch."""
        own = backend_of_target(self._target)
        for load in BACKENDS.values():
            other = load()
            if other is own or other.parse_name is None:
                continue
            try:
                parsed = other.parse_name(name)
            except KernelError:
                continue
            archs = " or ".join(f"arch={a}" for a in known_archs() if load_arch(a).backend == other.name)
            self._others.add(f"{other.label}'s {parsed.op} {parsed.variant} {parsed.dtype} (give {archs})")

    @property
    def layouts(self) -> Ints | None:
        """Layout in each kernel's name, as an index into GEMM_LAYOUTS; None if the backend's names have no layout."""
        if self._target.op != "gemm" or self._blank.compiled_layout is None:
            return None
        return np.array(
            [GEMM_LAYOUTS.index(k.compiled_layout or GEMM_LAYOUTS[0]) for k in self._kernels], dtype=np.int64
        )

    @property
    def ndim(self) -> Ints | None:
        """Spatial dimensions that each kernel's name states; None if the backend's names state none."""
        if self._blank.compiled_ndim is None:
            return None
        return np.array([k.compiled_ndim or 0 for k in self._kernels], dtype=np.int64)

    def columns(self, kernel: Ints) -> dict[str, KernelColumn]:
        """Return the kernel columns of rows, given the number of each row's kernel, of shape (rows,)."""
        found: dict[str, KernelColumn] = {"kernel_name": Coded(kernel.astype(np.int32), tuple(self._names))}
        for name, kind in type(self._blank).column_kinds().items():
            values = [getattr(k, name) for k in self._kernels]
            if kind == "str":
                words = {w: i for i, w in enumerate(dict.fromkeys(values))}
                codes = np.array([words[v] for v in values], dtype=np.int32)
                found[name] = Coded(codes[kernel] if len(codes) else codes, tuple(words))
            else:
                found[name] = np.array(values, dtype=bool if kind == "bool" else np.int64)[kernel]
        return found


def _blank_kernel(target: Target) -> KernelBase:
    """Return a kernel of blank parameters. It stands in for names that cannot be parsed, whose rows are lost anyway."""
    kind = backend_of_target(target).kernel
    blank: dict[str, int | str | bool] = {"int": 0, "str": "", "bool": False}
    return kind.from_dict({name: blank[k] for name, k in kind.column_kinds().items()})
