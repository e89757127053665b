"""The executor over a Dask cluster, and the launchers of such clusters."""

from __future__ import annotations

import functools
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import dask
from distributed import Client, Future, Nanny, Scheduler, SpecCluster, as_completed
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker
from distributed.security import Security

import tilewise
from tilewise.cluster._executor import GPU, Peers, Result, Shared, Task
from tilewise.cluster._settings import ClusterSettings
from tilewise.errors import ConfigError, TilewiseError

# Different versions give different trees, and a worker with other sources may do other work altogether.
_ALIKE = ("lightgbm", "numpy", "optuna", "pandas", "pyarrow", "scikit-learn")
# By default Dask's worker processes may start no processes, but measuring isolates each device in one; and a host that
# was cut off is given up after five minutes.
_CONFIG = {"distributed.worker.daemon": False, "distributed.scheduler.worker-ttl": "60s"}
# A nanny starts its lost worker again. By default the cluster ends a nanny whose worker is away 15 s after a loss, even
# if the worker had come back and was lost once more.
_HOST_CONFIG = {**_CONFIG, "distributed.deploy.lost-worker-timeout": "365d"}
_WORKER_LOCK = threading.Lock()
POLL_S = 0.1
RETURN_S = 120.0  # for the workers that replace lost ones
NOTICE_S = 3.0  # after an error, for the scheduler to notice that its cause was the loss of a peer


class DaskExecutor:
    """Executor whose tasks run on the workers of a Dask cluster, one at a time in each worker process.

    Args:
        client: connected to the scheduler.
        retries: how often a task is repeated whose worker was lost.
        machines: see :attr:`tilewise.cluster.Executor.machines`.
    """

    is_local = False

    def __init__(self, client: Client, retries: int, machines: int = 1) -> None:
        self.client, self.machines = client, machines
        self._retries = retries

    @property
    def slots(self) -> int:
        """Number of worker processes now."""
        return max(1, len(self._workers()))

    def map(
        self,
        function: Callable[[Shared, Task], Result],
        shared: Shared,
        tasks: Sequence[Task],
        on_result: Callable[[Result], None] | None = None,
        *,
        gpu: bool = False,
    ) -> list[Result]:
        """Run the tasks on the workers; see :meth:`tilewise.cluster.Executor.map`.

        Raises:
            ConfigError: the tasks need a GPU, and no worker owns one.
        """
        if gpu and not any(worker["resources"].get(GPU) for worker in self._workers().values()):
            raise ConfigError("no worker owns a GPU; start workers with `dask worker --resources GPU=1 --no-nanny`")
        done: dict[int, Result] = {}

        def keep(index: int, result: Result) -> None:
            done[index] = result
            if on_result:
                on_result(result)

        submit = functools.partial(self.client.submit, pure=False)
        calls = [function] if gpu else [_alone, function]
        begin = functools.partial(submit, *calls, resources={GPU: 1} if gpu else {})
        for _ in range(self._retries + 1):
            left = {i: task for i, task in enumerate(tasks) if i not in done}
            if left:
                self._attempt(begin, shared, left, keep)
        if len(done) < len(tasks):
            raise TilewiseError(
                f"{len(tasks) - len(done)} of {len(tasks)} tasks lost their workers {self._retries + 1} times; look "
                "into the workers' logs (often memory), or raise cluster.retries"
            )
        return [done[i] for i in range(len(tasks))]

    def together(
        self, function: Callable[[Shared, Task, Peers, int], Result], shared: Shared, tasks: Sequence[Task]
    ) -> list[Result]:
        """Run all tasks at once; see :meth:`tilewise.cluster.Executor.together`."""
        for attempt in range(self._retries + 1):
            if attempt:
                with suppress(TimeoutError):  # a worker that was lost is often started again
                    self.client.wait_for_workers(len(tasks), timeout=RETURN_S)
            results = self._attempt_together(function, shared, tasks)
            if results is not None:
                return results
        raise TilewiseError(
            f"{len(tasks)} workers that learn together lost one of them {self._retries + 1} times; look into the "
            "workers' logs (often memory), or raise cluster.retries"
        )

    def _attempt_together(
        self, function: Callable[[Shared, Task, Peers, int], Result], shared: Shared, tasks: Sequence[Task]
    ) -> list[Result] | None:
        """Run the tasks once; return None if a worker was lost."""
        chosen = _spread(list(self._workers()), len(tasks))
        ports = self.client.run(_free_port, workers=chosen)
        peers = tuple(f"{_host(worker)}:{ports[worker]}" for worker in chosen)
        sent = self.client.scatter(list(tasks), hash=False)
        [common] = self.client.scatter([shared], broadcast=True, hash=False)
        futures = [
            self.client.submit(_together, (function, peers, i), common, task, workers=[worker], pure=False)
            for i, (worker, task) in enumerate(zip(chosen, sent, strict=True))
        ]
        try:
            while not all(future.done() for future in futures):
                if self._lost(chosen) or any(future.status == "error" for future in futures):
                    break
                time.sleep(POLL_S)
            failed = [future for future in futures if future.status == "error"]
            if failed and not self._lost(chosen):
                time.sleep(NOTICE_S)
            if self._lost(chosen):
                return None
            return [future.result() for future in (*failed, *futures)][len(failed) :]
        finally:
            self.client.cancel([future for future in futures if not future.done()])

    def _lost(self, workers: Sequence[str]) -> bool:
        return not set(workers) <= set(self._workers())

    def _attempt(
        self,
        begin: Callable[..., Future],
        shared: Shared,
        tasks: Mapping[int, Task],
        keep: Callable[[int, Result], None],
    ) -> None:
        """Run the tasks once, and keep the results; tasks of lost workers have none."""
        # In a list, because a dictionary would be scattered item by item; to all, so that no worker's loss loses it.
        [sent] = self.client.scatter([shared], broadcast=True, hash=False)
        futures = {begin(sent, task): i for i, task in tasks.items()}
        try:
            for future in as_completed(list(futures)):
                try:
                    result = future.result()
                except (FutureCancelledError, KilledWorker):
                    continue
                keep(futures[future], result)
        finally:
            for future in futures:
                if not future.done():
                    future.cancel()

    def _workers(self) -> dict[str, dict[str, dict[str, float]]]:
        found: dict[str, dict[str, dict[str, float]]] = self.client.scheduler_info(n_workers=-1)["workers"]
        return found


