"""Executors of tasks: in this process, or on the workers of a Dask cluster on many hosts.

:func:`open_executor` gives an :class:`Executor` for a configuration's ``cluster``. Its `map` takes a function, an
object that all tasks share, and the tasks, and returns the results in the order of the tasks. Results do not depend on
the executor. Tasks of lost workers are repeated, so a task must be repeatable. The local executor imports no Dask.
Used by training, collecting and the command line.
"""

from __future__ import annotations

from tilewise.cluster._executor import LOCAL, Executor, LocalExecutor, Peers
from tilewise.cluster._open import open_executor
from tilewise.cluster._settings import ClusterSettings

__all__ = ["LOCAL", "ClusterSettings", "Executor", "LocalExecutor", "Peers", "open_executor"]
