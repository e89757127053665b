"""The models of one tuned kernel, each loaded when a key of its target first comes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tilewise.autotuning._machines import CPU
from tilewise.autotuning.records import TunedContext, TunedKey
from tilewise.errors import UsageError

if TYPE_CHECKING:
    from tilewise.autotuning.op._kernel_op import KernelOp
    from tilewise.autotuning.op._model_adviser import ModelAdviser

_log = logging.getLogger(__name__)


class Advisers:
    """The models of one tuned kernel.

    Args:
        op: gives the kernel's op; it raises a UsageError for a kernel that cannot be an op.
        model: a folder or an alias; see :func:`tilewise.autotuning.op._model_adviser.load_adviser`. None for no model.
        warn: takes warnings.
    """

    def __init__(self, op: Callable[[], KernelOp], model: str | None, warn: Callable[[str], None]) -> None:
        self._op, self._model, self._warn = op, model, warn
        self._loaded: dict[tuple[str, tuple[str, ...]], ModelAdviser | None] = {}
        self._lock = threading.Lock()

    def __call__(self, context: TunedContext, key: TunedKey) -> ModelAdviser | None:
        """Return the model for a key; None without one."""
        if self._model is None:
            return None
        subject = (context.machine.arch, key.dtypes)
        with self._lock:
            if subject not in self._loaded:
                self._loaded[subject] = self._load(self._model, *subject)
            return self._loaded[subject]

    def _load(self, model: str, arch: str, dtypes: tuple[str, ...]) -> ModelAdviser | None:
        from tilewise.autotuning.op._model_adviser import load_adviser  # imports the dispatcher

        try:
            op = self._op()
            return load_adviser(op, op.target(dtypes, arch), model, self._warn)
        except UsageError as e:
            level = logging.INFO if arch == CPU else logging.WARNING
            _log.log(level, "no model can be used: %s", e)
            return None
