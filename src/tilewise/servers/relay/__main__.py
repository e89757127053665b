"""``python -m tilewise.servers.relay``: run the relay until Ctrl-C. TILEWISE_RELAY_SECRET is the webhook's secret."""

from __future__ import annotations

import argparse
import os
import sys

import uvicorn

from tilewise.servers.relay import relay_app

SECRET = "TILEWISE_RELAY_SECRET"
_LEAST = 16  # characters


def main() -> int:
    """Run the relay.

    Returns:
        0 after a signal to end, 2 without a secret.
    """
    parser = argparse.ArgumentParser("python -m tilewise.servers.relay", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5050)
    parser.add_argument("--streams", type=int, default=20_000, help="refuse further connections with status 503")
    args = parser.parse_args()
    secret = os.environ.get(SECRET, "")
    if len(secret) < _LEAST:
        print(f"error: {SECRET} must have at least {_LEAST} characters, got {len(secret)}", file=sys.stderr)
        return 2
    uvicorn.run(
        relay_app(secret), host=args.host, port=args.port, limit_concurrency=args.streams, log_level="warning",
        access_log=False, timeout_graceful_shutdown=1,
    )  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
