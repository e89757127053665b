"""The dispatcher for a call: one installed with :func:`use`, or else that of the registry's ``@production`` model."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from threading import Thread
from types import TracebackType

import torch

from tilewise.dispatch import Dispatcher
from tilewise.dispatch.background import Ticker, short_turns
from tilewise.dispatch.launching import device_arch
from tilewise.errors import KernelError, RegistryUnavailableError, TilewiseError
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.kernels.triton.programs import interpreted, read_compiler
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
DEVICE_TYPE = "cpu" if interpreted() else "cuda"  # of the tensors for which there are kernels
_MAX_WARNINGS = 1024  # many shapes may have no kernel
_PAUSE_S = 60.0  # until a registry that was unavailable is asked again
_INTERPRETED_ARCH = "sm90"  # the interpreter runs this arch's kernels

# All threads share one table, because autograd runs backward passes in its own threads.
_installed: Mapping[str, Dispatcher] = {}
_from_production: dict[str, Dispatcher | str] = {}  # or the reason for its absence
_awaited: dict[str, _Awaited] = {}
_warnings: set[str] = set()


class use:
    """Installs dispatchers for their targets: from now on, or in a ``with`` statement until its end.

    ``use(dispatcher)`` or ``with use(forward, bwd_data, bwd_weight): ...``. It applies to the whole process, not only
    to the calling thread.
    """

    def __init__(self, *dispatchers: Dispatcher) -> None:
        global _installed
        self._previous = _installed
        _read_compiler_aside()
        _installed = {**_installed, **{d.target.name: d for d in dispatchers}}

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _installed
        _installed = self._previous


def dispatcher_for(op: str, variant: str, tensor: torch.Tensor) -> Dispatcher | None:
    """Return the dispatcher for operands like `tensor`, or log a warning once and return None."""
    return dispatcher_named(_target_name(op, variant, tensor.dtype, tensor.get_device()))


def dispatcher_named(name: str) -> Dispatcher | None:
    """Return the dispatcher of a target, or log a warning once and return None."""
    found = _find(name)
    if isinstance(found, str):
        warn_once(found)
        return None
    return found


def _find(name: str) -> Dispatcher | str:
    """Return the dispatcher of a target, or the reason for its absence."""
    if name in _installed:
        return _installed[name]
    if name not in _from_production:
        _ask_production(name)
    return _from_production[name]


def _ask_production(name: str) -> None:
    """Keep the registry's answer for a target; from one that is unavailable it is awaited while PyTorch computes."""
    try:
        _from_production[name] = _load_production(name)
    except RegistryUnavailableError as e:
        _from_production[name] = _absence(name, e)
        _awaited[name] = _Awaited(name)


class _Awaited:
    """A target that its unavailable registry is asked for again and again, by a thread: calls do not wait for it."""

    def __init__(self, target: str) -> None:
        self._target, self._ticker = target, Ticker(self.ask, _PAUSE_S, f"tilewise await {target}")
        self._ticker.start()

    def ask(self) -> None:
        """Ask once, and no more after an answer."""
        with suppress(RegistryUnavailableError), short_turns():
            _from_production[self._target] = _load_production(self._target)
            self._ticker.stop()


def identity_of(op: str, variants: Iterable[str], dtype: torch.dtype, device: torch.device) -> str:
    """Return a digest of the dispatchers for operands of a dtype on a device: equal ones choose alike."""
    found = [_find(target_name(op, variant, dtype, device)) for variant in variants]
    identities = [None if isinstance(f, str) else f.identity for f in found]
    return hashlib.sha256(repr(identities).encode()).hexdigest()[:16]


def is_left_to_pytorch(target: str, problem: Problem, kind: EpilogueKind = EMPTY_KIND) -> bool:
    """Return whether PyTorch's own call computes a problem with an epilogue: it is the selection, or no kernel can."""
    dispatcher = dispatcher_named(target)
    if dispatcher is None:
        return True
    try:
        return dispatcher.is_left_to_pytorch(problem, kind)
    except KernelError as e:
        warn_no_kernel(dispatcher, e)
        return True


def warn_no_kernel(dispatcher: Dispatcher, error: KernelError) -> None:
    """Log once that PyTorch computes a problem for lack of a kernel."""
    warn_once(f"{dispatcher.target.name}: PyTorch's own operator is used where none can run: {error}")


def warn_once(message: str) -> None:
    """Log a warning, unless the same message was logged before; the first messages of a process are logged."""
    if message not in _warnings and len(_warnings) < _MAX_WARNINGS:
        _warnings.add(message)
        _log.warning(message)


def target_name(op: str, variant: str, dtype: torch.dtype, device: torch.device) -> str:
    """Return the name of the target for operands of a dtype on a device."""
    return _target_name(op, variant, dtype, -1 if device.index is None else device.index)


@cache
def _read_compiler_aside() -> None:
    """Start the reading that the first kernel would wait for."""
    if DEVICE_TYPE == "cuda" and torch.cuda.is_available():
        Thread(target=read_compiler, name="tilewise-read-compiler", daemon=True).start()


@cache
def _target_name(op: str, variant: str, dtype: torch.dtype, device: int) -> str:
    arch = _INTERPRETED_ARCH if device < 0 else device_arch(device)
    return Target(op, variant, DTYPES[dtype], arch).name


def _load_production(name: str) -> Dispatcher | str:
    """Return the dispatcher of the registry's model, or the reason for its absence.

    Raises:
        RegistryUnavailableError: the registry is unavailable, and there is no local copy.
    """
    _read_compiler_aside()
    try:
        return Dispatcher.from_registry(name, fallback=False)
    except RegistryUnavailableError:
        raise
    except (TilewiseError, ImportError) as e:
        return _absence(name, e)


def _absence(name: str, reason: Exception) -> str:
    return f"{name}: PyTorch's own operator is used, there is no model: {reason}"
