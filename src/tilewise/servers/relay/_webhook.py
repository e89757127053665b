"""The webhook by which an MLflow server calls the relay, created by MLflow's REST interface.

MLflow delivers webhooks from its server only: not from clients that write to a database directly, and not with a file
store.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from tilewise.errors import ServersError

NAME = "tilewise-relay"
_EVENTS = [{"entity": "MODEL_VERSION_ALIAS", "action": action} for action in ("CREATED", "DELETED")]
_TIMEOUT_S = 30.0


def register_webhook(
    uri: str, relay: str, secret: str, *, user: str = "", password: str = "", name: str = NAME
) -> None:
    """Let an MLflow server call the relay whenever an alias moves; repeating it changes nothing.

    A worker of the server that has sent webhooks before notices a new one within a minute.

    Args:
        uri: of the MLflow server.
        relay: address of the relay as the server reaches it, such as ``https://relay.example.org``.
        secret: that signs the requests; the relay's own.
        user: an administrator; "": the server asks for no user.
        password: of the administrator.
        name: of the webhook; several relays need different ones.

    Raises:
        ServersError: the server refuses, or does not answer.
    """
    credentials = base64.b64encode(f"{user}:{password}".encode()).decode() if user else ""
    wanted = {"name": name, "url": f"{relay.rstrip('/')}/webhook", "events": _EVENTS, "secret": secret, "status": 1}
    known = _call(uri, "GET", "webhooks?max_results=1000", None, credentials).get("webhooks", [])
    for webhook in known:
        if webhook.get("name") == name:
            _call(uri, "PATCH", f"webhooks/{webhook['webhook_id']}", wanted, credentials)
            return
    _call(uri, "POST", "webhooks", wanted, credentials)


def _call(uri: str, method: str, path: str, values: Mapping[str, object] | None, credentials: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if credentials:
        headers["Authorization"] = f"Basic {credentials}"
    data = None if values is None else json.dumps(values).encode()
    request = urllib.request.Request(f"{uri.rstrip('/')}/api/2.0/mlflow/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except urllib.error.HTTPError as e:
        reason = e.read(2000).decode(errors="replace")
        raise ServersError(f"{uri} must accept a webhook to the relay, but answers {e.code}: {reason}") from e
    except (OSError, ValueError) as e:
        raise ServersError(f"{uri} must accept a webhook to the relay, but does not answer: {e}") from e
