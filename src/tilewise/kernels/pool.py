"""The candidate kernels of one target: ordered, without repeats, with a default that is always a candidate."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from tilewise.arch import HardwareProfile, load_arch
from tilewise.errors import KernelError
from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import DTYPES, illegal, unsupported
from tilewise.ops import Problem, Target

_POOLS = Path(__file__).parent / "pools"


@dataclass(frozen=True)
class Pool:
    """Kernels of one (op, variant, dtype); the first is the default, used where nothing better is known.

    Raises:
        KernelError: the pool is empty or names a kernel twice.
    """

    op: str
    variant: str
    dtype: str
    kernels: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        if not self.kernels:
            raise KernelError(f"the pool of {self.op} {self.variant} {self.dtype} is empty")
        if len(set(self.kernels)) < len(self.kernels):
            twice = next(k for i, k in enumerate(self.kernels) if k in self.kernels[:i])
            raise KernelError(
                f"kernel {twice.config} stands twice in the pool of {self.op} {self.variant} {self.dtype}"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """``kernel_name`` of each kernel, in order."""
        return tuple(k.name(self.op, self.variant, self.dtype) for k in self.kernels)

    @cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The kernel columns by name, each of shape (len(pool),), in the pool's order. Not to be written to."""
        return {name: np.array([getattr(k, name) for k in self.kernels]) for name in Kernel.column_names()}

    @property
    def default(self) -> Kernel:
        """The first kernel, good for most problems; :meth:`default_for` knows the exceptions."""
        return self.kernels[0]

    def default_for(self, problem: Problem) -> Kernel | None:
        """The first kernel that supports the problem, or None."""
        return next((k for k in self.kernels if unsupported(k, problem, self.variant) is None), None)

    @cached_property
    def hash(self) -> str:
        """Identity of the pool: SHA-256 over its names, in order."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()

    def __len__(self) -> int:
        return len(self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """``pool.json`` as plain data."""
        return {
            "op": self.op,
            "variant": self.variant,
            "dtype": self.dtype,
            "default": self.names[0],
            "hash": self.hash,
            "kernels": [{"kernel_name": name, **k.to_dict()} for name, k in zip(self.names, self.kernels, strict=True)],
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`.

        Raises:
            KernelError: a key is missing, or names and hash do not belong to the kernels.
        """
        try:
            pool = cls(
                values["op"], values["variant"], values["dtype"], tuple(Kernel.from_dict(k) for k in values["kernels"])
            )
            if [k["kernel_name"] for k in values["kernels"]] != list(pool.names) or values["hash"] != pool.hash:
                raise KernelError("the pool's names or hash do not belong to its kernels")
        except (KeyError, TypeError) as e:
            raise KernelError(f"not a pool: {e!r}") from e
        return pool


def pool_path(target: Target) -> Path:
    """Where the pool of a target is kept: one configuration a line, the default first, ``#`` begins a comment."""
    return _POOLS / f"{target.op}_{target.variant}_{target.arch}.txt"


def load_pool(target: Target) -> Pool:
    """The pool that this library ships for a target: one file serves all types, each takes what is legal for it.

    Raises:
        KernelError: there is none, or a line of it is no configuration or illegal for every type; the message names
            file and line.
    """
    path = pool_path(target)
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in _POOLS.glob("*.txt")))
        raise KernelError(f"no pool for {target.name}: {path.name} is missing; there are {known}")
    arch, kernels = load_arch(target.arch), []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        config = line.partition("#")[0].strip()
        if config:
            try:
                kernel = Kernel.from_config(config)
                if _legal(kernel, target, arch):
                    kernels.append(kernel)
            except KernelError as e:
                raise KernelError(f"{path.name}:{number}: {e}") from e
    return Pool(target.op, target.variant, target.dtype, tuple(kernels))


def _legal(kernel: Kernel, target: Target, arch: HardwareProfile) -> bool:
    why = illegal(kernel, target, arch)
    if why and all(illegal(kernel, dataclasses.replace(target, dtype=dtype), arch) for dtype in DTYPES[target.op]):
        raise KernelError(f"{kernel.config} is illegal on {arch.name}: {why}")
    return why is None


def dump_json(pool: Pool) -> str:
    """``pool.json``: stable text, so that equal pools give equal files."""
    return json.dumps(pool.to_dict(), indent=1) + "\n"
