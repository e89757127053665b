"""Measuring over many hosts: problems in shards, each leased to one worker, kept on storage that all hosts share.

:func:`collect_on_hosts` takes a plan and an executor, and writes the table that one host would write. A measured
problem is one object on the storage, created exclusively: whatever is lost or repeated, no problem is in the table
twice. Imports the standard library, NumPy, pyarrow and, for object stores, fsspec. Used by `tilewise collect`.
"""

from __future__ import annotations

from tilewise.collect.hosts._collect_on_hosts import HostsTask, collect_on_hosts
from tilewise.collect.hosts._engines import GpuSource, LibrarySource, ReplaySource, Source
from tilewise.collect.hosts._leases import Lease, LeaseLostError, take_lease
from tilewise.collect.hosts._shard_log import ShardLog
from tilewise.collect.hosts._store import open_store

__all__ = [
    "GpuSource",
    "HostsTask",
    "Lease",
    "LeaseLostError",
    "LibrarySource",
    "ReplaySource",
    "ShardLog",
    "Source",
    "collect_on_hosts",
    "open_store",
    "take_lease",
]
