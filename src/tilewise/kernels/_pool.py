"""Pools: the candidate kernels of one target, in order, without repeats; the first one is the default."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from tilewise.arch import DEFAULT_BACKEND, HardwareProfile, load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels._backends import (
    BACKENDS,
    backend,
    backend_of,
    backend_of_kernels,
    backend_of_target,
    illegal,
    reasons,
    supported_mask,
    supported_masks,
    unsupported,
)
from tilewise.kernels._contract import BACKEND_COLUMN, Backend, KernelBase
from tilewise.ops import Problem, Target

_POOLS = Path(__file__).parent / "pools"


@dataclass(frozen=True)
class Pool:
    """Kernels of one (op, variant, dtype), of one backend or several; the first is the default, used without a model.

    Raises:
        KernelError: the pool is empty or names a kernel twice.
    """

    op: str
    variant: str
    dtype: str
    kernels: tuple[Any, ...]  # KernelBase; Any, so that code of one backend reads its own fields without a cast

    def __post_init__(self) -> None:
        if not self.kernels:
            raise KernelError(f"the pool of {self.op} {self.variant} {self.dtype} is empty")
        twice = next((config for config, count in Counter(k.config for k in self.kernels).items() if count > 1), None)
        if twice is not None:
            raise KernelError(f"kernel {twice} is listed twice in the pool of {self.op} {self.variant} {self.dtype}")

    def __getstate__(self) -> dict[str, Any]:
        """Leave out derived values, among them backends, which pickle cannot write."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @cached_property
    def backend(self) -> Backend:
        """The backend of the kernels; a mixture for those of several backends."""
        return backend_of_kernels(self.kernels)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """``kernel_name`` of each kernel, in order."""
        return tuple(k.name(self.op, self.variant, self.dtype) for k in self.kernels)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The kernel columns by name, each of shape (len(pool),), in the pool's order; read-only."""
        rows = [self.backend.row_of(k) for k in self.kernels]
        return {name: np.array([row[name] for row in rows]) for name in self.backend.column_kinds()}

    @property
    def default(self) -> Any:
        """The first kernel, which supports most problems; see :meth:`default_for` for the others."""
        return self.kernels[0]

    def default_for(self, problem: Problem) -> Any:
        """Return the first kernel that supports the problem, or None."""
        return next((k for k in self.kernels if unsupported(k, problem, self.variant, self.dtype) is None), None)

    def supported(self, problem: Problem) -> np.ndarray:
        """Return which kernels support the problem: bool, (len(pool),)."""
        return supported_mask(self.backend, self.columns, problem, self.variant, self.dtype)

    def supported_of(self, problems: Sequence[Problem]) -> np.ndarray:
        """Return which kernels support each of many problems: bool, (problems, len(pool))."""
        return supported_masks(self.backend, self.columns, problems, self.variant, self.dtype)

    def unsupported(self, problem: Problem) -> np.ndarray:
        """Return why each kernel cannot compute the problem, None where it can: (len(pool),)."""
        return reasons(self.backend, self.columns, problem, self.variant, self.dtype)

    def find(self, kernel: KernelBase | str) -> int:
        """Return the index of a kernel, given itself, its configuration, or its name in any spelling of its backend.

        Raises:
            KernelError: the kernel is not in the pool.
        """
        for i, (name, known) in enumerate(zip(self.names, self.kernels, strict=True)):
            if kernel in (known, name, known.config):
                return i
        try:
            return self.names.index(self.backend.canonical_name(str(kernel)))
        except ValueError as e:  # KernelError is one
            raise KernelError(
                f"{kernel} is not one of the {len(self)} kernels of {self.op} {self.variant} {self.dtype}"
            ) from e

    @cached_property
    def hash(self) -> str:
        """Identity of the pool: SHA-256 of its names, in order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``pool.json`` as plain data."""
        return {
            "op": self.op,
            "variant": self.variant,
            "dtype": self.dtype,
            **({"backend": self.backend.name} if self.backend.name != DEFAULT_BACKEND else {}),
            "default": self.names[0],
            "hash": self.hash,
            "kernels": [
                {"kernel_name": name, **self._origin(k), **k.stated()}
                for name, k in zip(self.names, self.kernels, strict=True)
            ],
        }

    def _origin(self, kernel: KernelBase) -> dict[str, str]:
        return {BACKEND_COLUMN: backend_of(kernel).name} if self.backend.tagged else {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Build a pool from the result of :meth:`to_dict`.

        Raises:
            KernelError: a key is missing, or names and hash do not match the kernels.
        """
        try:
            known = backend(values.get("backend", DEFAULT_BACKEND))
            kernels = tuple(known.read_kernel(k) for k in values["kernels"])
            pool = cls(values["op"], values["variant"], values["dtype"], kernels)
            if [k["kernel_name"] for k in values["kernels"]] != list(pool.names) or values["hash"] != pool.hash:
                raise KernelError("the pool's names or hash do not match its kernels")
        except (KeyError, TypeError, AttributeError, ConfigError) as e:
            raise KernelError(f"not a pool: {e!r}") from e
        return pool


def pool_path(target: Target) -> Path:
    """Return the file of a target's pool: one configuration per line, the default first; ``#`` begins a comment."""
    return _POOLS / f"{target.op}_{target.variant}_{target.arch}.txt"


def load_pool(target: Target) -> Pool:
    """Load the pool that this library ships for a target: one file serves all types, each with its legal kernels.

    Raises:
        KernelError: there is no pool, or a line is not a configuration or is illegal for every type. The message names
            file and line.
    """
    path = pool_path(target)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _POOLS.glob("*.txt")))
        raise KernelError(f"no pool for {target.name}: {path.name} is missing; there are {known}")
    arch, kernels, made_by = load_arch(target.arch), [], backend_of_target(target)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        config = line.partition("#")[0].strip()
        if config:
            try:
                kernel = parse_config(config, made_by)
                if _legal(kernel, target, arch):
                    kernels.append(kernel)
            except KernelError as e:
                raise KernelError(f"{path.name}:{number}: {e}") from e
    return Pool(target.op, target.variant, target.dtype, tuple(kernels))


