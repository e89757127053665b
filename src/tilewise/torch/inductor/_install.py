"""Installing the pass in Inductor's configuration, for all compilations or for one call of ``torch.compile``."""

from __future__ import annotations

from types import TracebackType
from typing import Literal

import torch
from torch._inductor import config, list_mode_options

from tilewise.errors import ConfigError
from tilewise.torch.inductor._graph_pass import GraphPass

TESTED_TORCH = ((2, 11), (2, 13))  # the first and the last tested version; those in between are taken too
_KEY = "post_grad_custom_pre_pass"

Launch = Literal["eager", "graph"]


class enable:
    """Lets Inductor use selected kernels: from now on, or in a ``with`` statement until its end.

    ``enable()`` or ``with enable(): ...``. It applies to networks that are compiled from now on, in newer versions of
    PyTorch to those of the calling thread; compiled ones stay as they are until ``torch.compiler.reset()``. A pass that
    another library has installed goes on running, before this one.

    Args:
        launch: ``graph`` if the caller captures the compiled network in CUDA graphs; see :func:`options`.

    Raises:
        ConfigError: the installed PyTorch is no tested version.
    """

    def __init__(self, launch: Launch = "eager") -> None:
        _check_torch()
        self._previous = getattr(config, _KEY)
        if not isinstance(self._previous, GraphPass):
            setattr(config, _KEY, GraphPass(self._previous, launch))

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        setattr(config, _KEY, self._previous)


def disable() -> None:
    """Undo :class:`enable` for networks that are compiled from now on."""
    installed = getattr(config, _KEY)
    if isinstance(installed, GraphPass):
        setattr(config, _KEY, installed.previous)


def options(mode: str | None = None, launch: Launch = "eager") -> dict[str, object]:
    """Return the argument `options` of ``torch.compile`` that lets this one network use selected kernels.

    Args:
        mode: a mode of ``torch.compile``, which takes no `mode` beside `options`.
        launch: ``graph`` if the caller captures the compiled network in CUDA graphs, where kernels cost the host
            nothing. Graphs that Inductor captures, as in mode ``reduce-overhead``, need no statement.

    Raises:
        ConfigError: the installed PyTorch is no tested version.
    """
    _check_torch()
    return {**(list_mode_options(mode) if mode else {}), _KEY: GraphPass(getattr(config, _KEY), launch)}


def _check_torch() -> None:
    """Check that PyTorch is a tested version: the pass relies on Inductor's graphs, which have no promise of stability.

    Raises:
        ConfigError: it is not.
    """
    installed = tuple(int(part) for part in torch.__version__.split(".")[:2])
    first, last = TESTED_TORCH
    if not first <= installed <= last:
        tested = " to ".join(".".join(map(str, version)) for version in TESTED_TORCH)
        raise ConfigError(
            f"the adapter for torch.compile is tested with PyTorch {tested}, got {torch.__version__}; install one of "
            "these, or replace layers by tilewise.torch.optimize"
        )