def _alone(function: Callable[[Shared, Task], Result], shared: Shared, task: Task) -> Result:
    """Call the function while no other task of this process runs: tasks share an object, and LightGBM's threads."""
    with _WORKER_LOCK:
        return function(shared, task)


def _together(
    call: tuple[Callable[[Shared, Task, Peers, int], Result], Peers, int], shared: Shared, task: Task
) -> Result:
    function, peers, number = call
    with _WORKER_LOCK:
        return function(shared, task, peers, number)


def _spread(workers: Sequence[str], count: int) -> list[str]:
    """Return `count` workers, on as many hosts as possible.

    Raises:
        ConfigError: there are fewer.
    """
    if len(workers) < count:
        raise ConfigError(f"cluster.machines={count} needs as many worker processes, there are {len(workers)}")
    seen: Counter[str] = Counter()
    ranked = []
    for worker in sorted(workers):
        ranked.append((seen[_host(worker)], worker))
        seen[_host(worker)] += 1
    return [worker for _, worker in sorted(ranked)[:count]]


def _host(address: str) -> str:
    """Return the host of an address such as ``tcp://127.0.0.1:8786``."""
    return address.rpartition("://")[2].rpartition(":")[0]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def dask_executor(settings: ClusterSettings) -> Iterator[DaskExecutor]:
    """Connect to a scheduler, or start one with its workers, and yield the executor.

    Raises:
        ConfigError: no scheduler answers, no worker came in time, or a worker has other versions of libraries.
    """
    with dask.config.set(_CONFIG), _connected(settings) as client:
        _require_workers(client, settings)
        yield DaskExecutor(client, settings.retries, settings.machines)


@contextmanager
def _connected(settings: ClusterSettings) -> Iterator[Client]:
    if settings.kind == "dask":
        try:
            client = Client(settings.address, timeout=settings.wait_s, security=_security(settings.tls))
        except (OSError, TimeoutError) as e:
            raise ConfigError(
                f"cluster.address={settings.address}: no scheduler answers ({e}); `make cluster` starts one here"
            ) from e
        with client:
            yield client
        return
    with _LAUNCHERS[settings.kind](settings) as cluster, Client(cluster) as client:
        yield client


