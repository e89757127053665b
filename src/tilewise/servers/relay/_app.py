"""The relay's ASGI application: ``POST /webhook`` from MLflow, ``GET /moves`` for dispatchers, ``GET /health``.

One process serves ten thousand dispatchers, as a waiting stream costs memory only. Nothing is stored: a dispatcher that
was not connected looks when it connects again.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

HEARTBEAT_S = 10.0
MAX_AGE_S = 300.0  # of a webhook's timestamp; MLflow retries for seconds
MAX_BODY = 1 << 16
_MAX_ALIASES, _MAX_NAME = 8, 256  # of one stream
_EVENT, _ALIVE = b"data: moved\n\n", b": alive\n\n"

Move = tuple[str, str]  # names of a registered model and of an alias


class Streams:
    """The waiting streams, by the moves that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Move, set[asyncio.Event]] = {}
        self.count = 0

    def announce(self, move: Move) -> int:
        """Wake the streams that wait for a move, and return their number."""
        waiting = self._waiting.get(move, ())
        for event in waiting:
            event.set()
        return len(waiting)

    async def follow(self, moves: list[Move]) -> AsyncIterator[bytes]:
        """Yield an event after each of these moves, and a sign of life in between.

        Moves during one write become one event.
        """
        moved = asyncio.Event()
        self.count += 1
        for move in moves:
            self._waiting.setdefault(move, set()).add(moved)
        try:
            yield _ALIVE
            while True:
                try:
                    await asyncio.wait_for(moved.wait(), HEARTBEAT_S)
                except TimeoutError:
                    yield _ALIVE
                    continue
                moved.clear()
                yield _EVENT
        finally:
            self.count -= 1
            for move in moves:
                self._waiting[move].discard(moved)
                if not self._waiting[move]:
                    del self._waiting[move]


def relay_app(secret: str) -> Starlette:
    """Return the application.

    Args:
        secret: of MLflow's webhook, which signs each request with it.
    """
    streams = Streams()

    async def webhook(request: Request) -> Response:
        body = await _bounded_body(request)
        if body is None:
            return Response(status_code=413)
        if not is_signed(body, request.headers, secret, time.time()):
            return Response(status_code=401)
        move = _move_of(body)
        return Response(status_code=400) if move is None else JSONResponse({"streams": streams.announce(move)})

    async def moves(request: Request) -> Response:
        model, aliases = request.query_params.get("model", ""), request.query_params.getlist("alias")
        names = [model, *aliases]
        if not 0 < len(aliases) <= _MAX_ALIASES or not all(0 < len(name) <= _MAX_NAME for name in names):
            return Response(f"needs a model and 1 to {_MAX_ALIASES} aliases", status_code=400)
        wanted = [(model, alias) for alias in dict.fromkeys(aliases)]
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # proxies must not hold events back
        return StreamingResponse(streams.follow(wanted), media_type="text/event-stream", headers=headers)

    async def health(_: Request) -> Response:
        return JSONResponse({"streams": streams.count})

    routes = [Route("/webhook", webhook, methods=["POST"]), Route("/moves", moves), Route("/health", health)]
    return Starlette(routes=routes)


def is_signed(body: bytes, headers: Mapping[str, str], secret: str, now: float) -> bool:
    """Return whether MLflow signed a request with the secret, not long ago."""
    try:
        age = abs(now - int(headers["x-mlflow-timestamp"]))
        signed = f"{headers['x-mlflow-delivery-id']}.{headers['x-mlflow-timestamp']}.".encode() + body
        given = headers["x-mlflow-signature"].encode()
    except (KeyError, ValueError):
        return False
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).digest()
    return hmac.compare_digest(given, b"v1," + base64.b64encode(digest)) and age <= MAX_AGE_S


async def _bounded_body(request: Request) -> bytes | None:
    """Return the body, or None if it is too long or breaks off."""
    body = b""
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY:
                return None
    except ClientDisconnect:
        return None
    return body


def _move_of(body: bytes) -> Move | None:
    """Return the model and alias that a webhook's body names, or None."""
    try:
        values: Any = json.loads(body)
        name, alias = values["data"]["name"], values["data"]["alias"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return (name, alias) if isinstance(name, str) and isinstance(alias, str) else None
