"""One small Dask cluster for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tilewise.cluster import ClusterSettings, Executor, open_executor


@pytest.fixture(scope="session")
def dask() -> Iterator[Any]:
    """Run a scheduler and two worker processes on this machine."""
    pytest.importorskip("distributed", reason="needs the extra cluster")
    from tilewise.cluster._dask import host_cluster

    with host_cluster(workers=2) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def executor(dask: Any) -> Iterator[Executor]:
    """Connect an executor to that cluster."""
    with open_executor(ClusterSettings(kind="dask", address=dask.scheduler_address)) as executor:
        yield executor