def _security(tls: str | None) -> Security | None:
    if tls is None:
        return None
    files = {name: Path(tls) / f"{name}.pem" for name in ("ca", "cert", "key")}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if missing:
        raise ConfigError(f"cluster.tls must hold ca.pem, cert.pem and key.pem; {', '.join(missing)} is missing")
    return Security(
        tls_ca_file=str(files["ca"]),
        tls_client_cert=str(files["cert"]),
        tls_client_key=str(files["key"]),
        require_encryption=True,
    )


def _require_workers(client: Client, settings: ClusterSettings) -> None:
    try:
        client.wait_for_workers(1, timeout=settings.wait_s)
    except TimeoutError as e:
        raise ConfigError(f"no worker came within cluster.wait_s={settings.wait_s:g} s; look into its log") from e
    here = versions()
    for worker, there in client.run(versions).items():
        for name, ours in here.items():
            if there[name] != ours:
                raise ConfigError(f"worker {worker} has {name} {there[name]}, here is {ours}; install the same there")


def versions() -> dict[str, str]:
    """Return the versions that must be alike on all hosts, Python's included."""
    # Containers run tilewise from a mounted folder, where it is not installed.
    found = {"python": ".".join(map(str, sys.version_info[:2])), "tilewise": tilewise.__version__}
    for name in _ALIKE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def worker_resources(gpus: int) -> dict[str, float]:
    """Return the resources of a worker with this number of GPUs."""
    return {GPU: float(gpus)} if gpus else {}


@contextmanager
def host_cluster(workers: int, gpus: int = 0, port: int = 0, dashboard: str | None = None) -> Iterator[SpecCluster]:
    """Run a scheduler and worker processes on this machine, reachable from this machine only.

    A lost worker is started again, however often.

    Args:
        workers: number of worker processes without a GPU.
        gpus: number of further worker processes, each with a GPU of its own.
        port: of the scheduler; 0 for a free one.
        dashboard: address of the dashboard, e.g. ``127.0.0.1:8787``; None for none.
    """
    plain: dict[str, object] = {"nthreads": 1, "host": "127.0.0.1", "memory_limit": 0, "silence_logs": 30}
    specs: dict[str, dict[str, object]] = {f"cpu-{i}": {"cls": Nanny, "options": plain} for i in range(workers)}
    for i in range(gpus):
        owned = {"env": {"CUDA_VISIBLE_DEVICES": str(i)}, "resources": worker_resources(1)}
        specs[f"gpu-{i}"] = {"cls": Nanny, "options": plain | owned}
    options = {"host": "127.0.0.1", "port": port, "dashboard": dashboard is not None, "dashboard_address": dashboard}
    scheduler = {"cls": Scheduler, "options": options}
    with dask.config.set(_HOST_CONFIG), SpecCluster(workers=specs, scheduler=scheduler, silence_logs=30) as cluster:
        yield cluster


def _slurm_cluster(settings: ClusterSettings) -> SpecCluster:
    from dask_jobqueue import SLURMCluster

    gpu = {"job_extra_directives": ["--gpus=1"], "worker_extra_args": ["--resources", f"{GPU}=1"]}
    options = {**(gpu if settings.gpus else {}), **settings.options}
    # Without a nanny, SLURM alone decides about the job, and measuring may start processes.
    cluster = SLURMCluster(processes=1, nanny=False, **options)
    cluster.scale(jobs=settings.workers)
    return cluster


def _ssh_cluster(settings: ClusterSettings) -> SpecCluster:
    from distributed.deploy import ssh

    place = {"connect_options": {}, **settings.options}
    plain = {"nthreads": 1, "resources": worker_resources(settings.gpus)}
    specs: dict[str, dict[str, object]] = {}
    for host in settings.hosts[1:]:
        for i in range(settings.workers):
            # Unlike dask.distributed.SSHCluster, which gives all processes of a host the same environment.
            owned = {"env": {"CUDA_VISIBLE_DEVICES": str(i)}} if settings.gpus else {}
            specs[f"{host}-{i}"] = {"cls": ssh.Worker, "options": {"address": host, "kwargs": plain | owned, **place}}
    scheduler = {"cls": ssh.Scheduler, "options": {"address": settings.hosts[0], "kwargs": {}, **place}}
    return SpecCluster(specs, scheduler, silence_logs=30)


_LAUNCHERS: dict[str, Callable[[ClusterSettings], SpecCluster]] = {"slurm": _slurm_cluster, "ssh": _ssh_cluster}
