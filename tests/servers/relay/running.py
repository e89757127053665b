"""A relay in a thread, and requests as MLflow signs them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from tilewise.servers._service_process import free_ports
from tilewise.servers.relay import relay_app

SECRET = "the secret of the tests"


@contextmanager
def relay(port: int | None = None) -> Iterator[str]:
    """Run a relay for the duration of the block, and yield its address."""
    port = port or free_ports(1)[0]
    config = uvicorn.Config(relay_app(SECRET), port=port, log_level="error", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the relay did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def signed(body: bytes, secret: str = SECRET, age_s: float = 0.0) -> dict[str, str]:
    """Return the headers with which MLflow sends a body."""
    moment = str(int(time.time() - age_s))
    digest = hmac.new(secret.encode(), b"one." + moment.encode() + b"." + body, hashlib.sha256).digest()
    signature = f"v1,{base64.b64encode(digest).decode()}"
    return {"X-MLflow-Delivery-Id": "one", "X-MLflow-Timestamp": moment, "X-MLflow-Signature": signature}


def moved(model: str, alias: str) -> bytes:
    """Return the body of a webhook about an alias."""
    return json.dumps({"entity": "model_version_alias", "data": {"name": model, "alias": alias}}).encode()


def send(address: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a webhook, and return the status."""
    request = urllib.request.Request(f"{address}/webhook", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as e:
        return e.code
    except OSError:  # the relay answered before the whole body was there, and closed
        return 413


def streams(address: str) -> int:
    """Return the number of connected streams."""
    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
        return int(json.load(answer)["streams"])
