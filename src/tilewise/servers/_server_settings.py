"""The settings that a folder of servers keeps between starts: ports, and generated secrets."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tilewise.errors import ServersError
from tilewise.servers._service_process import free_ports, is_free

_PORTS = ("mlflow", "relay", "postgres", "s3", "s3-account", "s3-container", "s3-object")
_SECRETS = ("postgres", "s3-models", "s3-data", "s3-salt", "admin", "session", "webhook", "webhook-storage")


@dataclass(frozen=True)
class Settings:
    """Ports of this machine, and secrets, which never appear in output."""

    ports: Mapping[str, int]
    secrets: Mapping[str, str] = field(repr=False)


def load_or_create_settings(path: Path, port: int | None = None) -> Settings:
    """Load the settings of an earlier start, or create them. Ports that are taken now are replaced.

    Args:
        path: The file with the settings, readable only by its owner.
        port: Port of the MLflow server; None: the port of the earlier start, or any free one.

    Raises:
        ServersError: The file is damaged, or `port` is taken.
    """
    if port is not None and not is_free(port):
        raise ServersError(f"MLflow needs a free port, but port {port} is taken; choose another, or leave it out")
    try:
        stored = json.loads(path.read_text()) if path.exists() else {"ports": {}, "secrets": {}}
        ports = {name: int(p) for name, p in stored["ports"].items() if is_free(int(p))}
        values = {name: str(stored["secrets"].get(name) or secrets.token_hex(16)) for name in _SECRETS}
    except (ValueError, KeyError, AttributeError, TypeError, OverflowError) as e:
        raise ServersError(
            f"{path}: damaged, so the passwords in it are lost; delete its folder to start with empty servers"
        ) from e
    ports |= {"mlflow": port} if port else {}
    missing = [name for name in _PORTS if name not in ports]
    ports |= zip(missing, free_ports(len(missing), reserved=ports.values()), strict=True)
    write_private(path, json.dumps({"ports": ports, "secrets": values}, indent=2) + "\n")
    return Settings(ports, values)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read at any moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
