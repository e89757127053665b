"""The S3-compatible store: OpenStack Swift on one folder, with its S3 interface and signature checks."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from tilewise.errors import ServersError
from tilewise.servers._server_settings import Settings, write_private
from tilewise.servers._service_process import HOST, START_S, Service, answers, listens, run_service
from tilewise.servers._swift_rings import DEVICE, write_rings

if TYPE_CHECKING:
    from botocore.client import BaseClient

_USER = "admin"  # of each account
_PAUSE_S = 0.5  # between attempts to create the bucket
# One device has no replica to turn to, so Swift waits for it instead of giving up after 0.5 s on a busy machine; after
# errors it goes on asking, where Swift would leave a device alone for a minute.
_PATIENCE = "conn_timeout = 30\nnode_timeout = 60\ncontainer_update_timeout = 60\n"
_KEEP_ASKING = "error_suppression_interval = 0\n"
_FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "s3api", "tempauth", "slo", "dlo")


@dataclass(frozen=True)
class Tenant:
    """Whoever has an account of its own in Swift: its key reaches its bucket, and nothing of another account."""

    account: str
    bucket: str
    secret: str  # its name among the settings


MODELS = Tenant("tilewise", "tilewise", "s3-models")  # only MLflow's server has this key
DATA = Tenant("data", "tilewise-data", "s3-data")  # of DVC's users


@contextmanager
def run_object_store(folder: Path, settings: Settings, logs: Path) -> Iterator[Callable[[], None]]:
    """Run the store for the duration of the block, and yield a function that waits until it is ready.

    The yielded function also creates the buckets.

    Raises:
        ServersError: The disk cannot be used; or, from the yielded function, one of the store's servers does not start,
            or it cannot store.
    """
    conf, data, ports = folder / "swift", folder / "objects", settings.ports
    conf.mkdir(exist_ok=True)
    (data / DEVICE).mkdir(parents=True, exist_ok=True)
    _check_attributes(data)
    salt = f"[swift-hash]\nswift_hash_path_suffix = {settings.secrets['s3-salt']}\n"
    write_private(conf / "swift.conf", f"{salt}[storage-policy:0]\nname = one\ndefault = yes\n")
    backends = ("account", "container", "object")
    write_rings(conf, {name: ports[f"s3-{name}"] for name in backends})
    for name in backends:
        where = f"devices = {data}\nmount_check = false\ndisable_fallocate = true\n"
        pipeline = (
            f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n{_PATIENCE}"
        )
        write_private(conf / f"{name}.conf", _default(conf, ports[f"s3-{name}"]) + where + pipeline)
    write_private(conf / "proxy.conf", _default(conf, ports["s3"]) + _pipeline(settings))
    up = {name: partial(listens, ports[f"s3-{name}"]) for name in backends}
    up["proxy"] = partial(answers, f"http://{HOST}:{ports['s3']}/healthcheck")
    with ExitStack() as running:
        start = running.enter_context
        waits = [
            start(run_service(Service(f"s3-{name}", _command(conf, name), is_up), logs)) for name, is_up in up.items()
        ]

        def wait() -> None:
            for part in waits:
                part()
            for tenant in (MODELS, DATA):
                _create_bucket(settings, tenant)

        yield wait


def s3_environment(settings: Settings, tenant: Tenant) -> dict[str, str]:
    """Return the variables with the store's address and a tenant's key, as AWS's tools, DVC and MLflow read them."""
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{settings.ports['s3']}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": f"{tenant.account}:{_USER}",
        "AWS_SECRET_ACCESS_KEY": settings.secrets[tenant.secret],
    }


def s3_client(environment: Mapping[str, str]) -> BaseClient:
    """Return a client of the store, given the variables of :func:`s3_environment`."""
    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_DEFAULT_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )


def _command(conf: Path, name: str) -> list[str | Path]:
    return [sys.executable, Path(sys.executable).parent / f"swift-{name}-server", conf / f"{name}.conf", "-v"]


def _default(conf: Path, port: int) -> str:
    user = pwd.getpwuid(os.geteuid()).pw_name
    return f"[DEFAULT]\nbind_ip = {HOST}\nbind_port = {port}\nworkers = 0\nuser = {user}\nswift_dir = {conf}\n"


def _pipeline(settings: Settings) -> str:
    sections = {name: f"use = egg:swift#{name}\n" for name in _FILTERS}
    sections["s3api"] += "location = us-east-1\n"
    # Swift's own tokens need memcached: a request for one would fail, and be logged with the key that it carries.
    sections["tempauth"] += f"auth_prefix = /{settings.secrets['s3-salt']}/\n"
    for tenant in (MODELS, DATA):
        sections["tempauth"] += f"user_{tenant.account}_{_USER} = {settings.secrets[tenant.secret]} .admin\n"
    filters = "".join(f"[filter:{name}]\n{text}" for name, text in sections.items())
    app = f"[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n{_PATIENCE}{_KEEP_ASKING}"
    return f"[pipeline:main]\npipeline = {' '.join(_FILTERS)} proxy-server\n{app}{filters}"


def _check_attributes(folder: Path) -> None:
    """Refuse a disk that cannot hold extended attributes, in which Swift keeps an object's name and size."""
    try:
        os.setxattr(folder, "user.tilewise", b"1")
    except OSError as e:
        raise ServersError(
            f"the S3 store needs a disk with extended attributes, but {folder} cannot have them: {e.strerror}; "
            "choose another --folder"
        ) from e


def _create_bucket(settings: Settings, tenant: Tenant) -> None:
    client = s3_client(s3_environment(settings, tenant))
    end = time.monotonic() + START_S
    while True:  # on a busy machine a part of the store may still be starting
        try:
            if tenant.bucket not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=tenant.bucket)
            return
        except (BotoCoreError, ClientError) as e:
            if time.monotonic() > end:
                raise ServersError(f"the S3 store must store within {START_S:g} s, but it cannot: {e}") from e
            time.sleep(_PAUSE_S)
