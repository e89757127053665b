"""Which dispatcher serves a call: one that was put in place with :func:`use`, else the registry's ``@production``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from types import TracebackType

import torch

from tilewise.dispatch import Dispatcher
from tilewise.dispatch.launch import arch_of
from tilewise.errors import TilewiseError
from tilewise.kernels.triton.program import interpreted
from tilewise.ops import Target

_log = logging.getLogger(__name__)

DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
DEVICE_TYPE = "cpu" if interpreted() else "cuda"  # of the tensors that are served
_INTERPRETED_ARCH = "sm90"  # whose kernels the interpreter runs

# One table for all threads: autograd runs backward passes in threads of its own.
_used: Mapping[str, Dispatcher] = {}
_loaded: dict[str, Dispatcher | None] = {}
_told: set[str] = set()


class use:
    """Let these dispatchers serve their targets from now on; in a ``with`` statement until its end.

    ``use(dispatcher)`` or ``with use(forward, bwd_data, bwd_weight): ...``. It holds for the whole process, not only
    for the calling thread.
    """

    def __init__(self, *dispatchers: Dispatcher) -> None:
        global _used
        self._before = _used
        _used = {**_used, **{d.target.name: d for d in dispatchers}}

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _used
        _used = self._before


def dispatcher_for(op: str, variant: str, tensor: torch.Tensor) -> Dispatcher | None:
    """The dispatcher for operands like `tensor`; None where there is none, which is said once."""
    name = _name(op, variant, tensor.dtype, tensor.get_device())
    if name in _used:
        return _used[name]
    if name not in _loaded:
        _loaded[name] = _from_registry(name)
    return _loaded[name]


def tell_once(message: str) -> None:
    """Warn, the first time that this is the message."""
    if message not in _told:
        _told.add(message)
        _log.warning(message)


@cache
def _name(op: str, variant: str, dtype: torch.dtype, device: int) -> str:
    arch = _INTERPRETED_ARCH if device < 0 else arch_of(device)
    return Target(op, variant, DTYPES[dtype], arch).name


def _from_registry(name: str) -> Dispatcher | None:
    try:
        return Dispatcher.from_registry(name, fallback=False)
    except (TilewiseError, ImportError) as e:
        tell_once(f"{name}: PyTorch's own operator is used, there is no model: {e}")
        return None
