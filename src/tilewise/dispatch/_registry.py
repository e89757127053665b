"""All dispatchers of one arch behind one object, for libraries that compute several ops, variants and dtypes."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tilewise.dispatch._dispatcher import Dispatcher
from tilewise.dispatch._figures import Figures
from tilewise.dispatch._selection import Selection
from tilewise.dispatch._selector import ProblemLike
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.background import register_after_fork
from tilewise.errors import ArtefactError, ProblemError
from tilewise.kernels import NO_EPILOGUE, Epilogue, KernelBase
from tilewise.ops import OPS, Problem, Target, is_known, known_ops, short_dtype

if TYPE_CHECKING:
    import torch

STATED = ("op", "variant", "dtype")  # parts of the target that a problem given as a mapping may state


class Registry:
    """Selects and launches kernels of every op, variant and dtype on one arch; threads may share it.

    A problem given as a mapping may state its ``op``, ``variant`` and ``dtype`` besides its dimensions. Without them,
    the op follows from the dimensions, the variant is the op's first (``forward``, ``universal``), and the dtype is
    that of the tensors of :meth:`run`. Each target's dispatcher is made on first use, and
    waits for no other's.

    Args:
        arch: arch of all targets, such as ``sm90``.
        models: folder of model folders, by target's name; other targets come from the registry of models.
        alias: of the registered models.
        uri: of the registry of models; None for ``MLFLOW_TRACKING_URI``, or else the project's own.
        switches: settings; None for those of the environment.
    """

    def __init__(
        self,
        arch: str,
        *,
        models: str | Path | None = None,
        alias: str = "production",
        uri: str | None = None,
        switches: Switches | None = None,
    ) -> None:
        self.arch = arch
        self._models = None if models is None else Path(models)
        self._alias, self._uri, self._switches = alias, uri, switches
        self._dispatchers: dict[Target, Dispatcher] = {}
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the locks in a forked child, in which no dispatcher is being made."""
        self._lock = threading.Lock()
        self._making: dict[Target, threading.Lock] = {}  # a slow registry must not hold up the other targets

    def dispatcher(self, target: Target | str) -> Dispatcher:
        """Return the dispatcher of a target of this arch.

        Raises:
            ConfigError, ProblemError: the target is unknown, or of another arch.
            UnknownTargetError: the target has neither a model nor a pool.
            ArtefactError: its model's folder is damaged, or holds a model of another target.
        """
        if isinstance(target, str) and Target.may_be_of_own_op(target):
            self._keep(self._open(target))  # its model brings the op's definition along
        parsed = Target.parse(target) if isinstance(target, str) else target
        if parsed.arch != self.arch:
            raise ProblemError("arch", f"must be {self.arch}, that of this registry, got {parsed.name}")
        known = self._dispatchers.get(parsed)
        if known is not None:
            return known
        with self._lock:
            making = self._making.setdefault(parsed, threading.Lock())
        with making:
            if parsed not in self._dispatchers:
                self._keep(self._open(parsed))
            return self._dispatchers[parsed]

    def _keep(self, dispatcher: Dispatcher) -> None:
        with self._lock:
            if self._dispatchers.setdefault(dispatcher.target, dispatcher) is not dispatcher:
                dispatcher.close()  # another thread was faster

    def _open(self, target: Target | str) -> Dispatcher:
        folder = None if self._models is None else self._models / str(target)
        if folder is not None and folder.is_dir():
            dispatcher = Dispatcher.from_folder(folder, switches=self._switches)
            if str(dispatcher.target) != str(target):
                dispatcher.close()
                raise ArtefactError(
                    f"{folder}: must hold a model of {target}, as its name says, got one of {dispatcher.target}; "
                    "rename the folder"
                )
            return dispatcher
        return Dispatcher.from_registry(target, self._alias, uri=self._uri, switches=self._switches)

    def target_of(self, problem: ProblemLike, tensors: tuple[Any, ...] = (), **stated: str) -> Target:
        """Return the target of a problem.

        Args:
            problem: a problem, or its dimensions with parts of the target.
            tensors: operands, whose dtype counts where none is stated.
            stated: ``op``, ``variant``, ``dtype``; these come before those in the mapping.

        Raises:
            ProblemError: it is no problem, the op or the dtype cannot be told, or a part is unknown.
            ConfigError: the op has no such variant or dtype.
        """
        if unknown := sorted(set(stated) - set(STATED)):
            raise ProblemError(unknown[0], f"not a part of a target; known are {', '.join(STATED)}")
        parts = {name: str(problem[name]) for name in STATED if isinstance(problem, Mapping) and name in problem}
        parts |= stated
        if not isinstance(problem, Problem | Mapping):
            raise ProblemError("problem", f"must be a problem or its dimensions by name, got {type(problem).__name__}")
        op = problem.op if isinstance(problem, Problem) else parts.get("op") or _op_of(problem)
        if op is None or not is_known(op):
            raise ProblemError("op", f"must be one of {', '.join(known_ops())}, got {op!r}")
        dtype = parts.get("dtype") or (short_dtype(str(tensors[0].dtype)) if tensors else None)
        if dtype is None:
            raise ProblemError("dtype", "missing; state it with the problem, or as dtype=")
        return Target(op, parts.get("variant", OPS[op].variants[0]), dtype, self.arch)

    def select(self, problem: ProblemLike, **stated: str) -> Selection:
        """Return the kernel to launch, see :meth:`Dispatcher.select`; `stated` as for :meth:`target_of`."""
        return self._dispatcher_of(problem, (), stated).select(_dimensions(problem))

    def rank(self, problem: ProblemLike, top_k: int | None = None, **stated: str) -> tuple[Selection, ...]:
        """Return the supported kernels, best first, see :meth:`Dispatcher.rank`."""
        return self._dispatcher_of(problem, (), stated).rank(_dimensions(problem), top_k)

    def is_supported(self, problem: ProblemLike, kernel: KernelBase | str | None = None, **stated: str) -> bool:
        """Return whether any kernel computes the problem, or this one, see :meth:`Dispatcher.is_supported`."""
        return self._dispatcher_of(problem, (), stated).is_supported(_dimensions(problem), kernel)

    def run(
        self, problem: ProblemLike, *tensors: torch.Tensor, out: torch.Tensor | None = None,
        epilogue: Epilogue = NO_EPILOGUE, **stated: str,
    ) -> torch.Tensor:  # fmt: skip
        """Launch the selected kernel, see :meth:`Dispatcher.run`."""
        return self._dispatcher_of(problem, tensors, stated).run(
            _dimensions(problem), *tensors, out=out, epilogue=epilogue
        )

    def _dispatcher_of(self, problem: ProblemLike, tensors: tuple[Any, ...], stated: dict[str, str]) -> Dispatcher:
        return self.dispatcher(self.target_of(problem, tensors, **stated))

    def figures(self) -> list[Figures]:
        """Return the figures of each dispatcher that was made by now, for monitoring."""
        return [dispatcher.figures() for dispatcher in list(self._dispatchers.values())]

    def close(self) -> None:
        """Close all dispatchers, also those that other threads make now, see :meth:`Dispatcher.close`."""
        for making in list(self._making.values()):
            with making:
                pass
        for dispatcher in list(self._dispatchers.values()):
            dispatcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _op_of(problem: Mapping[str, object]) -> str | None:
    """Return the first op all of whose required dimensions are there."""
    given = set(problem)
    return next((op for op, kind in OPS.items() if set(kind.column_names()) - set(kind.defaults()) <= given), None)


def _dimensions(problem: ProblemLike) -> ProblemLike:
    if isinstance(problem, Problem):
        return problem
    return {name: value for name, value in problem.items() if name not in STATED}
