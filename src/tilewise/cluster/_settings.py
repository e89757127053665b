"""Settings of a cluster: one class for all kinds, checked on construction."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from tilewise.checks import is_whole, require

KINDS = ("local", "dask", "slurm", "ssh")


@dataclass(frozen=True)
class ClusterSettings:
    """The choice of a cluster; conf/cluster has the defaults of each kind.

    Attributes:
        kind: one of :data:`KINDS`.
        address: of a running scheduler (dask).
        tls: folder with ca.pem, cert.pem and key.pem (dask).
        hosts: the scheduler's host, then the workers' (ssh).
        workers: number of jobs (slurm), or of processes on each host (ssh).
        gpus: 1 if each worker process owns a GPU.
        wait_s: seconds to wait for the first worker.
        retries: how often a task is repeated whose worker was lost.
        machines: worker processes that learn one model together, on hosts of their own where there are as many.
        options: further arguments of Dask's own cluster class.

    Raises:
        ConfigError: a value is out of its range, or missing for its kind.
    """

    kind: str = "local"
    address: str | None = None
    tls: str | None = None
    hosts: tuple[str, ...] = ()
    workers: int = 1
    gpus: int = 0
    wait_s: float = 60
    retries: int = 3
    machines: int = 1
    options: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(f"cluster.kind must be one of {', '.join(KINDS)}", self.kind in KINDS, self.kind)
        for name, least in (("workers", 1), ("retries", 0), ("machines", 1)):
            value = getattr(self, name)
            require(f"cluster.{name} must be an integer of at least {least}", is_whole(value) and value >= least, value)
        require("cluster.gpus must be 0 or 1", self.gpus in (0, 1), self.gpus)
        require("cluster.wait_s must be positive", self.wait_s > 0, self.wait_s)
        addressed = self.kind != "dask" or (isinstance(self.address, str) and "://" in self.address)
        require("cluster.address must be that of a scheduler, e.g. tcp://127.0.0.1:8786", addressed, self.address)
        grouped = self.kind != "local" or self.machines == 1
        require("cluster.machines above 1 needs a cluster of dask, slurm or ssh", grouped, self.machines)
        hosted = self.kind != "ssh" or len(self.hosts) >= 2
        require("cluster.hosts must name the scheduler's host and at least one worker's", hosted, self.hosts)
        secured = self.tls is None or str(self.address).startswith("tls://")
        require("cluster.tls needs a cluster.address of tls://", secured, self.address)

    @classmethod
    def from_config(cls, values: Mapping[str, object]) -> Self:
        """Return the settings of a configuration's section ``cluster``.

        Raises:
            ConfigError: a key is unknown, or a value breaks a rule.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            require(f"cluster has the keys {', '.join(known)}", name in known, name)
        given = {str(name): _plain(value) for name, value in values.items()}
        return cls(**given)  # type: ignore[arg-type]  # checked on construction


def _plain(value: object) -> object:
    """Return a configuration's value as plain dictionaries and tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(value) for name, value in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_plain(v) for v in value)
    return value
