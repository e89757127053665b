"""The S3-compatible store: OpenStack Swift on one folder, with its S3 interface and signature checks."""

from __future__ import annotations

import os
import pwd
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from swift.common.ring import RingBuilder

from tilewise.errors import ServersError
from tilewise.servers._server_settings import Settings, write_private
from tilewise.servers._service_process import HOST, Service, answers, listens, run_service

if TYPE_CHECKING:
    from botocore.client import BaseClient

BUCKET = "tilewise"
_DEVICE = "disk"
_PART_POWER = 4  # names are spread over 2**4 parts; changing the number loses all stored objects
_TRIES, _PAUSE_S = 10, 0.5  # of creating the bucket
_FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "s3api", "tempauth", "slo", "dlo")


@contextmanager
def run_object_store(folder: Path, settings: Settings, logs: Path) -> Iterator[Callable[[], None]]:
    """Run the store for the duration of the block, and yield a function that waits until it is ready.

    The yielded function also creates the bucket.

    Raises:
        ServersError: From the yielded function: one of the store's servers does not start, or it cannot store.
    """
    conf, data, ports = folder / "swift", folder / "objects", settings.ports
    conf.mkdir(exist_ok=True)
    (data / _DEVICE).mkdir(parents=True, exist_ok=True)
    salt = f"[swift-hash]\nswift_hash_path_suffix = {settings.secrets['s3-salt']}\n"
    write_private(conf / "swift.conf", f"{salt}[storage-policy:0]\nname = one\ndefault = yes\n")
    backends = ("account", "container", "object")
    for name in backends:
        _ring(ports[f"s3-{name}"]).save(str(conf / f"{name}.ring.gz"))
        where = f"devices = {data}\nmount_check = false\ndisable_fallocate = true\n"
        pipeline = f"[pipeline:main]\npipeline = {name}-server\n[app:{name}-server]\nuse = egg:swift#{name}\n"
        write_private(conf / f"{name}.conf", _default(conf, ports[f"s3-{name}"]) + where + pipeline)
    write_private(conf / "proxy.conf", _default(conf, ports["s3"]) + _pipeline(settings.secrets["s3"]))
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
            _create_bucket(settings)

        yield wait


def s3_environment(settings: Settings) -> dict[str, str]:
    """Return the variables with the store's address and key, as AWS's tools, DVC and MLflow's server read them."""
    return {
        "AWS_ENDPOINT_URL": f"http://{HOST}:{settings.ports['s3']}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tilewise:admin",  # account and user of Swift
        "AWS_SECRET_ACCESS_KEY": settings.secrets["s3"],
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


def _pipeline(secret: str) -> str:
    sections = {name: f"use = egg:swift#{name}\n" for name in _FILTERS}
    sections["s3api"] += "location = us-east-1\n"
    sections["tempauth"] += f"user_tilewise_admin = {secret} .admin\n"
    filters = "".join(f"[filter:{name}]\n{text}" for name, text in sections.items())
    app = "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
    return f"[pipeline:main]\npipeline = {' '.join(_FILTERS)} proxy-server\n{app}{filters}"


def _ring(port: int) -> RingBuilder:
    """Return a ring that stores every object once, on the one device."""
    builder = RingBuilder(_PART_POWER, 1, 0)
    builder.add_dev({"region": 1, "zone": 1, "ip": HOST, "port": port, "device": _DEVICE, "weight": 1})
    builder.rebalance(seed=0)
    return builder.get_ring()


def _create_bucket(settings: Settings) -> None:
    client = s3_client(s3_environment(settings))
    for tries_left in reversed(range(_TRIES)):  # on a busy machine a part of the store may still be starting
        try:
            if BUCKET not in {bucket["Name"] for bucket in client.list_buckets()["Buckets"]}:
                client.create_bucket(Bucket=BUCKET)
            return
        except (BotoCoreError, ClientError) as e:
            if not tries_left:
                raise ServersError(
                    f"the S3 store runs, but cannot store: {e}; its folder needs a disk with extended attributes"
                ) from e
            time.sleep(_PAUSE_S)
