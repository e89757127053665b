"""The compiled ranking core, where it was built.

``TILEWISE_CORE=numpy`` disables the compiled core, ``TILEWISE_CORE=c`` requires it. If neither is set and there is no
core, a warning says once that NumPy ranks.
"""

from __future__ import annotations

import logging
import os
from functools import cache
from importlib import import_module
from types import ModuleType

from tilewise.errors import ConfigError

_log = logging.getLogger(__name__)
CHOICES = ("", "c", "numpy")


def compiled_core() -> ModuleType | None:
    """Return the compiled core, or None if it was not built or is disabled.

    Raises:
        ConfigError: ``TILEWISE_CORE`` is not in :data:`CHOICES`, or requires a core that was not built.
    """
    choice = os.environ.get("TILEWISE_CORE", "")
    if choice not in CHOICES:
        raise ConfigError(f"TILEWISE_CORE={choice}: must be c, numpy, or not set (c where it was built)")
    if choice == "numpy":
        return None
    try:
        return import_module("tilewise.core._core")
    except ImportError as e:
        if choice == "c":
            reason = f"TILEWISE_CORE=c, but the core was not built ({e}); install a C compiler, then tilewise again"
            raise ConfigError(reason) from e
        _warn_once(str(e))
        return None


@cache
def _warn_once(reason: str) -> None:
    _log.warning(
        "the native core was not built (%s), so NumPy ranks, about 100 times slower; install a C compiler, then "
        "tilewise again, or choose NumPy by TILEWISE_CORE=numpy",
        reason,
    )
