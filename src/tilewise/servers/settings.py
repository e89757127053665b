"""What a folder of servers keeps from one start to the next: its ports, and the secrets that were made for it."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewise.errors import ServersError
from tilewise.servers.service import free_port, is_free

_PORTS = ("mlflow", "postgres", "s3", "s3-account", "s3-container", "s3-object")
_SECRETS = ("postgres", "s3", "s3-salt", "admin", "session")


@dataclass(frozen=True)
class Settings:
    """Ports of this machine, and secrets, which are shown nowhere."""

    ports: Mapping[str, int]
    secrets: Mapping[str, str] = field(repr=False)


def keep_settings(path: Path, port: int | None = None) -> Settings:
    """Those of an earlier start, with another port where somebody else took one since; new ones at first.

    Args:
        path: the file that keeps them, readable by its owner only.
        port: of the MLflow server; None: that of the earlier start, or any.

    Raises:
        ServersError: the file is damaged, or somebody holds `port`.
    """
    if port is not None and not is_free(port):
        raise ServersError(f"port {port} is taken; give another, or none")
    try:
        kept = json.loads(path.read_text()) if path.exists() else {"ports": {}, "secrets": {}}
        ports = {name: int(p) for name, p in kept["ports"].items() if is_free(int(p))}
        made = {name: str(kept["secrets"].get(name) or secrets.token_hex(16)) for name in _SECRETS}
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as e:
        raise ServersError(f"{path}: damaged, and its passwords are lost; remove its folder to start anew") from e
    ports = {name: ports.get(name) or free_port() for name in _PORTS} | ({"mlflow": port} if port else {})
    write_private(path, json.dumps({"ports": ports, "secrets": made}, indent=2) + "\n")
    return Settings(ports, made)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, from its first byte on."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    beside.replace(path)