def borrow_pool(target: Target) -> Pool:
    """Return the kernels of another arch that are legal on this one: the first arch by name that has some.

    Raises:
        ConfigError: the arch has no profile.
        KernelError: no arch of this backend has a pool for the op and variant with a kernel that is legal here.
    """
    arch, made_by = load_arch(target.arch), backend_of_target(target)
    for path in sorted(_POOLS.glob(f"{target.op}_{target.variant}_*.txt")):
        donor = dataclasses.replace(target, arch=path.stem.rpartition("_")[2])
        if backend_of_target(donor) is made_by:
            legal = tuple(k for k in load_pool(donor).kernels if illegal(k, target, arch) is None)
            if legal:
                return Pool(target.op, target.variant, target.dtype, legal)
    known = ", ".join(sorted(p.stem for p in _POOLS.glob("*.txt")))
    raise KernelError(
        f"no pool for {target.name}, and no other pool has kernels that are legal there; there are {known}"
    )


def parse_config(config: str, first: Backend) -> KernelBase:
    """Return the kernel of a pool's line: of the arch's backend, or a candidate that is known by name.

    Raises:
        KernelError: the line is no configuration of the arch's backend, and names no other candidate.
    """
    for load in BACKENDS.values():
        known = load()
        if known.tagged and config.startswith(f"{known.name}_"):
            return known.kernel.from_config(config)
    return first.kernel.from_config(config)


def _legal(kernel: KernelBase, target: Target, arch: HardwareProfile) -> bool:
    why, dtypes = illegal(kernel, target, arch), backend_of(kernel).dtypes.get(target.op, ())
    if why and all(illegal(kernel, dataclasses.replace(target, dtype=dtype), arch) for dtype in dtypes):
        raise KernelError(f"{kernel.config} is illegal on {arch.name}: {why}")
    return why is None


def pool_json(pool: Pool) -> str:
    """Return the text of ``pool.json``; equal pools give equal files."""
    return json.dumps(pool.to_dict(), indent=1) + "\n"
