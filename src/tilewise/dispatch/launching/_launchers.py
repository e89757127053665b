"""The launcher of each backend, imported only when something runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tilewise.errors import KernelError
from tilewise.kernels import NO_EPILOGUE, Backend, Epilogue, EpilogueKind, Shape
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.launching._bind import BoundKernel, DirectCall

Tensor = Any  # a torch.Tensor, or a NumPy array for CK Tile's kernels


class Choice(Protocol):
    """The parts of a :class:`tilewise.dispatch.Selection` that a launcher needs."""

    @property
    def kernel(self) -> Any: ...
    @property
    def kernel_name(self) -> str: ...


Select = Callable[[Problem, EpilogueKind], Choice]  # the kernel to launch
Rank = Callable[[Problem, EpilogueKind], Sequence[Choice]]  # all kernels, best first


class Binding:
    """A bound kernel, and the shapes that its tensors must have: shapes of the operands -> shape of the result.

    `returns` computes without a tensor for the result, for a kernel that allocates it itself; None for others.
    `direct` computes from tensors as PyTorch has them, unchecked.
    """

    __slots__ = ("direct", "kernel_name", "launch", "returns", "shapes")

    def __init__(
        self, kernel_name: str, launch: BoundKernel, shapes: Mapping[tuple[Shape, ...], Shape], direct: DirectCall
    ) -> None:
        self.kernel_name, self.launch, self.shapes, self.direct = kernel_name, launch, shapes, direct
        self.returns: Callable[[Sequence[Tensor]], Tensor] | None = getattr(launch, "returns", None)


BindingKey = tuple[Problem, int, EpilogueKind]  # problem, device, epilogue
Bindings = Mapping[BindingKey, Binding]


class KernelLauncher(Protocol):
    """Runs problems of one target with the kernels that a dispatcher selects.

    Attributes:
        failures: number of kernels that could not be launched.
    """

    failures: int

    def run(
        self, problem: Problem, tensors: Sequence[Tensor], out: Tensor | None, epilogue: Epilogue = NO_EPILOGUE
    ) -> Tensor:
        """See :meth:`tilewise.dispatch.Dispatcher.run`."""

    def direct(self, problem: Problem, device: int, kind: EpilogueKind) -> DirectCall | None:
        """See :meth:`tilewise.dispatch.Dispatcher.direct`."""

    @property
    def bindings(self) -> Bindings:
        """Bound kernels for the launcher of the next generation."""


def _torch(target: Target, select: Select, rank: Rank, spare: Bindings) -> KernelLauncher:
    from tilewise.dispatch.launching._launch import TorchLauncher  # imports torch and triton

    return TorchLauncher(target, select, rank, spare)


def _ck_tile(target: Target, select: Select, rank: Rank, spare: Bindings) -> KernelLauncher:
    from tilewise.dispatch.launching._ck_launch import CkLauncher

    return CkLauncher(target, select, rank)


LAUNCHERS = {"triton": _torch, "vendor": _torch, "ck_tile": _ck_tile}


def make_launcher(
    backend: Backend, target: Target, select: Select, rank: Rank, previous: KernelLauncher | None
) -> KernelLauncher:
    """Make the launcher of a backend's kernels.

    Args:
        backend: of the kernels.
        target: to run problems of.
        select: returns the kernel to launch for a problem with an epilogue.
        rank: returns all kernels for it, best first.
        previous: launcher of the generation that served before.

    Raises:
        KernelError: no part of the backend has a launcher, two parts have different ones, or the launcher is not set
            up.
    """
    launchers = {LAUNCHERS[source.name]: source for source in backend.sources if source.name in LAUNCHERS}
    if len(launchers) != 1:
        problem = "need different launchers" if launchers else "cannot be launched from here"
        raise KernelError(f"kernels of {backend.label} {problem}; there are launchers for {', '.join(LAUNCHERS)}")
    launch = next(iter(launchers))
    return launch(target, select, rank, {} if previous is None else previous.bindings)


def is_launched(backend: Backend) -> bool:
    """Return whether kernels of this backend can be launched from Python; others are data only."""
    return backend.name in LAUNCHERS
