"""Choice of the executor; imports Dask only where it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewise.cluster._executor import LOCAL, Executor
from tilewise.cluster._settings import ClusterSettings


@contextmanager
def open_executor(settings: ClusterSettings) -> Iterator[Executor]:
    """Yield the executor of these settings; workers that it started end with the block.

    Raises:
        MissingExtraError: Dask is not installed.
        ConfigError: no scheduler answers, no worker came in time, or a worker has other versions of libraries.
    """
    if settings.kind == "local":
        yield LOCAL
        return
    from tilewise.cluster._dask import dask_executor

    with dask_executor(settings) as executor:
        yield executor
